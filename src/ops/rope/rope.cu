#include "core/cuda.cuh"
#include "ops/rope/rope.h"

namespace bhyt::cuda {

namespace {

// V values: by 16 bytes where they come in such pieces.
template <int V, class T>
__device__ __forceinline__ void load(const T* p, float* v) {
  if constexpr (V == 1) {
    v[0] = load1(p);
  } else {
#pragma unroll
    for (int k = 0; k < V; k += Vec<T>::n) Vec<T>::load(p + k, v + k);
  }
}
template <int V, class T>
__device__ __forceinline__ void store(T* p, const float* v) {
  if constexpr (V == 1)
    store1(p, v[0]);
  else
    Vec<T>::store(p, v);
}

constexpr int kHeads = 4;

// One thread turns the V pairs (j, j + D/2) of up to four heads of one row, which share their angles.
template <class T, int V>
__global__ void rope_kernel(T* x, std::int64_t ld, const float* table, int heads, int d, std::int64_t seq, std::int64_t start,
                            const std::int32_t* positions, float sign, std::int64_t rows) {
  const int half = d / 2, parts = half / V, pieces = parts * ((heads + kHeads - 1) / kHeads);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const std::int64_t position = positions ? positions[row] : start + row % seq;
  for (int i = threadIdx.x; i < pieces; i += blockDim.x) {
    const int j = i % parts * V, first = i / parts * kHeads;
    const float *cosine = table + position * d + j, *sine = cosine + half;
    T* a = x + row * ld + static_cast<std::int64_t>(first) * d + j;
    float c[V], s[V], u[kHeads][V], w[kHeads][V];
    load<V>(cosine, c);
    load<V>(sine, s);
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (first + h < heads) load<V>(a + h * d, u[h]), load<V>(a + h * d + half, w[h]);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h >= heads) break;
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float left = u[h][k] * c[k] - w[h][k] * (sign * s[k]);
        w[h][k] = w[h][k] * c[k] + u[h][k] * (sign * s[k]);
        u[h][k] = left;
      }
      store<V>(a + h * d, u[h]);
      store<V>(a + h * d + half, w[h]);
    }
  }
}

}  // namespace

void rope(const Tensor& x, const Tensor& table, const RopeOptions& o) {
  constexpr int kThreads = 256;
  if (x.rows() == 0) return;
  dispatch_float(x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto launch = [&](auto wide) {
      constexpr int V = decltype(wide)::value;
      const std::int64_t pieces = (o.head_dim / 2 / V) * ((o.heads + kHeads - 1) / kHeads);
      unsigned across = 1;
      while (across < pieces && across < kThreads) across *= 2;
      const dim3 block(across, kThreads / across);
      rope_kernel<T, V><<<blocks_for(x.rows(), block.y), block, 0, stream()>>>(
          x.as<T>(), x.ld, table.as<float>(), static_cast<int>(o.heads), static_cast<int>(o.head_dim), o.seq, o.start,
          o.positions ? o.positions.as<std::int32_t>() : nullptr, o.inverse ? -1.f : 1.f, x.rows());
    };
    if (aligned16(x) && aligned16(table) && o.head_dim / 2 % Vec<T>::n == 0)
      launch(std::integral_constant<int, Vec<T>::n>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
  check_launch("rope");
}

}  // namespace bhyt::cuda
