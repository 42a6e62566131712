// The statements on random inputs. scripts/make_theory_golden.py computes the same cases by itself, with numpy.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/theory.h"
#include "analysis/theory_random.h"
#include "core/memory.h"
#include "ops/norm/norm.h"

namespace bhyt::analysis {

namespace {

enum class Kind { gaussian, shifted, student, lognormal, exponential, uniform, sparse, extremal };
constexpr std::pair<Kind, const char*> kKinds[] = {
    {Kind::gaussian, "gaussian"},       {Kind::shifted, "shifted gaussian"}, {Kind::student, "student t3"}, {Kind::lognormal, "lognormal"},
    {Kind::exponential, "exponential"}, {Kind::uniform, "uniform"},          {Kind::sparse, "sparse"},      {Kind::extremal, "extremal"}};

// Chebyshev's inequality is an equality for values of which a share of just 1 − p lies out at ±1 and the rest at 0. Pairs of them, so that
// the mean is 0.
std::vector<double> extremal(std::int64_t n, double p) {
  const auto most = static_cast<std::int64_t>(std::ceil(static_cast<double>(n) * (1 - p) - 1e-9)) - 1;
  std::vector<double> x(static_cast<std::size_t>(n), 0.0);
  for (std::int64_t i = 0; i < most / 2 * 2; ++i) x[static_cast<std::size_t>(i)] = i % 2 ? 1 : -1;
  return x;
}

double value_of(Kind kind, const Draws& d, std::uint64_t i) {
  switch (kind) {
    case Kind::shifted: return d.normal(i) + 3;
    case Kind::student: {
      const double a = d.normal(4 * i + 1), b = d.normal(4 * i + 2), c = d.normal(4 * i + 3);
      return d.normal(4 * i) / std::sqrt((a * a + b * b + c * c) / 3);
    }
    case Kind::lognormal: return std::exp(d.normal(i));
    case Kind::exponential: return -std::log(1 - d.uniform(i));
    case Kind::uniform: return d.uniform(i) * 2 - 1;
    case Kind::sparse: return d.uniform(2 * i) < 0.05 ? d.normal(2 * i + 1) : 0;
    default: return d.normal(i);
  }
}

std::vector<double> draw(Kind kind, std::uint64_t stream, std::int64_t n, double p) {
  if (kind == Kind::extremal) return extremal(n, p);
  const Draws d(stream);
  std::vector<double> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(value_of(kind, d, static_cast<std::uint64_t>(i)));
  return x;
}

Finding chebyshev() {
  Finding f;
  std::uint64_t stream = 1000;
  for (const auto& [kind, name] : kKinds)
    for (const std::int64_t n : {64, 1000, 4096})
      for (const double p : {0.5, 0.9, 0.99}) {
        const std::vector<double> x = draw(kind, stream++, n, p);
        const Moments m = moments(x);
        if (m.variance == 0) continue;  // too few values for one to lie out
        const double kappa = 1 / std::sqrt(1 - p);
        for (const double lambda : {1.0, 2.0}) {
          const std::string where = fmt::format("{}, {} values, p {}", name, n, p);
          f.add(share_within(x, lambda / (kappa * std::sqrt(m.variance) + std::fabs(m.mean)), lambda) - p, where);
          f.add(share_within(x, lambda / (kappa * std::sqrt(m.square)), lambda) - p, where + ", by rms");
        }
      }
  f.settle();
  return f;
}

// ∂z/∂x of a site at x, as the program's backward has it: one row of dz for each element of z.
std::vector<double> program_jacobian(Context& ctx, const NormSite& site, const std::vector<double>& x) {
  const auto n = std::ssize(x);
  Matrix rows{.rows = n, .cols = n}, unit{.rows = n, .cols = n};
  unit.values.resize(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) {
    rows.values.insert(rows.values.end(), x.begin(), x.end());
    unit.values[static_cast<std::size_t>(i * n + i)] = 1;
  }
  const OwnedTensor at = to_device(ctx, rows, DType::f32), dz = to_device(ctx, unit, DType::f32);
  const OwnedTensor z(ctx, DType::f32, {n, n}), dx(ctx, DType::f32, {n, n}), stats(ctx, DType::f32, {2, n});
  norm(ctx, site, {.x = at, .z = z, .stats = stats});
  norm_backward(ctx, site, {}, {.x = at, .stats = stats, .dz = dz, .dx = dx, .accumulate = false});
  const Matrix j = to_matrix(ctx, dx);
  return {j.values.begin(), j.values.end()};
}

OwnedTensor vector_on(Context& ctx, const std::vector<double>& v) {
  OwnedTensor t(ctx, DType::f32, {std::ssize(v)});
  const std::vector<float> values(v.begin(), v.end());
  from_host(ctx, values.data(), t);
  return t;
}

struct JacobianCase {
  std::vector<double> x, gamma;
  double lambda, kappa;
};

// The bound's slack as a share of it, and how far the Jacobian is from D·J_RMS.
std::array<double, 2> jacobian_margins(Context& ctx, const JacobianCase& c) {
  constexpr double kEps = 1e-6;
  const auto n = std::ssize(c.x);
  const OwnedTensor gamma = vector_on(ctx, c.gamma), lambda = vector_on(ctx, {c.lambda});
  const NormSite rms{.stat = Stat::rms, .map = Map::id, .eps = static_cast<float>(kEps), .gamma = gamma};
  NormSite bhyt = rms;
  bhyt.map = Map::tanh;
  bhyt.factor = static_cast<float>(1 / c.kappa);
  bhyt.scale = lambda;
  const std::vector<double> free = program_jacobian(ctx, rms, c.x), bounded = program_jacobian(ctx, bhyt, c.x);
  const double g = c.lambda / c.kappa, s = std::sqrt(moments(c.x).square + kEps);
  double off = 0, most = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double sech = 1 / std::cosh(g * c.x[static_cast<std::size_t>(i)] / s), d = g * sech * sech;
    for (std::int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<std::size_t>(i * n + j);
      off = std::max(off, std::fabs(bounded[at] - d * free[at]));
      most = std::max(most, g * std::fabs(free[at]));
    }
  }
  return {1 - spectral_norm(bounded, n) / (g * spectral_norm(free, n)), off / most};
}

Finding jacobian(Context& ctx) {
  constexpr double kRounding = 2e-5;  // of fp32
  Finding f;
  std::uint64_t stream = 2000;
  for (const std::int64_t d : {2, 3, 8, 16, 31})
    for (const auto& [kind, name] : {kKinds[0], kKinds[2], kKinds[3], kKinds[6]})
      for (const auto& [lambda, kappa] : {std::pair{1.0, 10.0}, {2.0, 10.0}, {5.0, 2.0}})
        for (const bool learned : {false, true}) {
          JacobianCase c{
              .x = draw(kind, stream++, d, 0), .gamma = std::vector(static_cast<std::size_t>(d), 1.0), .lambda = lambda, .kappa = kappa};
          c.x[0] += kind == Kind::sparse ? 1 : 0;  // not all of them zeros
          if (learned) c.gamma = draw(Kind::gaussian, stream + 100000, d, 0);
          const auto [margin, off] = jacobian_margins(ctx, c);
          const std::string where = fmt::format("{}, d {}, λ {}, κ {}{}", name, d, lambda, kappa, learned ? ", γ drawn" : "");
          f.add(margin, where, kRounding);
          if (off > kRounding) f.add(-off, where + ", not D·J", 0);
        }
  f.assumptions.push_back({.name = "the statistic is the row's own",
                           .expected = 1,
                           .measured = 1,
                           .says = "the bound does not speak of an approximated second site, whose scale does not depend on its input"});
  f.settle();
  return f;
}

// A sample and its mirror image.
std::vector<double> mirrored(Kind kind, std::uint64_t stream, std::int64_t n) {
  std::vector<double> x = draw(kind, stream, n / 2, 0);
  const std::size_t half = x.size();
  for (std::size_t i = 0; i < half; ++i) x.push_back(-x[i]);
  return x;
}

// Few values far out: a quarter of the share at which the lower half must fail.
std::vector<double> far_out(double lambda, double kappa) {
  const double share = std::tanh(lambda) * std::tanh(lambda) / (kappa * kappa) / 4;
  std::vector<double> x(static_cast<std::size_t>(std::ceil(2 / share)), 0.0);
  x[0] = 1;
  x[1] = -1;
  return x;
}

Finding variance_sandwich() {
  Finding f;
  std::uint64_t stream = 3000;
  double worst = INFINITY;
  std::string example;
  for (const auto& [lambda, kappa] : {std::pair{1.0, 10.0}, {2.0, 10.0}, {1.0, 2.0}, {4.0, 4.0}, {0.5, 1.0}}) {
    std::vector<std::pair<std::string, std::vector<double>>> cases;
    for (const auto& [kind, name] : {kKinds[0], kKinds[2], kKinds[5], kKinds[6]}) cases.emplace_back(name, mirrored(kind, stream++, 2000));
    cases.emplace_back("two points", std::vector<double>{1, -1});
    cases.emplace_back("far out", far_out(lambda, kappa));
    for (const auto& [name, x] : cases) {
      const Sandwich s = sandwich(x, lambda, kappa);
      const std::string where = fmt::format("{}, λ {}, κ {}", name, lambda, kappa);
      const double above = (s.high - s.value) / s.high, below = (s.value - s.low) / s.high;
      if (s.bounded) {
        f.add(std::min(above, below), where, 1e-12);
        continue;
      }
      f.add(above, where + ", upper half alone", 1e-12);  // which needs no bound on a·x
      f.add_beyond(below >= 0);
      if (s.value / s.low < worst) {
        worst = s.value / s.low;
        example = where;
      }
    }
  }
  f.assumptions.push_back({.name = "|a·x| ≤ λ everywhere",
                           .expected = 1,
                           .measured = worst,
                           .met = worst >= 1,
                           .says = fmt::format("without it the variance can be {:.3g} of the lower bound ({})", worst, example)});
  f.settle();
  return f;
}

}  // namespace

