// The constants of the approximation, and the moments that runs report, on the CPU.
#include <array>
#include <cmath>
#include <vector>

#include "core/memory.h"
#include "core/threads.h"
#include "ops/gemm/gemm.h"
#include "ops/norm/statistic.h"

namespace bhyt::cpu {

namespace {

float element(const Tensor& t, std::int64_t row, std::int64_t col) {
  const std::int64_t i = row * t.ld + col;
  return t.dtype == DType::bf16 ? to_float(t.as<bf16>()[i]) : t.as<float>()[i];
}

}  // namespace

void norm_constant(Context&, const Tensor& c_attn, const Tensor& scale, float factor, const Tensor& gamma, const Tensor& constant) {
  const double k = factor * (scale ? static_cast<double>(*scale.as<float>()) : 1.0);
  double mean_square = 1;
  if (gamma) {
    mean_square = 0;
    for (std::int64_t j = 0; j < gamma.size(); ++j) mean_square += static_cast<double>(gamma.as<float>()[j]) * gamma.as<float>()[j];
    mean_square /= static_cast<double>(gamma.size());
  }
  *constant.as<float>() = static_cast<float>(*c_attn.as<float>() * k * k * mean_square);
}

void attention_constant(Context& ctx, const Tensor& wv, const Tensor& wo, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                        const Tensor& c_attn) {
  const std::int64_t kd = wv.rows(), c = wv.cols(), group = heads / kv_heads, head_dim = kd / kv_heads;
  auto* memory = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(2 * kd * (c + kd)) * sizeof(float)));
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    const Tensor t(memory, DType::f32, Device::cpu(), {rows, cols});
    memory += rows * cols;
    return t;
  };
  const Tensor v = matrix(kd, c), s = matrix(c, kd), vv = matrix(kd, kd), ss = matrix(kd, kd);
  parallel_for(ctx.threads(), kd, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < c; ++j) v.as<float>()[i * c + j] = element(wv, i, j);
  });
  // Heads of one group share V, so their output matrices add up.
  parallel_for(ctx.threads(), c, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t k = 0; k < kv_heads; ++k)
        for (std::int64_t j = 0; j < head_dim; ++j) {
          float sum = 0;
          for (std::int64_t g = 0; g < group; ++g) sum += element(wo, i, (k * group + g) * head_dim + j);
          s.as<float>()[i * kd + k * head_dim + j] = sum;
        }
  });
  bhyt::gemm(ctx, v, v, vv, GemmOptions{.trans_b = true});
  bhyt::gemm(ctx, s, s, ss, GemmOptions{.trans_a = true});
  double trace = 0;
  for (std::int64_t i = 0; i < kd * kd; ++i) trace += static_cast<double>(vv.as<float>()[i]) * ss.as<float>()[i];
  *c_attn.as<float>() = static_cast<float>(trace / (static_cast<double>(seq_len) * static_cast<double>(c)));
}

void norm_scales(Context& ctx, const NormSite& site, const Tensor& stats, const Given* given, const Tensor& statistic, const Tensor& a) {
  const NormParams p = make_params(site, a.reshape({a.size(), 1}), stats, given);
  parallel_for(ctx.threads(), p.n, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const RowStats s = kept_stats(p, i);
      statistic.as<float>()[i] = shown_statistic(p, s);
      a.as<float>()[i] = row_scale(p, s).a;
    }
  });
}

void row_moments(Context& ctx, const Tensor& x, const Tensor& out) {
  constexpr std::int64_t kBlock = 64;
  const std::int64_t n = x.rows(), c = x.cols();
  std::vector<std::array<double, 4>> parts(static_cast<std::size_t>((n + kBlock - 1) / kBlock));
  parallel_for(ctx.threads(), n, kBlock, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, 4> sum{};
    for (std::int64_t i = begin; i < end; ++i) {
      double s = 0, a = 0, q = 0;
      for (std::int64_t j = 0; j < c; ++j) {
        const double v = element(x, i, j);
        s += v;
        a += std::fabs(v);
        q += v * v;
      }
      const double mean = s / static_cast<double>(c), ms = q / static_cast<double>(c);
      double variance = 0;
      for (std::int64_t j = 0; j < c; ++j) {
        const double v = element(x, i, j) - mean;
        variance += v * v;
      }
      sum[0] += std::sqrt(q);
      sum[1] += a / static_cast<double>(c);
      sum[2] += variance / static_cast<double>(c);
      sum[3] += ms;
    }
    parts[static_cast<std::size_t>(begin / kBlock)] = sum;
  });
  for (std::size_t k = 0; k < 4; ++k) {
    double total = 0;
    for (const auto& p : parts) total += p[k];
    out.as<float>()[k] = static_cast<float>(total / static_cast<double>(n));
  }
}

}  // namespace bhyt::cpu
