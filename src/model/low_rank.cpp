#include "model/low_rank.h"

#include <algorithm>
#include <vector>

#include "core/threads.h"

namespace bhyt {

namespace {

BHYT_CLONES void add_scaled(float by, const float* x, float* y, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] += by * x[i];
}

}  // namespace

void add_low_rank(const LowRank& of, std::int64_t first, std::int64_t n, float* values) {
  std::vector<float> sum;
  for (std::int64_t at = first; at < first + n;) {
    const std::int64_t row = at / of.in, column = at % of.in, count = std::min(of.in - column, first + n - at);
    sum.assign(static_cast<std::size_t>(count), 0.0f);
    for (std::int64_t r = 0; r < of.rank; ++r) add_scaled(of.b[row * of.rank + r], of.a + r * of.in + column, sum.data(), count);
    add_scaled(static_cast<float>(of.scale), sum.data(), values + (at - first), count);
    at += count;
  }
}

}  // namespace bhyt
