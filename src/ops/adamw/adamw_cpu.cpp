#include <cmath>
#include <numeric>

#include "core/threads.h"
#include "ops/adamw/adamw.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kPiece = 32768;  // elements to a task, and to a partial sum of the norm

struct Piece {
  const ArenaSpan* span;
  std::int64_t first, size;  // within the span
};

std::vector<Piece> pieces_of(const std::vector<ArenaSpan>& spans) {
  std::vector<Piece> pieces;
  for (const ArenaSpan& s : spans)
    for (std::int64_t i = 0; i < s.size; i += kPiece) pieces.push_back({&s, i, std::min(kPiece, s.size - i)});
  return pieces;
}

// In double: a gradient of 1e20 is large, not infinite.
BHYT_CLONES double squares(const float* g, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(g[i]) * static_cast<double>(g[i]);
  return sum;
}

// The numbers of one step, folded: w −= rate·m / (√(v·inverse2) + eps) + decay·w.
struct Update {
  float clip, beta1, beta2, one_minus_beta1, one_minus_beta2, rate, inverse2, eps;
};

BHYT_BOTH float updated(float w, float gradient, float& m, float& v, float decay, const Update& u) {
  const float g = gradient * u.clip;
  m = u.beta1 * m + u.one_minus_beta1 * g;
  v = u.beta2 * v + u.one_minus_beta2 * g * g;
  return w - (u.rate * m / (std::sqrt(v * u.inverse2) + u.eps) + decay * w);
}

BHYT_CLONES void update(float* w, const float* gradient, float* m, float* v, float decay, const Update u, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) w[i] = updated(w[i], gradient[i], m[i], v[i], decay, u);
}

BHYT_CLONES void update(bf16* value, std::uint16_t* low, const float* gradient, float* m, float* v, float decay, const Update u,
                        std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const SplitFloat w = split(updated(join(value[i], low[i]), gradient[i], m[i], v[i], decay, u));
    value[i].bits = w.value.bits;  // the number, not the struct: GCC vectorises no copies of structs
    low[i] = w.low;
  }
}

}  // namespace

void sum_of_squares(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& sum) {
  const std::vector<Piece> pieces = pieces_of(spans);
  std::vector<double> sums(pieces.size());
  parallel_tasks(ctx.threads(), static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
    const Piece& p = pieces[static_cast<std::size_t>(i)];
    sums[static_cast<std::size_t>(i)] = squares(gradients.as<float>() + p.span->offset + p.first, p.size);
  });
  *sum.as<double>() = std::accumulate(sums.begin(), sums.end(), 0.0);
}

void square_root(Context&, const Tensor& sum, const Tensor& norm) { *norm.as<float>() = static_cast<float>(std::sqrt(*sum.as<double>())); }

void adamw(Context& ctx, const Tensor& low_bits, const Tensor& gradients, const Tensor& m, const Tensor& v,
           const std::vector<ArenaSpan>& spans, const AdamW& step) {
  const double norm = step.grad_norm ? *step.grad_norm.as<float>() : 0.0;
  if (!std::isfinite(norm) || (step.loss && !std::isfinite(*step.loss.as<float>()))) return;
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  const Update u{.clip = static_cast<float>(step.clip > 0 && norm > step.clip ? step.clip / norm : 1.0),
                 .beta1 = static_cast<float>(step.beta1),
                 .beta2 = static_cast<float>(step.beta2),
                 .one_minus_beta1 = static_cast<float>(1 - step.beta1),
                 .one_minus_beta2 = static_cast<float>(1 - step.beta2),
                 .rate = static_cast<float>(step.lr / correction1),
                 .inverse2 = static_cast<float>(1 / correction2),
                 .eps = static_cast<float>(step.eps)};
  const auto decay = static_cast<float>(step.lr * step.weight_decay);
  const std::vector<Piece> pieces = pieces_of(spans);
  parallel_tasks(ctx.threads(), static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
    const Piece& p = pieces[static_cast<std::size_t>(i)];
    const std::int64_t at = p.span->offset + p.first;
    const float* g = gradients.as<float>() + at;
    float *m1 = m.as<float>() + at, *v1 = v.as<float>() + at;
    const float d = p.span->decays ? decay : 0.0f;
    const Tensor& value = p.span->value;
    if (value.dtype == DType::bf16)
      update(value.as<bf16>() + p.first, low_bits.as<std::uint16_t>() + at, g, m1, v1, d, u, p.size);
    else
      update(value.as<float>() + p.first, g, m1, v1, d, u, p.size);
  });
}

}  // namespace bhyt::cpu
