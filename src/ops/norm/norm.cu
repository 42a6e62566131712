// The norm family on the GPU, forward: a group of threads per row holds it in registers; read once, reduced, mapped, written once.
#include "ops/norm/norm_row.cuh"

namespace bhyt::cuda {

namespace {

// A row on its way into the registers; zeros beyond its end, and where the group has none.
template <class T, class S>
__device__ __forceinline__ void load_row(const NormParams& p, uint4 (&raw)[S::K], const Matrix<T>& from, std::int64_t row, bool live) {
#pragma unroll
  for (int k = 0; k < S::K; ++k) {
    const int col = column<T, S::G>(k);
    raw[k] = fetch(from.data + row * from.ld, col, live && col < p.c);
  }
}

template <class T, class S>
__device__ __forceinline__ void load_gamma(const NormParams& p, float (&gamma)[S::K][Vec<T>::n]) {
#pragma unroll
  for (int k = 0; k < S::K; ++k) {
    if (!p.gamma)
#pragma unroll
      for (int i = 0; i < Vec<T>::n; ++i) gamma[k][i] = 1.f;
    else if (const int col = column<T, S::G>(k); col < p.c)
      load_params<Vec<T>::n>(p.gamma, col, gamma[k]);
  }
}

template <int V>
__device__ __forceinline__ void plus(float (&v)[V], const float (&w)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) v[i] += w[i];
}

// What a thread adds to its row's sums: its values; squares of their distance from the mean; their products with parameters.
template <class T, class S>
__device__ __forceinline__ float sum_of_values(const uint4 (&raw)[S::K]) {
  constexpr int V = Vec<T>::n;
  float s = 0;
#pragma unroll
  for (int k = 0; k < S::K; ++k) {
    float v[V];
    Vec<T>::unpack(raw[k], v);
#pragma unroll
    for (int i = 0; i < V; ++i) s += v[i];
  }
  return s;
}
template <int V>
__device__ __forceinline__ float plus_squares(float s, const float (&v)[V], float mean) {
#pragma unroll
  for (int i = 0; i < V; ++i) s += (v[i] - mean) * (v[i] - mean);
  return s;
}
template <class T, class S>
__device__ __forceinline__ float plus_products(float s, const uint4 (&raw)[S::K], const float* params, int c) {
  constexpr int V = Vec<T>::n;
#pragma unroll
  for (int k = 0; k < S::K; ++k)
    if (const int col = column<T, S::G>(k); col < c) {
      float v[V], b[V];
      Vec<T>::unpack(raw[k], v);
      load_params<V>(params, col, b);
#pragma unroll
      for (int i = 0; i < V; ++i) s += v[i] * b[i];
    }
  return s;
}

// The row is kept as it lies in memory, which takes half the registers. Where every row passes, pieces are unpacked here and not in the
// parts: ptxas spills more otherwise. Plain: no centring, gate, β or auxiliary loss.
template <class T, class M, class S, bool Plain>
__global__ void __launch_bounds__(S::threads, Plain&& S::K == 4 ? 1024 / S::threads : 1)
    forward_kernel(NormParams p, Matrix<T> x, Matrix<T> add, Matrix<T> sum, Matrix<T> z) {
  constexpr int V = Vec<T>::n, G = S::G, K = S::K;
  begin_among_rows();
  GroupSums sums = group_sums();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * S::groups + threadIdx.x / G;
  const bool live = row < p.n;
  uint4 raw[K];
  float gamma[K][V];
  load_row<T, S>(p, raw, x, row, live);
  if (add.data) {
    uint4 h[K];
    load_row<T, S>(p, h, add, row, live);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float v[V], w[V];
      Vec<T>::unpack(raw[k], v);
      Vec<T>::unpack(h[k], w);
      plus(v, w);
      raw[k] = Vec<T>::pack(v);
      if (const int col = column<T, G>(k); live && col < p.c) *reinterpret_cast<uint4*>(sum.data + row * sum.ld + col) = raw[k];
    }
  }
  load_gamma<T, S>(p, gamma);  // on its way before the sums, which wait for the row
  const float shift = p.shift ? *p.shift : 0.f, inv = 1.f / static_cast<float>(p.c);
  const bool centred = !Plain && is_centred(p.stat);
  RowStats stats = live && p.stat == Stat::given ? kept_stats(p, row) : RowStats{0, 0};
  float s0 = 0, s1 = 0;
  if (centred) s1 = sums.of<G>(sum_of_values<T, S>(raw)) * inv;
  if (p.stat == Stat::rms || centred || (!Plain && p.aux != 0)) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float v[V];
      Vec<T>::unpack(raw[k], v);
      s0 = plus_squares(s0, v, centred && column<T, G>(k) < p.c ? s1 : 0.f);  // beyond the row everything is 0
    }
    s0 = sums.of<G>(s0) * inv;
  }
  if (!Plain && p.gate) s1 = sums.of<G>(plus_products<T, S>(s1, raw, p.direction, p.c));
  if (!live) return;
  if (p.stat != Stat::given) stats = {s0, s1};
  if (threadIdx.x % G == 0) keep_stats(p, row, stats, s0);
  const RowScale r = row_scale(p, stats);
  const float t = !Plain && p.gate ? tanhf(s1) : 0.f;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (const int col = column<T, G>(k); col < p.c) {
      float v[V], extra[V];  // extra: SeeDNorm's g, or β
      Vec<T>::unpack(raw[k], v);
      if (!Plain && p.gate) load_params<V>(p.gate, col, extra);
      if (!Plain && p.beta) load_params<V>(p.beta, col, extra);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float g = gamma[k][i] + (!Plain && p.gate ? t * extra[i] : 0.f);
        v[i] = p.out_factor * (g * M::value(r.a * (v[i] - r.mean) + shift) + (!Plain && p.beta ? extra[i] : 0.f));
      }
      *reinterpret_cast<uint4*>(z.data + row * z.ld + col) = Vec<T>::pack(v);
    }
}

