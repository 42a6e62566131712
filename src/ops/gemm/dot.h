// The inner loop of products with few rows, which decoding is made of.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cpu {

// out[i] = x · rows[i]: four at once, so that x is read once for all of them and no sum waits for another.
void dot4(const float* x, const float* const* rows, std::int64_t k, float* out);
void dot4(const float* x, const bf16* const* rows, std::int64_t k, float* out);

}  // namespace bhyt::cpu
