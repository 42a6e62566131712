// The constants of the approximation, and the moments that runs report, on the GPU.
#include "core/cuda.cuh"
#include "core/memory.h"
#include "ops/gemm/gemm.h"
#include "ops/norm/statistic.h"

namespace bhyt::cuda {

namespace {

__global__ void constant_kernel(const float* c_attn, const float* scale, float factor, const float* gamma, int c, float* out) {
  __shared__ double warp_sums[33];
  double s = 0;
  for (int j = threadIdx.x; gamma && j < c; j += blockDim.x) s += static_cast<double>(gamma[j]) * gamma[j];
  s = block_sum(s, warp_sums);
  if (threadIdx.x != 0) return;
  const double k = factor * (scale ? static_cast<double>(*scale) : 1.0);
  *out = static_cast<float>(*c_attn * k * k * (gamma ? s / c : 1.0));
}

template <class T>
__global__ void widen_kernel(const T* from, float* to, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) to[i] = load1(from + i);
}

// s [C, K·D]: heads that share V add up.
template <class T>
__global__ void group_kernel(const T* wo, float* s, std::int64_t c, int kv_heads, int group, int d) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, kd = static_cast<std::int64_t>(kv_heads) * d;
  if (i >= c * kd) return;
  const std::int64_t row = i / kd, k = i % kd / d, j = i % d;
  float sum = 0;
  for (int g = 0; g < group; ++g) sum += load1(wo + row * kd * group + (k * group + g) * d + j);
  s[i] = sum;
}

__global__ void trace_kernel(const float* a, const float* b, std::int64_t n, double over, float* out) {
  __shared__ double warp_sums[33];
  double s = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) s += static_cast<double>(a[i]) * b[i];
  s = block_sum(s, warp_sums);
  if (threadIdx.x == 0) *out = static_cast<float>(s / over);
}

// Per row: ‖x‖, Σ|x|/C, variance, mean square.
template <class T>
__global__ void moments_kernel(const T* x, std::int64_t ld, std::int64_t n, int c, float* rows) {
  __shared__ double warp_sums[33];
  const std::int64_t row = blockIdx.x;
  double s = 0, a = 0, q = 0;
  for (int j = threadIdx.x; j < c; j += blockDim.x) {
    const double v = load1(x + row * ld + j);
    s += v;
    a += fabs(v);
    q += v * v;
  }
  s = block_sum(s, warp_sums) / c;
  a = block_sum(a, warp_sums) / c;
  q = block_sum(q, warp_sums);
  if (threadIdx.x != 0) return;
  rows[row] = static_cast<float>(sqrt(q));
  rows[n + row] = static_cast<float>(a);
  rows[2 * n + row] = static_cast<float>(fmax(0.0, q / c - s * s));
  rows[3 * n + row] = static_cast<float>(q / c);
}

__global__ void mean_kernel(const float* rows, std::int64_t n, float* out) {
  __shared__ double warp_sums[33];
  double s = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) s += rows[blockIdx.x * n + i];
  s = block_sum(s, warp_sums);
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(s / static_cast<double>(n));
}

__global__ void scales_kernel(NormParams p, float* statistic, float* a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= p.n) return;
  const RowStats s = kept_stats(p, row);
  statistic[row] = shown_statistic(p, s);
  a[row] = row_scale(p, s).a;
}

const float* pointer_of(const Tensor& t) { return t ? t.as<float>() : nullptr; }

}  // namespace

void norm_constant(Context& ctx, const Tensor& c_attn, const Tensor& scale, float factor, const Tensor& gamma, const Tensor& constant) {
  constant_kernel<<<1, gamma ? 256 : 32, 0, stream(ctx)>>>(pointer_of(c_attn), pointer_of(scale), factor, pointer_of(gamma),
                                                           gamma ? static_cast<int>(gamma.size()) : 0, constant.as<float>());
  check_launch("norm_constant");
}

void attention_constant(Context& ctx, const Tensor& wv, const Tensor& wo, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                        const Tensor& c_attn) {
  const std::int64_t kd = wv.rows(), c = wv.cols(), d = kd / kv_heads;
  auto* memory = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(2 * kd * (c + kd)) * sizeof(float)));
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    const Tensor t(memory, DType::f32, wv.device, {rows, cols});
    memory += rows * cols;
    return t;
  };
  const Tensor v = matrix(kd, c), s = matrix(c, kd), vv = matrix(kd, kd), ss = matrix(kd, kd);
  dispatch_float(wv.dtype, [&](auto t) {
    using T = decltype(t);
    widen_kernel<T><<<blocks_for(kd * c, 256), 256, 0, stream(ctx)>>>(wv.as<T>(), v.as<float>(), kd * c);
    group_kernel<T><<<blocks_for(kd * c, 256), 256, 0, stream(ctx)>>>(wo.as<T>(), s.as<float>(), c, static_cast<int>(kv_heads),
                                                                      static_cast<int>(heads / kv_heads), static_cast<int>(d));
  });
  bhyt::gemm(ctx, v, v, vv, GemmOptions{.trans_b = true});
  bhyt::gemm(ctx, s, s, ss, GemmOptions{.trans_a = true});
  trace_kernel<<<1, 1024, 0, stream(ctx)>>>(vv.as<float>(), ss.as<float>(), kd * kd, static_cast<double>(seq_len) * static_cast<double>(c),
                                            c_attn.as<float>());
  check_launch("attention_constant");
}

void norm_scales(Context& ctx, const NormSite& site, const Tensor& stats, const Given* given, const Tensor& statistic, const Tensor& a) {
  const NormParams p = make_params(site, a.reshape({a.size(), 1}), stats, given);
  if (p.n == 0) return;
  scales_kernel<<<blocks_for(p.n, 256), 256, 0, stream(ctx)>>>(p, statistic.as<float>(), a.as<float>());
  check_launch("norm_scales");
}

void row_moments(Context& ctx, const Tensor& x, const Tensor& out) {
  const std::int64_t n = x.rows();
  float* rows = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(n) * 4 * sizeof(float)));
  dispatch_float(x.dtype, [&](auto t) {
    using T = decltype(t);
    moments_kernel<T><<<static_cast<unsigned>(n), 128, 0, stream(ctx)>>>(x.as<T>(), x.ld, n, static_cast<int>(x.cols()), rows);
  });
  mean_kernel<<<4, 512, 0, stream(ctx)>>>(rows, n, out.as<float>());
  check_launch("row_moments");
}

}  // namespace bhyt::cuda
