// The norm family on the GPU. A row belongs to a group of G threads that hold it in registers: read once, reduced, mapped, written once.
// The forward has a group per row. In the backward, as many blocks as the GPU holds at a time walk the rows, the next row on its way while
// this one is worked on, and every group has its rows in a fixed order: parameter gradients have the same bits in every run.
#include <map>
#include <utility>

#include "ops/norm/norm.cuh"

namespace bhyt::cuda {

namespace {

// How a row lies in its threads: G of them, each with K pieces of 16 bytes; and how many threads make a block. The choices below are the
// fastest of what an H200 was measured with.
template <int G_, int K_, int threads_>
struct Shape {
  static constexpr int G = G_, K = K_, threads = threads_, groups = threads / G;
};

// Sums over the G threads of a row; every thread of the block takes part. Successive sums alternate between two places in shared memory,
// which saves a barrier.
template <int G>
__device__ __forceinline__ float group_sum(float v, float (&warp_sums)[2][32], int& side) {
  v = warp_sum(v);
  if constexpr (G > 32) {
    side ^= 1;
    float* r = warp_sums[side];
    if (threadIdx.x % 32 == 0) r[threadIdx.x / 32] = v;
    __syncthreads();
    const int first = threadIdx.x / G * (G / 32);
    v = 0;
#pragma unroll
    for (int i = 0; i < G / 32; ++i) v += r[first + i];
  }
  return v;
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

__device__ __forceinline__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

template <class T>
struct Matrix {
  T* data;
  std::int64_t ld;
};
template <class T>
Matrix<T> matrix(const Tensor& t) {
  return {t ? t.as<T>() : nullptr, t.ld};
}

// The row is kept as it lies in memory, which takes half the registers. Plain: no centring, gate, β or auxiliary loss.
template <class T, class M, class S, bool Plain>
__global__ void __launch_bounds__(S::threads, Plain&& S::K == 4 ? 1024 / S::threads : 1)
    forward_kernel(NormParams p, Matrix<T> x, Matrix<T> add, Matrix<T> sum, Matrix<T> z) {
  constexpr int V = Vec<T>::n, G = S::G, K = S::K;
  __shared__ float warp_sums[2][32];
  int side = 0;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * S::groups + threadIdx.x / G;
  const bool live = row < p.n;
  uint4 raw[K];
  float gamma[K][V];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int col = column<T, G>(k);
    raw[k] = fetch(x.data + row * x.ld, col, live && col < p.c);
  }
  if (add.data) {
    uint4 h[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = column<T, G>(k);
      h[k] = fetch(add.data + row * add.ld, col, live && col < p.c);
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float v[V], w[V];
      Vec<T>::unpack(raw[k], v);
      Vec<T>::unpack(h[k], w);
#pragma unroll
      for (int i = 0; i < V; ++i) v[i] += w[i];
      raw[k] = Vec<T>::pack(v);
      if (const int col = column<T, G>(k); live && col < p.c) *reinterpret_cast<uint4*>(sum.data + row * sum.ld + col) = raw[k];
    }
  }
  // On their way before the sums, which wait for the row.
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (const int col = column<T, G>(k); col < p.c) load_params<V>(p.gamma, col, gamma[k]);
  const float shift = p.shift ? *p.shift : 0.f, inv = 1.f / static_cast<float>(p.c);
  const bool centred = !Plain && is_centred(p.stat);
  RowStats stats = live && p.stat == Stat::given ? kept_stats(p, row) : RowStats{0, 0};
  float s0 = 0, s1 = 0;
  if (centred) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float v[V];
      Vec<T>::unpack(raw[k], v);
#pragma unroll
      for (int i = 0; i < V; ++i) s1 += v[i];
    }
    s1 = group_sum<G>(s1, warp_sums, side) * inv;
  }
  if (p.stat == Stat::rms || centred || (!Plain && p.aux != 0)) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      float v[V];
      Vec<T>::unpack(raw[k], v);
      const float mean = centred && column<T, G>(k) < p.c ? s1 : 0.f;  // beyond the row everything is 0
#pragma unroll
      for (int i = 0; i < V; ++i) s0 += (v[i] - mean) * (v[i] - mean);
    }
    s0 = group_sum<G>(s0, warp_sums, side) * inv;
  }
  if (!Plain && p.gate) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (const int col = column<T, G>(k); col < p.c) {
        float v[V], b[V];
        Vec<T>::unpack(raw[k], v);
        load_params<V>(p.direction, col, b);
#pragma unroll
        for (int i = 0; i < V; ++i) s1 += v[i] * b[i];
      }
    s1 = group_sum<G>(s1, warp_sums, side);
  }
  if (!live) return;
  if (p.stat != Stat::given) stats = {s0, s1};
  if (threadIdx.x % G == 0) keep_stats(p, row, stats, s0);
  const RowScale r = row_scale(p, stats);
  const float t = !Plain && p.gate ? tanhf(s1) : 0.f;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int col = column<T, G>(k);
    if (col >= p.c) continue;
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

