// The norm family on the GPU. A row belongs to a group of G threads that hold it in registers: read once, reduced, mapped, written once.
// The backward walks rows in a fixed order per group, so that parameter gradients have the same bits in every run.
#include "ops/norm/norm.cuh"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 256;  // per block
constexpr int kChunks = 4;     // 16-byte pieces of a row that a thread holds

// Sums over the G threads of a row; every thread of the block takes part.
template <int G>
__device__ __forceinline__ float group_sum(float v, float* room) {
  v = warp_sum(v);
  if constexpr (G > 32) {
    const int first = threadIdx.x / G * (G / 32);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
#pragma unroll
    for (int i = 0; i < G / 32; ++i) v += room[first + i];
  }
  return v;
}

template <class T, int G>
__device__ __forceinline__ int column(int chunk) {
  return (chunk * G + threadIdx.x % G) * Vec<T>::n;
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

template <class T>
struct Matrix {
  T* data;
  std::int64_t ld;
};
template <class T>
Matrix<T> matrix(const Tensor& t) {
  return {t ? t.as<T>() : nullptr, t.ld};
}

template <class T, class M, int G>
__global__ void __launch_bounds__(kThreads) forward_kernel(NormParams p, Matrix<T> x, Matrix<T> add, Matrix<T> sum, Matrix<T> z) {
  constexpr int V = Vec<T>::n;
  __shared__ float room[32];
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
  const bool live = row < p.n;
  float v[kChunks][V] = {};
#pragma unroll
  for (int k = 0; k < kChunks; ++k)
    if (const int col = column<T, G>(k); live && col < p.c) Vec<T>::load(x.data + row * x.ld + col, v[k]);
  if (add.data) {
    float h[kChunks][V] = {};
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (const int col = column<T, G>(k); live && col < p.c) Vec<T>::load(add.data + row * add.ld + col, h[k]);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int col = column<T, G>(k);
#pragma unroll
      for (int i = 0; i < V; ++i) v[k][i] = rounded<T>(v[k][i] + h[k][i]);
      if (live && col < p.c) Vec<T>::store(sum.data + row * sum.ld + col, v[k]);
    }
  }
  const float inv = 1.f / static_cast<float>(p.c);
  const bool centred = p.stat == Stat::mean_var || p.stat == Stat::mean_std;
  float s0 = 0, s1 = 0;
  if (centred) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
#pragma unroll
      for (int i = 0; i < V; ++i) s1 += v[k][i];
    s1 = group_sum<G>(s1, room) * inv;
  }
  if (p.stat == Stat::rms || centred || p.aux != 0) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const bool inside = column<T, G>(k) < p.c;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float d = inside ? v[k][i] - (centred ? s1 : 0.f) : 0.f;
        s0 += d * d;
      }
    }
    s0 = group_sum<G>(s0, room) * inv;
  }
  if (p.gate) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (const int col = column<T, G>(k); col < p.c) {
        float b[V];
        load_params<V>(p.direction, col, b);
#pragma unroll
        for (int i = 0; i < V; ++i) s1 += v[k][i] * b[i];
      }
    s1 = group_sum<G>(s1, room);
  }
  if (!live) return;
  if (threadIdx.x % G == 0) keep_stats(p, row, s0, s1);
  const RowScale r = row_scale(p, s0, s1, row);
  const float shift = p.shift ? *p.shift : 0.f, t = p.gate ? tanhf(s1) : 0.f;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int col = column<T, G>(k);
    if (col >= p.c) continue;
    float out[V], gamma[V], extra[V] = {};  // extra: SeeDNorm's g, or β
    load_params<V>(p.gamma, col, gamma);
    if (p.gate) load_params<V>(p.gate, col, extra);
    if (p.beta) load_params<V>(p.beta, col, extra);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float g = gamma[i] + (p.gate ? t * extra[i] : 0.f);
      out[i] = g * M::value(r.a * (v[k][i] - r.mean) + shift) + (p.beta ? extra[i] : 0.f);
    }
    Vec<T>::store(z.data + row * z.ld + col, out);
  }
}

