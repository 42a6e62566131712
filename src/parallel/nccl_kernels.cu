#include "parallel/nccl_kernels.h"

#include <algorithm>

#include "core/cuda.cuh"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 256;
// Few enough to leave multiprocessors to what the context computes meanwhile, enough for the memory's speed.
constexpr unsigned kMostBlocks = 512;

unsigned grid(std::int64_t n) { return std::min(blocks_for(n, kThreads), kMostBlocks); }

__device__ __forceinline__ std::int64_t first() { return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; }
__device__ __forceinline__ std::int64_t step() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

__global__ void add_kernel(const float* from, float* to, std::int64_t n) {
#pragma unroll 4
  for (std::int64_t i = first(); i < n; i += step()) to[i] += from[i];
}

__global__ void pack_kernel(const float* from, std::int64_t stride, bf16* to, std::int64_t n) {
  from += blockIdx.y * stride;
  to += blockIdx.y * n;
#pragma unroll 4
  for (std::int64_t i = first(); i < n; i += step()) to[i] = to_bf16(from[i]);
}

template <bool kAdd>
__global__ void unpack_kernel(const bf16* from, float* to, std::int64_t n) {
#pragma unroll 4
  for (std::int64_t i = first(); i < n; i += step()) to[i] = (kAdd ? to[i] : 0.0f) + to_float(from[i]);
}

}  // namespace

void add(cudaStream_t stream, const float* from, float* to, std::int64_t n) {
  if (n == 0) return;
  add_kernel<<<grid(n), kThreads, 0, stream>>>(from, to, n);
  check_launch("add_kernel");
}

void pack_bf16(cudaStream_t stream, const float* from, std::int64_t stride, bf16* to, std::int64_t n, int ranks) {
  if (n == 0) return;
  pack_kernel<<<dim3(grid(n), static_cast<unsigned>(ranks)), kThreads, 0, stream>>>(from, stride, to, n);
  check_launch("pack_kernel");
}

void unpack_bf16(cudaStream_t stream, const bf16* from, float* to, std::int64_t n, bool add) {
  if (n == 0) return;
  (add ? unpack_kernel<true> : unpack_kernel<false>)<<<grid(n), kThreads, 0, stream>>>(from, to, n);
  check_launch("unpack_kernel");
}

}  // namespace bhyt::cuda
