#include "eval/metrics.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "core/check.h"

namespace bhyt {

namespace {

std::int64_t first_of_largest(const std::vector<double>& values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i)
    if (values[i] > values[best]) best = i;
  return static_cast<std::int64_t>(best);
}

double per_character(double sum, std::int64_t characters) {
  return characters > 0 ? sum / static_cast<double>(characters) : -std::numeric_limits<double>::infinity();
}

void check_gradable(const Question& q, const std::vector<Likelihood>& choices, bool by_length) {
  const auto count = static_cast<std::int64_t>(choices.size());
  check(count > 0 && q.gold >= 0 && q.gold < count, "{} document {}: expected the right choice to be one of {}, got {}", q.task, q.document,
        count, q.gold);
  check(!by_length || q.characters.size() == choices.size(), "{} document {}: expected the lengths of {} choices, got {}", q.task,
        q.document, count, q.characters.size());
  for (std::size_t i = 0; i < choices.size(); ++i)
    check(std::isfinite(choices[i].sum), "{} document {}: the model gives choice {} the log-likelihood {}, which is no number to score",
          q.task, q.document, i, choices[i].sum);
}

double squares_around(std::span<const double> values, double mean) {
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return sum;
}

double plain_mean(std::span<const double> values) {
  check(!values.empty(), "[mean] expected at least one value, got none");
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

}  // namespace

Graded grade(const Question& question, std::vector<Likelihood> choices, bool by_length) {
  check_gradable(question, choices, by_length);
  std::vector<double> sums, averages;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    sums.push_back(choices[i].sum);
    if (by_length) averages.push_back(per_character(choices[i].sum, question.characters[i]));
  }
  Graded graded{.choices = std::move(choices), .acc = first_of_largest(sums) == question.gold ? 1.0 : 0.0};
  if (by_length) graded.acc_norm = first_of_largest(averages) == question.gold ? 1.0 : 0.0;
  return graded;
}

std::optional<double> deviation(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  return std::sqrt(squares_around(values, plain_mean(values)) / static_cast<double>(values.size() - 1));
}

Mean mean_of(std::span<const double> values) {
  Mean mean{.value = plain_mean(values), .count = static_cast<std::int64_t>(values.size())};
  if (const auto spread = deviation(values)) mean.error = *spread / std::sqrt(static_cast<double>(mean.count));
  return mean;
}

Mean pool(std::span<const Mean> parts) {
  check(!parts.empty(), "[pool] expected at least one part, got none");
  double total = 0, squares = 0;
  bool errors = true;
  std::int64_t count = 0;
  for (const Mean& part : parts) {
    const auto n = static_cast<double>(part.count);
    count += part.count;
    total += part.value * n;
    errors &= part.error.has_value();
    if (errors) squares += (n - 1) * n * *part.error * *part.error;
  }
  const auto n = static_cast<double>(count);
  Mean pooled{.value = total / n, .count = count};
  if (errors) pooled.error = std::sqrt(squares / (n - static_cast<double>(parts.size())) / n);
  return pooled;
}

Perplexities perplexities(std::span<const Rolled> texts) {
  double nats = 0, words = 0, bytes = 0;
  for (const Rolled& text : texts) {
    check(std::isfinite(text.sum), "a text has the log-likelihood {}, which is no number to score", text.sum);
    nats -= text.sum;
    words += static_cast<double>(text.words);
    bytes += static_cast<double>(text.bytes);
  }
  check(words > 0 && bytes > 0, "a perplexity needs texts with words and bytes in them, got {} and {}", words, bytes);
  return {.word = std::exp(nats / words), .byte = std::exp(nats / bytes), .bits_per_byte = nats / bytes / std::numbers::ln2};
}

}  // namespace bhyt