template <class T, class F>
void with_forward_shape(std::int64_t c, F&& f) {
  const std::int64_t pieces = c / Vec<T>::n;
  if (pieces <= 32) return f(Shape<32, 1, 128>{});
  if (pieces <= 64) return f(Shape<32, 2, 128>{});
  if (pieces <= 128) return f(Shape<32, 4, 128>{});
  if (pieces <= 256) return f(Shape<128, 2, 128>{});
  if (pieces <= 512) return f(Shape<256, 2, 256>{});
  return f(Shape<256, 4, 256>{});
}

}  // namespace

void norm(Context& ctx, const NormSite& site, const NormForward& call) {
  const NormParams p = make_params(site, call.x, call.stats, call.given);
  if (p.n == 0) return;
  dispatch_float(call.x.dtype, [&](auto t) {
    using T = decltype(t);
    if (!fits<T>(p.c, site) || !aligned16(call.x) || !aligned16(call.add) || !aligned16(call.sum) || !aligned16(call.z))
      return norm_rows(ctx, site, call);
    dispatch_map(site.map, [&](auto m) {
      using M = Fast<T, decltype(m)>;
      const bool plain = (p.stat == Stat::rms || p.stat == Stat::given || p.stat == Stat::none) && !p.gate && !p.beta && p.aux == 0;
      with_forward_shape<T>(p.c, [&](auto shape) {
        using S = decltype(shape);
        auto kernel = plain ? forward_kernel<T, M, S, true> : forward_kernel<T, M, S, false>;
        launch_rows(ctx, p.n, kernel, blocks_for(p.n, S::groups), S::threads, p, matrix<T>(call.x), matrix<T>(call.add),
                    matrix<T>(call.sum), matrix<T>(call.z));
      });
    });
  });
  check_launch("norm");
}

}  // namespace bhyt::cuda