std::vector<Statement> check_theory(Context& ctx) {
  std::vector<Statement> all;
  all.push_back({"chebyshev", "Chebyshev", "a = λ/(κ·s + |μ|), κ = (1−p)^(−1/2): P(|a·x| ≤ λ) ≥ p", "share over p", chebyshev(), {}});
  all.push_back({"jacobian", "Jacobian bound", "J_BHyT = D·J_RMS, so ‖J_BHyT‖₂ ≤ (λ/κ)·‖J_RMS‖₂", "share of the bound", jacobian(ctx), {}});
  all.push_back({"sandwich",
                 "Variance sandwich",
                 "x symmetric, |a·x| ≤ λ: (tanh λ)²/κ² ≤ Var tanh(a·x) ≤ λ²/κ²",
                 "share of the upper bound",
                 variance_sandwich(),
                 {}});
  all.push_back({"attention",
                 "Attention variance",
                 "Var(h) ≈ ‖W_V W_O‖_F²/(T·d) · λ²/κ²",
                 "log 1.25 − |log(measured/claimed)|",
                 random_attention(ctx),
                 {}});
  all.push_back({"mlp", "MLP variance", "Var(h) ≈ τ·s_z²/d · ‖W₁W₂‖_F²", "log 1.25 − |log(measured/claimed)|", random_mlp(), {}});
  all.push_back({"recursion",
                 "Recursion",
                 "s'² = s² + C·s_f² + 2ρ·s·√C·s_f, and s_L² = s_1²·Π δ(ρ₁, π_A)·δ(ρ₂, π_M)",
                 "tolerance − relative difference",
                 random_recursion(),
                 {}});
  all.push_back({"comparison",
                 "Comparison with LNS",
                 "λ/κ < 1/√L: BHyT's variance is below LNS's in layers 2 … L",
                 "1 − BHyT/LNS",
                 random_comparison(),
                 {}});
  return all;
}

}  // namespace bhyt::analysis
