// What the norm kernels share beside the statistic (statistic.h): where scalar gradients are summed, and the path for any row.
#pragma once

#include "core/cuda.cuh"
#include "ops/norm/maps.h"
#include "ops/norm/norm.h"
#include "ops/norm/statistic.h"

namespace bhyt::cuda {

// The scalars' gradients as they lie in memory: scale, shift, ms_correction, constant_correction.
constexpr int kScalars = 4;
using RowScalars = ScalarSums<float>;

// Where they are added; null = not wanted.
struct ScalarTargets {
  float* to[kScalars];
};
inline ScalarTargets scalar_targets(const NormGrads& grads, const Given* given) {
  return {{pointer(grads.scale), pointer(grads.shift), given ? pointer(given->dms_correction) : nullptr,
           given ? pointer(given->dconstant_correction) : nullptr}};
}

// Adds per-block (or per-row) scalar sums [count, kScalars] to the gradients, in a fixed order.
void add_scalars(Context& ctx, const float* sums, std::int64_t count, const ScalarTargets& targets);

// The same operations for rows that do not come in 16-byte pieces or do not fit into registers.
void norm_rows(Context& ctx, const NormSite& site, const NormForward& call);
void norm_backward_rows(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call);

}  // namespace bhyt::cuda
