#include "core/cuda.cuh"
#include "ops/rope/rope.h"

namespace bhyt::cuda {

namespace {

// One thread rotates V pairs (j, j + D/2) of one head of one row.
template <class T, int V>
__global__ void rope_kernel(T* x, std::int64_t ld, const float* table, int heads, int d, std::int64_t seq, std::int64_t start,
                            const std::int32_t* positions, float sign, std::int64_t total) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const int half = d / 2, parts = half / V, j = static_cast<int>(i % parts) * V, head = static_cast<int>(i / parts % heads);
  const std::int64_t row = i / parts / heads, position = positions ? positions[row] : start + row % seq;
  T *a = x + row * ld + head * d + j, *b = a + half;
  const float *cosine = table + position * d + j, *sine = cosine + half;
  float u[V], w[V], c[V], s[V];
  if constexpr (V == 1) {
    u[0] = load1(a);
    w[0] = load1(b);
    c[0] = *cosine;
    s[0] = *sine;
  } else {
    Vec<T>::load(a, u);
    Vec<T>::load(b, w);
#pragma unroll
    for (int k = 0; k < V; k += 4) {
      Vec<float>::load(cosine + k, c + k);
      Vec<float>::load(sine + k, s + k);
    }
  }
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float sine = sign * s[k], left = u[k] * c[k] - w[k] * sine;
    w[k] = w[k] * c[k] + u[k] * sine;
    u[k] = left;
  }
  if constexpr (V == 1) {
    store1(a, u[0]);
    store1(b, w[0]);
  } else {
    Vec<T>::store(a, u);
    Vec<T>::store(b, w);
  }
}

}  // namespace

void rope(Context& ctx, const Tensor& x, const Tensor& table, const RopeOptions& o) {
  constexpr int kThreads = 256;
  if (x.rows() == 0) return;
  dispatch_float(x.dtype, [&](auto t) {
    using T = decltype(t);
    const auto launch = [&](auto wide) {
      constexpr int V = decltype(wide)::value;
      const std::int64_t total = x.rows() * o.heads * (o.head_dim / 2 / V);
      rope_kernel<T, V><<<blocks_for(total, kThreads), kThreads, 0, stream(ctx)>>>(
          x.as<T>(), x.ld, table.as<float>(), static_cast<int>(o.heads), static_cast<int>(o.head_dim), o.seq, o.start,
          o.positions ? o.positions.as<std::int32_t>() : nullptr, o.inverse ? -1.f : 1.f, total);
    };
    if (aligned16(x) && aligned16(table) && o.head_dim / 2 % Vec<T>::n == 0)
      launch(std::integral_constant<int, Vec<T>::n>{});
    else
      launch(std::integral_constant<int, 1>{});
  });
  check_launch("rope");
}

}  // namespace bhyt::cuda
