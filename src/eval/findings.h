// What an evaluation has found, of one or several models with one or several few-shot seeds, ready to be printed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/compare.h"
#include "eval/results.h"
#include "eval/scored.h"
#include "eval/summary.h"

namespace bhyt {

// A model and its documents, of all seeds.
struct ScoredModel {
  std::string name;
  std::vector<Scored> documents;
};

struct Findings {
  std::vector<ModelResults> models;
  std::optional<Summary> summary;       // where there are accuracies, and several models or seeds
  std::vector<Comparison> comparisons;  // of each further model with the first
};

// `columns`: the tasks of the summary in their order (a group stands as one), whatever else was evaluated.
Findings findings_of(const Catalog& catalog, const std::vector<ScoredModel>& models, const std::vector<std::int64_t>& seeds,
                     const std::vector<std::string>& columns);

// One model with one seed: the harness's. Else {"models": [{"model", "seeds": [{"seed", "results", …}]}], "summary", "comparisons"}.
nlohmann::ordered_json to_json(const Findings& findings);
nlohmann::ordered_json to_full_json(const Findings& findings);  // always the latter: what a report is made of

// One model with one seed: the harness's table. Else the summary, perplexities and comparisons. All of it Markdown.
std::string to_table(const Findings& findings);

}  // namespace bhyt
