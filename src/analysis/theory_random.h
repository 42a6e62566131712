// Random inputs of the checks, and those of whole sublayers and stacks.
#pragma once

#include "analysis/theory.h"
#include "core/rng.h"

namespace bhyt::analysis {

// The numbers of one stream, by index.
class Draws {
 public:
  explicit Draws(std::uint64_t stream) : stream_(stream) {}
  double normal(std::uint64_t i) const { return bhyt::normal(kSeed, stream_, i); }
  double uniform(std::uint64_t i) const {
    const Philox r = philox(kSeed, stream_ ^ kUniforms, i);
    return uniform53(r.v[0], r.v[1]);
  }
  std::vector<double> normals(std::int64_t n, double size = 1) const {
    std::vector<double> v;
    for (std::int64_t i = 0; i < n; ++i) v.push_back(size * normal(static_cast<std::uint64_t>(i)));
    return v;
  }

 private:
  static constexpr std::uint64_t kSeed = 17, kUniforms = 1ull << 40;
  std::uint64_t stream_;
};

// An approximation counts as right within a quarter.
constexpr double kQuarter = 0.22314355131420976;  // log 1.25

Finding random_attention(Context& ctx);
Finding random_mlp();
Finding random_recursion();
Finding random_comparison();

}  // namespace bhyt::analysis
