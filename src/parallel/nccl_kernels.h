// What NCCL's sums need around them, on a stream of the caller's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cuda {

// to [n] += from [n]
void add(cudaStream_t stream, const float* from, float* to, std::int64_t n);
// to [ranks, n] = from [ranks, n], whose rows lie `stride` elements apart
void pack_bf16(cudaStream_t stream, const float* from, std::int64_t stride, bf16* to, std::int64_t n, int ranks);
// to [n] = from [n], added to what it holds with `add`
void unpack_bf16(cudaStream_t stream, const bf16* from, float* to, std::int64_t n, bool add);

}  // namespace bhyt::cuda