// Of the groups of this block, in order: acc's column sums, to the block's own place. column_sums: [C], of the groups so far where a block
// has several.
template <class T, class S, int W>
__device__ __forceinline__ void store_columns(const float (&acc)[W][S::K][Vec<T>::n], int c, float* column_sums, float* part) {
  constexpr int V = Vec<T>::n, G = S::G, K = S::K, groups = S::groups;
#pragma unroll
  for (int w = 0; w < W; ++w) {
    float* to = part + (static_cast<std::int64_t>(blockIdx.x) * W + w) * c;
    for (int group = 0; group < groups; ++group) {
      if (groups > 1) __syncthreads();
      if (static_cast<int>(threadIdx.x) / G != group) continue;
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (const int col = column<T, G>(k); col < c)
#pragma unroll
          for (int i = 0; i < V; i += 4) {
            float4 s = make_float4(acc[w][k][i], acc[w][k][i + 1], acc[w][k][i + 2], acc[w][k][i + 3]);
            if (group > 0) {
              const float4 m = *reinterpret_cast<const float4*>(column_sums + col + i);
              s = add(s, m);
            }
            *reinterpret_cast<float4*>((group == groups - 1 ? to : column_sums) + col + i) = s;
          }
    }
  }
}

// W: which column sums there are: dγ; dγ and dβ; dγ, dg and db. Columns: whether someone wants them. part [blocks, W, C], scalars
// [blocks, kScalars]. The constant output factor is in γ and g from the start; the sums that hold neither get it in columns_kernel.
template <class T, class M, class S, int W, bool Columns>
__global__ void __launch_bounds__(S::threads, W == 1 && S::K == 2 ? 512 / S::threads : 1)
    backward_kernel(NormParams p, Matrix<T> x, Matrix<T> dz, Matrix<T> dx, bool accumulate, float* part, float* scalars) {
  constexpr int V = Vec<T>::n, G = S::G, K = S::K, groups = S::groups;
  __shared__ float warp_sums[2][32];
  extern __shared__ float column_sums[];
  int side = 0;
  const bool first = threadIdx.x % G == 0;
  const float shift = p.shift ? *p.shift : 0.f;
  float acc[W][K][V] = {}, gamma[K][V] = {};
  RowScalars total;
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (const int col = column<T, G>(k); col < p.c) {
      load_params<V>(p.gamma, col, gamma[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) gamma[k][i] *= p.out_factor;
    }

  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * groups;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / G;
  uint4 next_x[K], next_dz[K], next_dx[K];
  RowStats next{};
  const auto fetch_row = [&](std::int64_t r) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = column<T, G>(k);
      const bool inside = r < p.n && col < p.c;
      next_x[k] = fetch(x.data + r * x.ld, col, inside);
      next_dz[k] = fetch(dz.data + r * dz.ld, col, inside);
      if (accumulate) next_dx[k] = fetch(dx.data + r * dx.ld, col, inside);
    }
    if (r < p.n) next = kept_stats(p, r);
  };
  fetch_row(row);
  for (std::int64_t base = row - threadIdx.x / G; base < p.n; base += stride, row += stride) {
    const bool live = row < p.n;
    const RowStats stats = next;
    const RowScale r = live ? row_scale(p, stats) : RowScale{0, 0, 0};
    float v[K][V], g[K][V];
    uint4 before[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      Vec<T>::unpack(next_x[k], v[k]);
      Vec<T>::unpack(next_dz[k], g[k]);
      before[k] = next_dx[k];
    }
    fetch_row(row + stride);
    const float t = W == 3 ? tanhf(stats.s1) : 0.f;
    float sum1 = 0, sum0 = 0, dt = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = column<T, G>(k);
      if (!live || col >= p.c) continue;
      float gates[V];
      if constexpr (W == 3) load_params<V>(p.gate, col, gates);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float centred = v[k][i] - r.mean, u = r.a * centred + shift, y = M::value(u), d = g[k][i];
        float gain = gamma[k][i];
        if constexpr (Columns) acc[0][k][i] += d * y;
        if constexpr (Columns && W == 2) acc[1][k][i] += d;
        if constexpr (W == 3) {
          const float gate = p.out_factor * gates[i];
          gain += t * gate;
          if constexpr (Columns) acc[1][k][i] += t * d * y;
          dt += d * y * gate;
        }
        g[k][i] = gain * d * M::slope(u, y);
        sum1 += g[k][i] * centred;
        sum0 += g[k][i];
      }
    }
    if (p.stat != Stat::none || p.scale) sum1 = group_sum<G>(sum1, warp_sums, side);
    if (p.stat == Stat::mean_var || p.shift) sum0 = group_sum<G>(sum0, warp_sums, side);
    float dp = 0;
    if constexpr (W == 3) dp = group_sum<G>(dt, warp_sums, side) * (1 - t * t);
    if (!live) continue;
    const StatisticGradient through = statistic_backward(p, row, stats, r, RowSums{sum1, sum0}, first, total);
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = column<T, G>(k);
      if (col >= p.c) continue;
      float out[V] = {}, b[V];
      if (accumulate) Vec<T>::unpack(before[k], out);
      if constexpr (W == 3) load_params<V>(p.direction, col, b);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        out[i] += r.a * g[k][i] + through.slope * v[k][i] + through.level;
        if constexpr (W == 3) {
          out[i] += dp * b[i];
          if constexpr (Columns) acc[2][k][i] += dp * v[k][i];
        }
      }
      Vec<T>::store(dx.data + row * dx.ld + col, out);
    }
  }
  if constexpr (Columns) store_columns<T, S>(acc, p.c, column_sums, part);
  float sums[kScalars] = {total.scale, total.shift, total.ms_correction, total.constant_correction};
