#include "generate/sampler.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace bhyt {

Sampler::Sampler(const SamplerOptions& options) : options_(options), rng_(options.seed, 0x73616d706c65ull) {
  check_usage(options.temperature >= 0 && std::isfinite(options.temperature), "temperature must be at least 0, got {}",
              options.temperature);
  check_usage(options.top_k >= 0, "top-k must be at least 0 (0 = all), got {}", options.top_k);
  check_usage(options.top_p > 0 && options.top_p <= 1, "top-p must be greater than 0 and at most 1, got {}", options.top_p);
}

std::int32_t Sampler::next(const std::vector<float>& logits) {
  check(!logits.empty(), "[sampler] expected logits, got none");
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    check(!std::isnan(logits[i]), "[sampler] the logit of token {} is not a number: the weights may be damaged", i);
    if (logits[i] > logits[best]) best = i;
  }
  check(std::isfinite(logits[best]), "[sampler] expected a finite largest logit, got {}", logits[best]);
  return options_.temperature == 0 ? static_cast<std::int32_t>(best) : draw(logits, static_cast<std::int32_t>(best));
}

namespace {

constexpr std::size_t kFirstPiece = 64;  // most draws end within it

}  // namespace

// Equal weights go by id, so that the order does not depend on how candidates were selected.
bool Sampler::likelier(const Candidate& a, const Candidate& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; }

// The n-th likeliest. Only as many are put in order as are asked for, in pieces that grow: a draw costs a few passes over the vocabulary
// and the sorting of what it reaches.
const Sampler::Candidate& Sampler::ranked(std::size_t n) {
  while (n >= ordered_) {
    const auto at = [&](std::size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
    const std::size_t end = std::min(candidates_.size(), std::max(kFirstPiece, 4 * ordered_));
    if (end < candidates_.size()) std::nth_element(at(ordered_), at(end), candidates_.end(), likelier);
    std::sort(at(ordered_), at(end), likelier);
    ordered_ = end;
  }
  return candidates_[n];
}

std::int32_t Sampler::draw(const std::vector<float>& logits, std::int32_t best) {
  const double top = logits[static_cast<std::size_t>(best)];
  candidates_.clear();
  ordered_ = 0;
  for (std::size_t i = 0; i < logits.size(); ++i)
    candidates_.push_back({std::exp((logits[i] - top) / options_.temperature), static_cast<std::int32_t>(i)});
  const auto k = static_cast<std::size_t>(options_.top_k);
  if (k > 0 && k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(k) - 1, candidates_.end(), likelier);
    candidates_.resize(k);
  }
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  std::size_t kept = candidates_.size();
  if (options_.top_p < 1) {
    const double enough = options_.top_p * total;
    total = 0;
    for (kept = 0; kept < candidates_.size() && total < enough; ++kept) total += ranked(kept).weight;
  }
  double left = rng_.uniform() * total;
  for (std::size_t n = 0; n < kept; ++n) {
    const Candidate& c = ranked(n);
    left -= c.weight;
    if (left < 0) return c.id;
  }
  return ranked(0).id;  // rounding only
}

}  // namespace bhyt
