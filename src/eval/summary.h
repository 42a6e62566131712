// A paper's table: models by tasks, the mean and the spread over few-shot seeds, and the macro average.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/results.h"

namespace bhyt {

struct Spread {
  double mean = 0;
  std::optional<double> deviation;  // over seeds (n - 1); none of a single one
};

struct SummaryRow {
  std::string model;
  std::vector<Spread> tasks;  // in the order of the columns
  Spread average;             // of each seed's mean over the tasks
};

struct Summary {
  std::vector<std::string> tasks;    // the columns
  std::vector<std::string> metrics;  // which of each: "acc_norm" where the task has it, else "acc"
  std::int64_t seeds = 0;
  std::vector<SummaryRow> rows;
};

struct SeedResults {
  std::int64_t seed = 0;
  Results results;
};

struct ModelResults {
  std::string model;
  std::vector<SeedResults> seeds;
};

// `tasks` in the order of the columns; those that give texts their perplexities have no place here.
Summary summarize(const std::vector<std::string>& tasks, std::span<const ModelResults> models);

nlohmann::ordered_json to_json(const Summary& summary);
std::string to_table(const Summary& summary);  // Markdown; accuracies in percent, as papers have them

}  // namespace bhyt