// W: how many column sums are wanted: dγ; dγ and dβ; dγ, dg and db. part [blocks, W, C], scalars [blocks, kScalars].
template <class T, class M, int G, int W>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(NormParams p, Matrix<T> x, Matrix<T> dz, Matrix<T> dx, bool accumulate, float* part, float* scalars) {
  constexpr int V = Vec<T>::n;
  __shared__ float room[33];
  extern __shared__ float meet[];  // [C]
  const int groups = blockDim.x / G;
  const bool first = threadIdx.x % G == 0;
  const float shift = p.shift ? *p.shift : 0.f;
  float acc[W][kChunks][V] = {};
  Scalars total;

  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * groups;
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * groups; base < p.n; base += stride) {
    const std::int64_t row = base + threadIdx.x / G;
    const bool live = row < p.n;
    float v[kChunks][V] = {}, g[kChunks][V] = {};
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (const int col = column<T, G>(k); live && col < p.c) {
        Vec<T>::load(x.data + row * x.ld + col, v[k]);
        Vec<T>::load(dz.data + row * dz.ld + col, g[k]);
      }
    const float s0 = live && p.stats ? p.stats[row] : 0, s1 = live && p.stats ? p.stats[p.n + row] : 0;
    const RowScale r = live ? row_scale(p, s0, s1, row) : RowScale{0, 0, 0};
    const float t = W == 3 ? tanhf(s1) : 0.f;
    float sum1 = 0, sum0 = 0, dt = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int col = column<T, G>(k);
      if (!live || col >= p.c) continue;
      float gammas[V], gates[V];
      load_params<V>(p.gamma, col, gammas);
      if constexpr (W == 3) load_params<V>(p.gate, col, gates);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float centred = v[k][i] - r.mean, u = r.a * centred + shift, y = M::value(u), d = g[k][i];
        float gamma = gammas[i];
        acc[0][k][i] += d * y;
        if constexpr (W == 2) acc[1][k][i] += d;
        if constexpr (W == 3) {
          const float gate = gates[i];
          gamma += t * gate;
          acc[1][k][i] += t * d * y;
          dt += d * y * gate;
        }
        g[k][i] = gamma * d * M::slope(u, y);
        sum1 += g[k][i] * centred;
        sum0 += g[k][i];
      }
    }
    if (p.stat != Stat::none || p.scale) sum1 = group_sum<G>(sum1, room);
    if (p.stat == Stat::mean_var || p.shift) sum0 = group_sum<G>(sum0, room);
    float dp = 0;
    if constexpr (W == 3) dp = group_sum<G>(dt, room) * (1 - t * t);
    if (!live) continue;  // the sums above are block-wide only for groups wider than a warp, whose rows are live together or not at all
    const Reach reach = statistic_backward(p, row, s0, s1, r, sum1, sum0, first, total);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int col = column<T, G>(k);
      if (col >= p.c) continue;
      float out[V] = {}, b[V];
      if (accumulate) Vec<T>::load(dx.data + row * dx.ld + col, out);
      if constexpr (W == 3) load_params<V>(p.direction, col, b);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        out[i] += r.a * g[k][i] + reach.slope * v[k][i] + reach.level;
        if constexpr (W == 3) {
          out[i] += dp * b[i];
          acc[2][k][i] += dp * v[k][i];
        }
      }
      Vec<T>::store(dx.data + row * dx.ld + col, out);
    }
  }
  // Over the groups of this block, in order; then to the block's own place.
#pragma unroll
  for (int w = 0; w < W; ++w) {
    for (int group = 0; group < groups; ++group) {
      __syncthreads();
      if (static_cast<int>(threadIdx.x) / G != group) continue;
#pragma unroll
      for (int k = 0; k < kChunks; ++k)
        if (const int col = column<T, G>(k); col < p.c)
#pragma unroll
          for (int i = 0; i < V; ++i) meet[col + i] = group == 0 ? acc[w][k][i] : meet[col + i] + acc[w][k][i];
    }
    __syncthreads();
    for (int j = threadIdx.x; j < p.c; j += blockDim.x) part[(static_cast<std::int64_t>(blockIdx.x) * W + w) * p.c + j] = meet[j];
  }
  const float sums[kScalars] = {total.scale, total.shift, total.tilt, total.weight};
#pragma unroll
  for (int k = 0; k < kScalars; ++k) {
    const float s = block_sum(sums[k], room);
    if (threadIdx.x == 0) scalars[blockIdx.x * kScalars + k] = s;
  }
}

