// The norm family on the GPU, backward: as many blocks as the GPU holds at a time walk the rows, the next row on its way while this one is
// worked on, and every group has its rows in a fixed order: parameter gradients have the same bits in every run.
#include <map>
#include <utility>

#include "ops/norm/norm_row.cuh"

namespace bhyt::cuda {

namespace {

__device__ __forceinline__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// γ with the constant output factor.
template <class T, class S>
__device__ __forceinline__ void load_gains(const NormParams& p, float (&gamma)[S::K][Vec<T>::n]) {
  constexpr int V = Vec<T>::n;
#pragma unroll
  for (int k = 0; k < S::K; ++k)
    if (const int col = column<T, S::G>(k); col < p.c) {
      load_params<V>(p.gamma, col, gamma[k]);
#pragma unroll
      for (int i = 0; i < V; ++i) gamma[k][i] *= p.out_factor;
    }
}

// A piece of a row through γ, the gate and the map: g from dz to du. W: which column sums there are: dγ; dγ and dβ; dγ, dg and db.
// Columns: whether someone wants them. t: tanh of SeeDNorm's x·b. Adds to the row's sums of du·(x − mean) and du, and to the gradient of t.
template <class M, bool Columns, int W, int K, int V>
__device__ __forceinline__ void through_map(const NormParams& p, int k, int col, RowScale r, float shift, float t, const float (&gamma)[V],
                                            const float (&v)[V], float (&g)[V], float (&acc)[W][K][V], float& sum1, float& sum0,
                                            float& dt) {
  float gates[V];
  if constexpr (W == 3) load_params<V>(p.gate, col, gates);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float centred = v[i] - r.mean, u = r.a * centred + shift, y = M::value(u), d = g[i];
    float gain = gamma[i];
    if constexpr (Columns) acc[0][k][i] += d * y;
    if constexpr (Columns && W == 2) acc[1][k][i] += d;
    if constexpr (W == 3) {
      const float gate = p.out_factor * gates[i];
      gain += t * gate;
      if constexpr (Columns) acc[1][k][i] += t * d * y;
      dt += d * y * gate;
    }
    g[i] = gain * d * M::slope(u, y);
    sum1 += g[i] * centred;
    sum0 += g[i];
  }
}

// A piece of dx: du, the statistic's part and SeeDNorm's (dp: the gradient of x·b) are added to out.
template <bool Columns, int W, int K, int V>
__device__ __forceinline__ void add_gradient(const NormParams& p, int k, int col, float a, StatisticGradient through, float dp,
                                             const float (&v)[V], const float (&g)[V], float (&acc)[W][K][V], float (&out)[V]) {
  float b[V];
  if constexpr (W == 3) load_params<V>(p.direction, col, b);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    out[i] += a * g[i] + through.slope * v[i] + through.level;
    if constexpr (W == 3) {
      out[i] += dp * b[i];
      if constexpr (Columns) acc[2][k][i] += dp * v[i];
    }
  }
}

// Of the groups of this block, in order: acc's column sums, to the block's own place. column_sums: [C], of the groups so far where a block
// has several.
template <class T, class S, int W>
__device__ __forceinline__ void store_columns(const float (&acc)[W][S::K][Vec<T>::n], int c, float* part) {
  extern __shared__ float column_sums[];
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

// The block's sums of the scalars' gradients.
template <int threads>
__device__ __forceinline__ void store_scalars(float (&s)[kScalars], GroupSums& sums, float* scalars) {
#pragma unroll
  for (int k = 0; k < kScalars; ++k) s[k] = sums.of<threads>(s[k]);
  if (threadIdx.x == 0)
#pragma unroll
    for (int k = 0; k < kScalars; ++k) scalars[blockIdx.x * kScalars + k] = s[k];
}

// What has come of the next row, for its turn: x and dz as numbers, and dx as it was.
template <class T, int K, int V>
__device__ __forceinline__ void take_next(const uint4 (&next_x)[K], const uint4 (&next_dz)[K], const uint4 (&next_dx)[K], float (&v)[K][V],
                                          float (&g)[K][V], uint4 (&before)[K]) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    Vec<T>::unpack(next_x[k], v[k]);
    Vec<T>::unpack(next_dz[k], g[k]);
    before[k] = next_dx[k];
  }
}

// part [blocks, W, C], scalars [blocks, kScalars]. The constant output factor is in γ and g from the start; the sums that hold neither get
// it in columns_kernel.
template <class T, class M, class S, int W, bool Columns>
__global__ void __launch_bounds__(S::threads, W == 1 && S::K == 2 ? 512 / S::threads : 1)
    backward_kernel(NormParams p, Matrix<T> x, Matrix<T> dz, Matrix<T> dx, bool accumulate, float* part, float* scalars) {
  constexpr int V = Vec<T>::n, G = S::G, K = S::K, groups = S::groups;
  GroupSums sums = group_sums();
  const bool first = threadIdx.x % G == 0;
  const float shift = p.shift ? *p.shift : 0.f;
  float acc[W][K][V] = {}, gamma[K][V] = {};
  RowScalars total;
  load_gains<T, S>(p, gamma);
  std::int64_t stride = std::int64_t{gridDim.x} * groups, row = std::int64_t{blockIdx.x} * groups + threadIdx.x / G;
  uint4 next_x[K], next_dz[K], next_dx[K], before[K];
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
    float v[K][V], g[K][V], sum1 = 0, sum0 = 0, dt = 0;
    take_next<T>(next_x, next_dz, next_dx, v, g, before);
    fetch_row(row + stride);
    const float t = W == 3 ? tanhf(stats.s1) : 0.f;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const int col = column<T, G>(k);
      if (!live || col >= p.c) continue;
      through_map<M, Columns>(p, k, col, r, shift, t, gamma[k], v[k], g[k], acc, sum1, sum0, dt);
    }
    if (p.stat != Stat::none || p.scale) sum1 = sums.of<G>(sum1);
    if (p.stat == Stat::mean_var || p.shift) sum0 = sums.of<G>(sum0);
    const float dp = W == 3 ? sums.of<G>(dt) * (1 - t * t) : 0.f;
    if (!live) continue;
    const StatisticGradient through = statistic_backward(p, row, stats, r, RowSums{sum1, sum0}, first, total);
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (const int col = column<T, G>(k); col < p.c) {
        float out[V] = {};
        if (accumulate) Vec<T>::unpack(before[k], out);
        add_gradient<Columns>(p, k, col, r.a, through, dp, v[k], g[k], acc, out);
        Vec<T>::store(dx.data + row * dx.ld + col, out);
      }
  }
  if constexpr (Columns) store_columns<T, S>(acc, p.c, part);
  float s[kScalars] = {total.scale, total.shift, total.ms_correction, total.constant_correction};
  store_scalars<S::threads>(s, sums, scalars);
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
