// The norm family for any row: odd widths, unaligned slices, rows too wide for registers. One block per row, then one pass over columns.
#include "ops/norm/norm.cuh"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 128;

template <class T, class M>
__global__ void forward_kernel(NormParams p, const T* x, std::int64_t ldx, const T* add, std::int64_t ldadd, T* sum, std::int64_t ldsum,
                               T* z, std::int64_t ldz) {
  __shared__ float warp_sums[33];
  const std::int64_t row = blockIdx.x;
  const T* v = x + row * ldx;
  if (add) {
    T* s = sum + row * ldsum;
    for (int j = threadIdx.x; j < p.c; j += kThreads) store1(s + j, load1(v + j) + load1(add + row * ldadd + j));
    v = s;
    __syncthreads();
  }
  const float inv = 1.f / static_cast<float>(p.c);
  const bool centred = is_centred(p.stat);
  float s0 = 0, s1 = 0;
  if (centred) {
    for (int j = threadIdx.x; j < p.c; j += kThreads) s1 += load1(v + j);
    s1 = block_sum(s1, warp_sums) * inv;
  }
  for (int j = threadIdx.x; j < p.c; j += kThreads) {
    const float d = load1(v + j) - (centred ? s1 : 0.f);
    s0 += d * d;
  }
  s0 = block_sum(s0, warp_sums) * inv;
  if (p.gate) {
    for (int j = threadIdx.x; j < p.c; j += kThreads) s1 += load1(v + j) * p.direction[j];
    s1 = block_sum(s1, warp_sums);
  }
  const RowStats stats = p.stat == Stat::given ? kept_stats(p, row) : RowStats{s0, s1};
  if (threadIdx.x == 0) keep_stats(p, row, stats, s0);
  const RowScale r = row_scale(p, stats);
  const float shift = p.shift ? *p.shift : 0.f, t = p.gate ? tanhf(s1) : 0.f;
  for (int j = threadIdx.x; j < p.c; j += kThreads) {
    const float gamma = (p.gamma ? p.gamma[j] : 1.f) + (p.gate ? t * p.gate[j] : 0.f);
    const float y = gamma * M::value(r.a * (load1(v + j) - r.mean) + shift) + (p.beta ? p.beta[j] : 0.f);
    store1(z + row * ldz + j, p.out_factor * y);
  }
}

// dx, the row's scalar sums, and dp (SeeDNorm's gradient of x·b) for the column pass.
template <class T, class M>
__global__ void backward_kernel(NormParams p, const T* x, std::int64_t ldx, const T* dz, std::int64_t lddz, T* dx, std::int64_t lddx,
                                bool accumulate, float* scalars, float* dps) {
  __shared__ float warp_sums[33];
  const std::int64_t row = blockIdx.x;
  const T *v = x + row * ldx, *g = dz + row * lddz;
  const RowStats stats = kept_stats(p, row);
  const float shift = p.shift ? *p.shift : 0.f, t = p.gate ? tanhf(stats.s1) : 0.f;
  const RowScale r = row_scale(p, stats);
  float sum1 = 0, sum0 = 0, dt = 0;
  const auto du = [&](int j, float& centred, float& y) {
    centred = load1(v + j) - r.mean;
    const float u = r.a * centred + shift;
    y = M::value(u);
    return (p.gamma[j] + (p.gate ? t * p.gate[j] : 0.f)) * (p.out_factor * load1(g + j)) * M::slope(u, y);
  };
  for (int j = threadIdx.x; j < p.c; j += kThreads) {
    float centred, y;
    const float d = du(j, centred, y);
    sum1 += d * centred;
    sum0 += d;
    if (p.gate) dt += p.out_factor * load1(g + j) * y * p.gate[j];
  }
  sum1 = block_sum(sum1, warp_sums);
  sum0 = block_sum(sum0, warp_sums);
  const float dp = p.gate ? block_sum(dt, warp_sums) * (1 - t * t) : 0.f;
  RowScalars total;
  const StatisticGradient through = statistic_backward(p, row, stats, r, RowSums{sum1, sum0}, threadIdx.x == 0, total);
  if (threadIdx.x == 0) {
    float* to = scalars + row * kScalars;
    to[0] = total.scale;
    to[1] = total.shift;
    to[2] = total.ms_correction;
    to[3] = total.constant_correction;
    if (p.gate) dps[row] = dp;
  }
  for (int j = threadIdx.x; j < p.c; j += kThreads) {
    float centred, y;
    const float d = du(j, centred, y);
    T* to = dx + row * lddx + j;
    const float before = accumulate ? load1(to) : 0.f;
    store1(to, before + r.a * d + through.slope * load1(v + j) + through.level + (p.gate ? dp * p.direction[j] : 0.f));
  }
}

