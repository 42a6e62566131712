// W + s·B A, the sum that merges an adapter into a weight.
#pragma once

#include <cstdint>

namespace bhyt {

// B [out, r] times A [r, in], both fp32, times s.
struct LowRank {
  const float *a, *b;
  std::int64_t rank, in;
  double scale;
};

// values, elements [first, first + n) of a weight [out, in], gain their part of the product.
void add_low_rank(const LowRank& of, std::int64_t first, std::int64_t n, float* values);

}  // namespace bhyt