// Adds the blocks' column sums to the gradients: every column in the same order every time.
__global__ void columns_kernel(const float* part, int blocks, int wanted, int c, float* first, float* second, float* third) {
  __shared__ float room[8][33];
  const int j = blockIdx.x * 32 + threadIdx.x, w = blockIdx.y;
  float* to = w == 0 ? first : w == 1 ? second : third;
  if (!to) return;
  float s = 0;
  if (j < c)
    for (int b = threadIdx.y; b < blocks; b += 8) s += part[(static_cast<std::int64_t>(b) * wanted + w) * c + j];
  room[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (threadIdx.y != 0 || j >= c) return;
  for (int k = 1; k < 8; ++k) s += room[k][threadIdx.x];
  to[j] += s;
}

__global__ void scalars_kernel(const float* sums, std::int64_t count, float* scale, float* shift, float* tilt, float* weight) {
  float* to[kScalars] = {scale, shift, tilt, weight};
  const int k = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (!to[k]) return;
  double s = 0;
  for (std::int64_t b = lane; b < count; b += 32) s += sums[b * kScalars + k];
  s = warp_sum(s);
  if (lane == 0) *to[k] += static_cast<float>(s);
}

template <class T>
bool fits(std::int64_t c, const NormSite& s) {
  return c % Vec<T>::n == 0 && c <= kThreads * Vec<T>::n * kChunks && aligned16(s.gamma) && aligned16(s.beta) && aligned16(s.gate) &&
         aligned16(s.direction);
}

// The narrowest group whose threads hold a row of c elements.
template <class T, class F>
void with_group(std::int64_t c, F&& f) {
  const std::int64_t threads = (c + Vec<T>::n * kChunks - 1) / (Vec<T>::n * kChunks);
  if (threads <= 32) return f(std::integral_constant<int, 32>{});
  if (threads <= 64) return f(std::integral_constant<int, 64>{});
  if (threads <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

template <class T, class M, int W>
void launch_backward(const NormParams& p, const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  with_group<T>(p.c, [&](auto g) {
    constexpr int G = decltype(g)::value;
    constexpr int groups = kThreads / G;
    const int blocks = static_cast<int>(std::min<std::int64_t>(blocks_for(p.n, groups), multiprocessors() * 2));
    const std::size_t columns = static_cast<std::size_t>(blocks) * W * p.c, shared = static_cast<std::size_t>(p.c) * sizeof(float);
    float* part = static_cast<float*>(scratch((columns + static_cast<std::size_t>(blocks) * kScalars) * sizeof(float)));
    auto kernel = backward_kernel<T, M, G, W>;
    if (shared > 40 * 1024) BHYT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
    kernel<<<blocks, kThreads, shared, stream()>>>(p, matrix<T>(call.x), matrix<T>(call.dz), matrix<T>(call.dx), call.accumulate, part,
                                                   part + columns);
    columns_kernel<<<dim3(blocks_for(p.c, 32), W), dim3(32, 8), 0, stream()>>>(
        part, blocks, W, p.c, pointer(grads.gamma), W == 3 ? pointer(grads.gate) : pointer(grads.beta), pointer(grads.direction));
    add_scalars(part + columns, blocks, grads, call.given);
  });
}

}  // namespace

void add_scalars(const float* sums, std::int64_t count, const NormGrads& grads, const Given* given) {
  scalars_kernel<<<1, 32 * kScalars, 0, stream()>>>(sums, count, pointer(grads.scale), pointer(grads.shift),
                                                    given ? pointer(given->dtilt) : nullptr, given ? pointer(given->dweight) : nullptr);
}

void norm(const NormSite& site, const NormForward& call) {
  const NormParams p = make_params(site, call.x, call.stats, call.given);
  if (p.n == 0) return;
  dispatch_float(call.x.dtype, [&](auto t) {
    using T = decltype(t);
    if (!fits<T>(p.c, site) || !aligned16(call.x) || !aligned16(call.add) || !aligned16(call.sum) || !aligned16(call.z))
      return norm_rows(site, call);
    dispatch_map(site.map, [&](auto m) {
      with_group<T>(p.c, [&](auto g) {
        constexpr int G = decltype(g)::value;
        forward_kernel<T, Fast<T, decltype(m)>, G><<<blocks_for(p.n, kThreads / G), kThreads, 0, stream()>>>(
            p, matrix<T>(call.x), matrix<T>(call.add), matrix<T>(call.sum), matrix<T>(call.z));
      });
    });
  });
  check_launch("norm");
}

void norm_backward(const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  NormParams p = make_params(site, call.x, call.stats, call.given);
  p.dms_in = pointer(call.dms);
  if (p.n == 0) return;
  dispatch_float(call.x.dtype, [&](auto t) {
    using T = decltype(t);
    if (!fits<T>(p.c, site) || !aligned16(call.x) || !aligned16(call.dz) || !aligned16(call.dx))
      return norm_backward_rows(site, grads, call);
    // Only these combinations of map and column sums exist in the family.
    if (site.gate) return launch_backward<T, IdMap, 3>(p, site, grads, call);
    if (site.map == Map::tanh && !site.beta) return launch_backward<T, Fast<T, TanhMap>, 1>(p, site, grads, call);
    if (site.map == Map::id && !site.beta) return launch_backward<T, IdMap, 1>(p, site, grads, call);
    if (site.map == Map::id) return launch_backward<T, IdMap, 2>(p, site, grads, call);
    if (site.map == Map::erf) return launch_backward<T, ErfMap, 2>(p, site, grads, call);
    return norm_backward_rows(site, grads, call);
  });
  check_launch("norm_backward");
}

}  // namespace bhyt::cuda