template <class T, class M>
__global__ void columns_kernel(NormParams p, const T* x, std::int64_t ldx, const T* dz, std::int64_t lddz, const float* dps, float* dgamma,
                               float* dbeta, float* dgate, float* ddirection) {
  __shared__ float slices[8][33];
  const int j = blockIdx.x * 32 + threadIdx.x;
  const float shift = p.shift ? *p.shift : 0.f;
  float sums[4] = {};
  if (j < p.c)
    for (std::int64_t row = threadIdx.y; row < p.n; row += 8) {
      const RowStats stats = kept_stats(p, row);
      const RowScale r = row_scale(p, stats);
      const float v = load1(x + row * ldx + j), d = p.out_factor * load1(dz + row * lddz + j), y = M::value(r.a * (v - r.mean) + shift);
      sums[0] += d * y;
      sums[1] += d;
      if (p.gate) {
        sums[2] += tanhf(stats.s1) * d * y;
        sums[3] += dps[row] * v;
      }
    }
  float* to[4] = {dgamma, dbeta, dgate, ddirection};
  for (int k = 0; k < 4; ++k) {
    slices[threadIdx.y][threadIdx.x] = sums[k];
    __syncthreads();
    if (threadIdx.y == 0 && j < p.c && to[k]) {
      float s = 0;
      for (int i = 0; i < 8; ++i) s += slices[i][threadIdx.x];
      to[k][j] += s;
    }
    __syncthreads();
  }
}

}  // namespace

void norm_rows(Context& ctx, const NormSite& site, const NormForward& call) {
  const NormParams p = make_params(site, call.x, call.stats, call.given);
  dispatch_float(call.x.dtype, [&](auto t) {
    using T = decltype(t);
    dispatch_map(site.map, [&](auto m) {
      forward_kernel<T, decltype(m)><<<static_cast<unsigned>(p.n), kThreads, 0, stream(ctx)>>>(
          p, call.x.as<T>(), call.x.ld, call.add ? call.add.as<T>() : nullptr, call.add.ld, call.sum ? call.sum.as<T>() : nullptr,
          call.sum.ld, call.z.as<T>(), call.z.ld);
    });
  });
}

void norm_backward_rows(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  NormParams p = make_params(site, call.x, call.stats, call.given);
  p.dms_in = pointer(call.dms);
  float* scalars = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(p.n) * (kScalars + 1) * sizeof(float)));
  float* dps = scalars + p.n * kScalars;
  dispatch_float(call.x.dtype, [&](auto t) {
    using T = decltype(t);
    dispatch_map(site.map, [&](auto m) {
      using M = decltype(m);
      backward_kernel<T, M><<<static_cast<unsigned>(p.n), kThreads, 0, stream(ctx)>>>(
          p, call.x.as<T>(), call.x.ld, call.dz.as<T>(), call.dz.ld, call.dx.as<T>(), call.dx.ld, call.accumulate, scalars, dps);
      if (!grads.columns()) return;
      columns_kernel<T, M><<<blocks_for(p.c, 32), dim3(32, 8), 0, stream(ctx)>>>(p, call.x.as<T>(), call.x.ld, call.dz.as<T>(), call.dz.ld,
                                                                                 dps, pointer(grads.gamma), pointer(grads.beta),
                                                                                 pointer(grads.gate), pointer(grads.direction));
    });
  });
  add_scalars(ctx, scalars, p.n, scalar_targets(grads, call.given));
}

}  // namespace bhyt::cuda
