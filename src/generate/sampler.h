// Choosing the next token from logits. The n-th draw is a pure function of (seed, n).
#pragma once

#include <cstdint>
#include <vector>

#include "core/rng.h"

namespace bhyt {

struct SamplerOptions {
  double temperature = 0;  // 0 = greedy
  std::int64_t top_k = 0;  // the k likeliest tokens only; 0 = all
  double top_p = 1;        // the fewest likeliest tokens whose probabilities reach p
  std::uint64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);  // UsageError for what makes no sense
  // logits fp32 [V]. Equal logits go to the lower id. Throws Error when no logit is finite or one is NaN.
  std::int32_t next(const std::vector<float>& logits);

 private:
  struct Candidate {
    double weight;  // exp((logit − max) / temperature)
    std::int32_t id;
  };
  static bool likelier(const Candidate& a, const Candidate& b);
  const Candidate& ranked(std::size_t n);
  std::int32_t draw(const std::vector<float>& logits, std::int32_t best);

  SamplerOptions options_;
  Rng rng_;
  std::vector<Candidate> candidates_;
  std::size_t ordered_ = 0;  // this many of them are the likeliest, in order
};

}  // namespace bhyt
