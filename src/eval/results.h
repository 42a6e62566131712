// The results of a run over tasks in the harness's words: its JSON and its table.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/scored.h"

namespace bhyt {

// How a task is called and shown.
struct TaskEntry {
  std::string name;               // "arc_easy", "mmlu_anatomy"
  std::string alias;              // "arc_easy", "anatomy"
  std::optional<double> version;  // of the harness's description; where it has none, it is shown as "Yaml"
  std::string group;              // that it belongs to: "mmlu_stem"; "" where it stands by itself
  std::int64_t shots = 0;         // examples in its prompts
  std::int64_t documents = 0;     // that the data set has, whatever --limit says
};

struct GroupEntry {
  std::string name;               // "mmlu", "mmlu_stem"
  std::string alias;              // "mmlu", "stem"
  std::optional<double> version;  // 2
  std::string group;              // that it belongs to: "mmlu"; "" at the top
};

struct Catalog {
  std::vector<TaskEntry> tasks;
  std::vector<GroupEntry> groups;

  const std::string& top(const std::string& task) const;  // the outermost group around a task, or the task itself
};

struct Metric {
  std::string name;  // "acc", "acc_norm", "bits_per_byte", "byte_perplexity", "word_perplexity"
  double value = 0;
  std::optional<double> error;  // "N/A" where there is none
  bool higher_is_better = true;
};

struct ResultRow {
  std::string name, alias;  // the alias with its indentation in the table of tasks: "  - anatomy"
  std::optional<double> version;
  bool group = false;
  std::optional<std::int64_t> shots;  // a group has none
  std::vector<Metric> metrics;        // by name
  std::int64_t documents = 0, scored = 0;

  const Metric& main() const;  // acc_norm where the task has it, else acc; bits_per_byte of texts
};

// The rows in the harness's order: by name, a group before its members.
struct Results {
  std::vector<ResultRow> rows;

  const ResultRow& row(const std::string& name) const;
};

// Of documents that were asked with one seed. Tasks of the catalog without documents are left out; a document of another task is an Error.
Results collect(const Catalog& catalog, std::span<const Scored> documents);
Results collect(const Catalog& catalog, std::span<const Scored> documents,
                std::int64_t seed);  // those of this seed

nlohmann::ordered_json to_json(const Results& results);  // results, groups, n-samples, n-shot, higher_is_better, versions
std::string to_table(const Results& results);            // as the harness prints it, which is Markdown, too

}  // namespace bhyt
