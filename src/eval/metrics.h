// From likelihoods to accuracies, their means and standard errors; from texts to perplexities.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/question.h"
#include "eval/scored.h"

namespace bhyt {

// Which choice a model takes: the likeliest, the first of equals; by likelihood per character too where `by_length` asks for acc_norm,
// where a choice without characters loses to all others. Throws Error where a likelihood is not a number.
Graded grade(const Question& question, std::vector<Likelihood> choices, bool by_length);

struct Mean {
  double value = 0;
  std::optional<double> error;  // the standard error; none of a single value
  std::int64_t count = 0;
};

Mean mean_of(std::span<const double> values);  // at least one
// The mean over all documents of several tasks and the standard error pooled from theirs; no error where one of them has none.
Mean pool(std::span<const Mean> parts);

// The sample standard deviation (n - 1); none of a single value.
std::optional<double> deviation(std::span<const double> values);

struct Perplexities {
  double word = 0, byte = 0, bits_per_byte = 0;
};

Perplexities perplexities(std::span<const Rolled> texts);

}  // namespace bhyt
