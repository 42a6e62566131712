#include "ops/gemm/bytes.h"

#include <cuda_fp8.h>

#include "core/cuda.cuh"
#include "ops/gemm/bytes.cuh"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 256;

template <class W>
constexpr float kMost = 127;
template <>
constexpr float kMost<Fp8> = 448;

__device__ __forceinline__ unsigned byte_of(float v, std::int8_t) {
  return static_cast<unsigned>(max(-127, min(127, __float2int_rn(v)))) & 255u;
}
__device__ __forceinline__ unsigned byte_of(float v, Fp8) { return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3); }

// The largest over the block, in every thread; NaN where one is.
__device__ __forceinline__ float block_top(float v, float* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, v, o);
    v = other > v || other != other ? other : v;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = shared[0];
  for (int i = 1; i < kThreads / 32; ++i) v = shared[i] > v || shared[i] != shared[i] ? shared[i] : v;
  return v;
}

template <class T, class W>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const T* w, std::int64_t ldw, int cols, const float* by, float factor, unsigned* out, int words, float* scales) {
  __shared__ float shared[kThreads / 32];
  const T* const row = w + static_cast<std::int64_t>(blockIdx.x) * ldw;
  const auto value = [&](int i) { return i < cols ? load1(row + i) * (by ? factor * by[i] : factor) : 0.f; };
  float top = 0;
  for (int i = threadIdx.x; i < cols; i += kThreads) {
    const float v = fabsf(value(i));
    top = v > top || !isfinite(v) ? v + (v - v) : top;  // NaN for what is not finite
  }
  top = block_top(top, shared);
  const bool any = top > kLeastWeight;
  const float inverse = any ? kMost<W> / top : 0.f;
  if (threadIdx.x == 0) scales[blockIdx.x] = top / kMost<W>;
  for (int i = threadIdx.x; i < words; i += kThreads) {
    unsigned word = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      constexpr int kColumn[4] = {2, 0, 3, 1};
      if (any) word |= byte_of(value(4 * i + kColumn[b]) * inverse, W{}) << 8 * b;
    }
    out[static_cast<std::int64_t>(blockIdx.x) * words + i] = word;
  }
}

template <class T, class W>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const unsigned* w, int words, const float* scales, T* out, std::int64_t ld, int cols) {
  const float scale = scales[blockIdx.x];
  T* const row = out + static_cast<std::int64_t>(blockIdx.x) * ld;
  for (int i = threadIdx.x; i < words; i += kThreads) {
    const Four four = widen_four<W>(w[static_cast<std::int64_t>(blockIdx.x) * words + i]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const unsigned pair = e < 2 ? four.first : four.second;
      if (4 * i + e < cols) store1(row + 4 * i + e, __uint_as_float(e % 2 ? pair & 0xFFFF0000u : pair << 16) * scale);
    }
  }
}

template <class F>
void dispatch_bytes(DType type, F&& f) {
  if (type == DType::i8)
    f(std::int8_t{});
  else
    f(Fp8{});
}

}  // namespace

void round_to_bytes(Context& ctx, const Tensor& w, const Tensor& by, float factor, const Tensor& out) {
  if (w.size() == 0) return;
  dispatch_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    dispatch_bytes(out.dtype, [&](auto b) {
      round_kernel<T, decltype(b)><<<static_cast<unsigned>(w.rows()), kThreads, 0, stream(ctx)>>>(
          w.as<T>(), w.ld, static_cast<int>(w.cols()), by.as<float>(), factor, out.as<unsigned>(), static_cast<int>(out.ld / 4),
          byte_scales(out));
    });
  });
  check_launch("round_to_bytes");
}

void widen(Context& ctx, const Tensor& w, const Tensor& out) {
  if (w.size() == 0) return;
  dispatch_float(out.dtype, [&](auto t) {
    using T = decltype(t);
    dispatch_bytes(w.dtype, [&](auto b) {
      widen_kernel<T, decltype(b)><<<static_cast<unsigned>(w.rows()), kThreads, 0, stream(ctx)>>>(
          w.as<unsigned>(), static_cast<int>(w.ld / 4), byte_scales(w), out.as<T>(), out.ld, static_cast<int>(out.cols()));
    });
  });
  check_launch("widen");
}

}  // namespace bhyt::cuda