#pragma unroll
  for (int k = 0; k < kScalars; ++k) sums[k] = group_sum<S::threads>(sums[k], warp_sums, side);
  if (threadIdx.x == 0)
#pragma unroll
    for (int k = 0; k < kScalars; ++k) scalars[blockIdx.x * kScalars + k] = sums[k];
}

__device__ void add_scalar_sums(const float* sums, std::int64_t count, int k, int lane, float* to) {
  if (!to) return;
  double s = 0;
  for (std::int64_t b = lane; b < count; b += 32) s += sums[b * kScalars + k];
  s = warp_sum(s);
  if (lane == 0) *to += static_cast<float>(s);
}
__global__ void scalars_kernel(const float* sums, std::int64_t count, ScalarTargets targets) {
  add_scalar_sums(sums, count, threadIdx.x / 32, threadIdx.x % 32, targets.to[threadIdx.x / 32]);
}

// Where the column sums go, and the factor they still lack.
struct ColumnTargets {
  float* to[3];
  float factor[3];
};

// Adds the blocks' column sums to the gradients, every column in the same order every time; the last block of x adds the scalars.
// Four columns a thread, 8 such threads and 32 slices of the blocks.
__global__ void __launch_bounds__(256)
    columns_kernel(const float* part, int blocks, int wanted, int c, ColumnTargets columns, const float* scalars, ScalarTargets targets) {
  __shared__ float4 slices[32][9];
  if (blockIdx.x == gridDim.x - 1) {
    const int warp = (threadIdx.y * 8 + threadIdx.x) / 32;
    if (blockIdx.y == 0 && warp < kScalars) add_scalar_sums(scalars, blocks, warp, (threadIdx.y * 8 + threadIdx.x) % 32, targets.to[warp]);
    return;
  }
  const int j = (blockIdx.x * 8 + threadIdx.x) * 4, w = blockIdx.y;
  float* to = columns.to[w];
  if (!to) return;
  float4 s = make_float4(0, 0, 0, 0);
  if (j < c)
#pragma unroll 4
    for (int b = threadIdx.y; b < blocks; b += 32) {
      const float4 v = *reinterpret_cast<const float4*>(part + (static_cast<std::int64_t>(b) * wanted + w) * c + j);
      s = add(s, v);
    }
  slices[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.y != 0 || j >= c) return;
  for (int k = 1; k < 32; ++k) {
    const float4 v = slices[k][threadIdx.x];
    s = add(s, v);
  }
  const float factor = columns.factor[w];
  to[j] += factor * s.x;
  to[j + 1] += factor * s.y;
  to[j + 2] += factor * s.z;
  to[j + 3] += factor * s.w;
}

constexpr int kWidest = 1024;  // pieces of 16 bytes in a row

