// Rows in registers, for norm.cu and norm_backward.cu: a row belongs to a group of G threads that read it once, in pieces of 16 bytes.
#pragma once

#include <type_traits>

#include "ops/norm/norm.cuh"

namespace bhyt::cuda {

// How a row lies in its threads: G of them, each with K pieces of 16 bytes; and how many threads make a block. Each kernel's choices are
// the fastest of what an H200 was measured with.
template <int G_, int K_, int threads_>
struct Shape {
  static constexpr int G = G_, K = K_, threads = threads_, groups = threads / G;
};

// Sums over the G threads of a row; every thread of the block takes part. Successive sums alternate between two places in shared memory,
// which saves a barrier.
struct GroupSums {
  float (&places)[2][32];
  int side = 0;

  template <int G>
  __device__ __forceinline__ float of(float v) {
    v = warp_sum(v);
    if constexpr (G > 32) {
      side ^= 1;
      float* r = places[side];
      if (threadIdx.x % 32 == 0) r[threadIdx.x / 32] = v;
      __syncthreads();
      const int first = threadIdx.x / G * (G / 32);
      v = 0;
#pragma unroll
      for (int i = 0; i < G / 32; ++i) v += r[first + i];
    }
    return v;
  }
};
__device__ __forceinline__ GroupSums group_sums() {
  __shared__ float places[2][32];
  return {places};
}

template <class T, int G>
__device__ __forceinline__ int column(int piece) {
  return (piece * G + threadIdx.x % G) * Vec<T>::n;
}

// A piece of a row as it lies in memory, on its way; zeros beyond the row.
template <class T>
__device__ __forceinline__ uint4 fetch(const T* row, int col, bool inside) {
  return inside ? *reinterpret_cast<const uint4*>(row + col) : make_uint4(0, 0, 0, 0);
}

// V consecutive parameters from a multiple of V on, by 16-byte loads: one by one they would cost more than the row itself.
template <int V>
__device__ __forceinline__ void load_params(const float* p, int col, float* v) {
#pragma unroll
  for (int i = 0; i < V; i += 4) Vec<float>::load(p + col + i, v + i);
}

template <class T>
struct Matrix {
  T* data;
  std::int64_t ld;
};
template <class T>
Matrix<T> matrix(const Tensor& t) {
  return {t ? t.as<T>() : nullptr, t.ld};
}

// The hardware's tanh, within 2^-10.9 of the value: a quarter of a bf16 rounding step. fp32 rows take core/math.h's.
struct HardTanhMap {
  __device__ __forceinline__ static float value(float u) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(u));
    return y;
  }
  __device__ __forceinline__ static float slope(float, float y) { return 1.f - y * y; }
};
template <class T, class M>
using Fast = std::conditional_t<std::is_same_v<T, bf16> && std::is_same_v<M, TanhMap>, HardTanhMap, M>;

inline constexpr int kWidest = 1024;  // pieces of 16 bytes in a row

template <class T>
bool fits(std::int64_t c, const NormSite& s) {
  return c % Vec<T>::n == 0 && c <= kWidest * Vec<T>::n && aligned16(s.gamma) && aligned16(s.beta) && aligned16(s.gate) &&
         aligned16(s.direction);
}

}  // namespace bhyt::cuda
