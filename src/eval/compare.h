// Two models on the same documents: the differences document by document, which tell more than two results with a standard error each.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/results.h"

namespace bhyt {

// The probability that a fair coin is at least as lopsided as `up` against `down`: the exact two-sided sign test.
double sign_test(std::int64_t up, std::int64_t down);

// First minus second.
struct Difference {
  std::string task;    // a group stands as one task; "" over all tasks
  std::string metric;  // "acc_norm" where the task has it, else "acc"; "bits_per_byte" of texts
  std::int64_t documents = 0;
  double first = 0, second = 0;  // means over the documents
  double difference = 0;
  std::optional<double> error;    // standard error of the difference; none of a single document
  std::int64_t up = 0, down = 0;  // documents on which the first is above, below
  double p = 1;                   // of the sign test over them
};

struct Comparison {
  std::string first, second;      // the models
  std::vector<Difference> tasks;  // in the catalog's order
  std::optional<Difference> all;  // over the tasks with accuracies, each with the same weight, where there are several
};

// Both must have the same documents (task, row, seed), in any order: else an Error says which one is missing where. Of a document that was
// asked with several seeds the mean over them counts.
Comparison compare(const Catalog& catalog, const std::string& first, std::span<const Scored> of_first, const std::string& second,
                   std::span<const Scored> of_second);

nlohmann::ordered_json to_json(const Comparison& comparison);
std::string to_table(const Comparison& comparison);  // Markdown

}  // namespace bhyt
