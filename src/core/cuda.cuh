// What every kernel file of ours uses: 16-byte vectors, reductions, and the host's part (core/cuda_host.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/cuda_host.h"
#include "core/dtype.h"

namespace bhyt::cuda {

// Sixteen bytes of T, as floats.
template <class T>
struct Vec;
template <>
struct Vec<float> {
  static constexpr int n = 4;
  static __device__ __forceinline__ void unpack(uint4 r, float* v) {
    v[0] = __uint_as_float(r.x);
    v[1] = __uint_as_float(r.y);
    v[2] = __uint_as_float(r.z);
    v[3] = __uint_as_float(r.w);
  }
  static __device__ __forceinline__ void load(const float* p, float* v) { unpack(*reinterpret_cast<const uint4*>(p), v); }
  static __device__ __forceinline__ uint4 pack(const float* v) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
  }
  static __device__ __forceinline__ void store(float* p, const float* v) { *reinterpret_cast<uint4*>(p) = pack(v); }
};
template <>
struct Vec<bf16> {
  static constexpr int n = 8;
  static __device__ __forceinline__ void load(const bf16* p, float* v) { unpack(*reinterpret_cast<const uint4*>(p), v); }
  static __device__ __forceinline__ void unpack(uint4 r, float* v) {
    const unsigned u[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(u[i] << 16);
      v[2 * i + 1] = __uint_as_float(u[i] & 0xFFFF0000u);
    }
  }
  static __device__ __forceinline__ void store(bf16* p, const float* v) { *reinterpret_cast<uint4*>(p) = pack(v); }
  static __device__ __forceinline__ uint4 pack(const float* v) {
    unsigned u[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 b = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      u[i] = *reinterpret_cast<const unsigned*>(&b);
    }
    return make_uint4(u[0], u[1], u[2], u[3]);
  }
};

template <class T>
__device__ __forceinline__ float load1(const T* p) {
  return to_float(*p);
}
__device__ __forceinline__ void store1(float* p, float v) { *p = v; }
__device__ __forceinline__ void store1(bf16* p, float v) {
  const __nv_bfloat16 b = __float2bfloat16_rn(v);
  p->bits = *reinterpret_cast<const unsigned short*>(&b);
}

__device__ __forceinline__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}

// Sum over a block of up to 1024 threads, the same in every thread and in every run. shared: 33 values of shared memory.
template <class F>
__device__ __forceinline__ F block_sum(F v, F* shared) {
  v = warp_sum(v);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    F s = lane < warps ? shared[lane] : F(0);
    s = warp_sum(s);
    if (lane == 0) shared[32] = s;
  }
  __syncthreads();
  return shared[32];
}

// For kernels that launch_early starts: before wait_for_previous() nothing may be read that an earlier kernel writes, and nothing written
// (one thread of a block may wait for all, if the others wait for it before they do either);
// after let_next_begin() the next kernel may begin beside this one.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Whether the GPU is a Hopper, and this build has the kernel's code for it: what is under __CUDA_ARCH__ >= 900.
template <class... Params>
bool has_hopper_code(Context& ctx, void (*kernel)(Params...)) {
  int major = 0;
  BHYT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx.queue().device));
  cudaFuncAttributes code{};
  BHYT_CUDA(cudaFuncGetAttributes(&code, kernel));
  return major == 9 && code.ptxVersion >= 90 && code.binaryVersion >= 90;
}

constexpr std::size_t kStaticShared = 1536;  // that such a kernel has at most beside what it is launched with
// The blocks of a kernel, `cluster` of its z together.
struct EarlyGrid {
  dim3 blocks;
  unsigned cluster = 1;
  EarlyGrid(dim3 all, unsigned together = 1) : blocks(all), cluster(together) {}
};
// Launches a kernel that may begin before the one before it has ended, on Hopper.
template <class... Params, class... Args>
void launch_early(Context& ctx, void (*kernel)(Params...), const EarlyGrid& grid, int threads, std::size_t bytes, const Args&... args) {
  // As much as there is, whatever this call takes: contexts in other threads may launch the same kernel with more.
  const auto most = static_cast<int>(shared_bytes(ctx) - kStaticShared);
  BHYT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {1, 1, grid.cluster};
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = stream(ctx);
  config.attrs = attributes;
  config.numAttrs =
      has_hopper_code(ctx, kernel) ? (grid.cluster > 1 ? 2 : 1) : 0;  // elsewhere the code has no wait (it is compiled for sm_80)
  BHYT_CUDA(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}

// A kernel over rows, which begins with begin_among_rows(): early where there are few of them, for then the time between kernels counts.
template <class... Params, class... Args>
void launch_rows(Context& ctx, std::int64_t rows, void (*kernel)(Params...), unsigned blocks, int threads, const Args&... args) {
  constexpr std::int64_t kFew = 256;
  if (rows <= kFew)
    launch_early(ctx, kernel, dim3(blocks), threads, 0, args...);
  else
    kernel<<<blocks, static_cast<unsigned>(threads), 0, stream(ctx)>>>(args...);
}
__device__ __forceinline__ void begin_among_rows() {
  let_next_begin();
  wait_for_previous();
}

}  // namespace bhyt::cuda