template <class T>
bool fits(std::int64_t c, const NormSite& s) {
  return c % Vec<T>::n == 0 && c <= kWidest * Vec<T>::n && aligned16(s.gamma) && aligned16(s.beta) && aligned16(s.gate) &&
         aligned16(s.direction);
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
template <class T, class F>
void with_backward_shape(std::int64_t c, F&& f) {
  const std::int64_t pieces = c / Vec<T>::n;
  if (pieces <= 32) return f(Shape<32, 1, 128>{});
  if (pieces <= 64) return f(Shape<32, 2, 128>{});
  if (pieces <= 128) return f(Shape<64, 2, 256>{});
  if (pieces <= 256) return f(Shape<128, 2, 128>{});
  if (pieces <= 512) return f(Shape<256, 2, 256>{});
  return f(Shape<512, 2, 512>{});
}

// As many blocks as fit on the GPU at a time; asked once per kernel and context.
struct Occupancy {
  explicit Occupancy(Context&) {}
  std::map<std::pair<const void*, std::size_t>, int> known;
};
template <class Kernel>
int resident_blocks(Context& ctx, Kernel kernel, int threads, std::size_t shared) {
  int& per = ctx.keep<Occupancy>().known[{reinterpret_cast<const void*>(kernel), shared}];
  if (per == 0) BHYT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, kernel, threads, shared));
  return std::max(per, 1) * multiprocessors(ctx);
}

template <class T, class M, int W>
void launch_backward(Context& ctx, const NormParams& p, const NormGrads& grads, const NormBackward& call) {
  with_backward_shape<T>(p.c, [&](auto shape) {
    using S = decltype(shape);
    const bool wanted = grads.columns();
    const auto whole = backward_kernel<T, M, S, W, true>;
    const auto kernel = wanted ? whole : backward_kernel < T, M, S, W == 2 ? 1 : W, false > ;
    const std::size_t shared = S::groups > 1 ? static_cast<std::size_t>(p.c) * sizeof(float) : 0;
    // With or without columns, rows are shared out the same way, and the scalars' gradients have the same bits.
    const int blocks =
        static_cast<int>(std::min<std::int64_t>(blocks_for(p.n, S::groups), resident_blocks(ctx, whole, S::threads, shared)));
    const std::size_t columns = wanted ? static_cast<std::size_t>(blocks) * W * p.c : 0;
    float* part = static_cast<float*>(ctx.scratch((columns + static_cast<std::size_t>(blocks) * kScalars) * sizeof(float)));
    kernel<<<blocks, S::threads, shared, stream(ctx)>>>(p, matrix<T>(call.x), matrix<T>(call.dz), matrix<T>(call.dx), call.accumulate, part,
                                                        part + columns);
    if (!wanted) return add_scalars(ctx, part, blocks, scalar_targets(grads, call.given));
    const ColumnTargets targets{{pointer(grads.gamma), W == 3 ? pointer(grads.gate) : pointer(grads.beta), pointer(grads.direction)},
                                {p.out_factor, p.out_factor, 1}};
    columns_kernel<<<dim3(blocks_for(p.c, 32) + 1, W), dim3(8, 32), 0, stream(ctx)>>>(part, blocks, W, p.c, targets, part + columns,
                                                                                      scalar_targets(grads, call.given));
  });
}

}  // namespace

void add_scalars(Context& ctx, const float* sums, std::int64_t count, const ScalarTargets& targets) {
  scalars_kernel<<<1, 32 * kScalars, 0, stream(ctx)>>>(sums, count, targets);
}

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
        kernel<<<blocks_for(p.n, S::groups), S::threads, 0, stream(ctx)>>>(p, matrix<T>(call.x), matrix<T>(call.add), matrix<T>(call.sum),
                                                                           matrix<T>(call.z));
      });
    });
  });
  check_launch("norm");
}

void norm_backward(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  NormParams p = make_params(site, call.x, call.stats, call.given);
  p.dms_in = pointer(call.dms);
  if (p.n == 0) return;
  dispatch_float(call.x.dtype, [&](auto t) {
    using T = decltype(t);
    if (!fits<T>(p.c, site) || !aligned16(call.x) || !aligned16(call.dz) || !aligned16(call.dx))
      return norm_backward_rows(ctx, site, grads, call);
    if (site.gate) return launch_backward<T, IdMap, 3>(ctx, p, grads, call);
    dispatch_map(site.map, [&](auto m) {
      using M = Fast<T, decltype(m)>;
      if (site.beta) return launch_backward<T, M, 2>(ctx, p, grads, call);
      return launch_backward<T, M, 1>(ctx, p, grads, call);
    });
  });
  check_launch("norm_backward");
}

}  // namespace bhyt::cuda
