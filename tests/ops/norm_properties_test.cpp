// The properties that docs/method.md lists under "What tests hold on to".
#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "ops/norm/methods.h"
#include "ops/norm/norm.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

std::vector<double> sample(const std::string& what, std::size_t n) {
  Rng rng(11);
  std::vector<double> x(n);
  for (double& v : x) {
    if (what == "normal") v = rng.normal();
    if (what == "uniform") v = 2 * rng.uniform() - 1;
    if (what == "student") {  // three degrees of freedom
      const double a = rng.normal(), b = rng.normal(), c = rng.normal();
      v = rng.normal() / std::sqrt((a * a + b * b + c * c) / 3);
    }
    if (what == "spiky") v = rng.uniform() < 0.004 ? 200 : rng.normal() * 1e-2;
  }
  return x;
}

// One row through a site of a method's plan, γ = 1, with the scalar it starts with (lambda > 0: with that).
std::vector<double> through(const SitePlan& plan, const std::vector<double>& x, double lambda = 0) {
  const auto c = static_cast<std::int64_t>(x.size());
  const OwnedTensor tx = make_tensor(on_cpu(), DType::f32, {1, c}, x), z = make_tensor(on_cpu(), DType::f32, {1, c}),
                    gamma = make_tensor(on_cpu(), DType::f32, {c}, std::vector<double>(x.size(), 1.0)),
                    scale = make_tensor(on_cpu(), DType::f32, {1}, {lambda > 0 ? lambda : plan.scale0});
  const NormSite site{.stat = plan.stat,
                      .map = plan.map,
                      .factor = plan.factor,
                      .eps = plan.eps,
                      .out_factor = plan.out_factor,
                      .gamma = gamma,
                      .scale = plan.scale == ScaleKind::none ? Tensor{} : scale.t};
  norm(on_cpu(), site, {.x = tx, .z = z});
  return to_doubles(on_cpu(), z);
}

// Without γ a site computes what it computes with one of ones; odd widths and even ones take different kernels on a GPU.
TEST(NormProperties, NoGammaIsOne) {
  for (Context& ctx : test::contexts())
    for (const DType type : {DType::f32, DType::bf16})
      for (const std::int64_t c : {7, 64, 1000})
        for (const Map map : {Map::id, Map::tanh, Map::erf})
          for (const Stat stat : {Stat::none, Stat::rms, Stat::mean_var}) {
            SCOPED_TRACE(
                fmt::format("{} {} columns, map {}, statistic {}", name_of(type), c, static_cast<int>(map), static_cast<int>(stat)));
            const OwnedTensor x = make_tensor(ctx, type, {3, c}, draw({{"x", {3, c}}}, type).at("x")), z = make_tensor(ctx, type, {3, c}),
                              plain = make_tensor(ctx, type, {3, c}),
                              ones = make_tensor(ctx, DType::f32, {c}, std::vector<double>(static_cast<std::size_t>(c), 1.0)),
                              some = make_tensor(ctx, DType::f32, {c}, draw({{"beta", {c}}}, DType::f32).at("beta"));
            for (const Tensor& beta : {Tensor{}, some.t}) {
              norm(ctx, {.stat = stat, .map = map, .gamma = ones, .beta = beta}, {.x = x, .z = z});
              norm(ctx, {.stat = stat, .map = map, .beta = beta}, {.x = x, .z = plain});
              EXPECT_EQ(to_doubles(ctx, z), to_doubles(ctx, plain)) << (beta ? "with a bias" : "");
            }
          }
}

double mean_of_squares(const std::vector<double>& x) {
  double s = 0;
  for (double v : x) s += v * v;
  return s / static_cast<double>(x.size());
}

// |tanh(a·x)| ≤ tanh(λ) for at least a share p of any row, with mean and deviation of the row itself.
TEST(NormProperties, ChebyshevCoversItsShare) {
  for (const double p : {0.5, 0.9, 0.99})
    for (const std::string what : {"normal", "uniform", "student", "spiky"}) {
      auto x = sample(what, 20000);
      for (double& v : x) v += 0.3;
      NormConfig c;
      c.method = "bhyt_star";
      c.kappa = 1 / std::sqrt(1 - p);
      int inside = 0;
      for (double z : through(plan_norms(c, 1, 20000, 1e-5).blocks[0].site1, x)) inside += std::fabs(z) <= std::tanh(2.0);
      EXPECT_GE(inside, static_cast<int>(p * 20000)) << what << " p " << p;
    }
}

// (tanh λ/λ)²·λ²/κ² ≤ mean z² ≤ λ²/κ².
TEST(NormProperties, VarianceIsSandwiched) {
  NormConfig c;
  c.method = "bhyt_exact";
  for (const double lambda : {0.5, 2.0, 6.0})
    for (const std::string what : {"normal", "uniform"}) {  // |a x| ≤ λ holds for these
      const double out = mean_of_squares(through(plan_norms(c, 1, 64, 1e-5).blocks[0].site1, sample(what, 40000), lambda));
      const double top = std::pow(lambda / c.kappa, 2);
      EXPECT_LE(out, top * (1 + 1e-6)) << what << " lambda " << lambda;
      EXPECT_GE(out, std::pow(std::tanh(lambda) / lambda, 2) * top) << what << " lambda " << lambda;
    }
}

// The largest singular value of a norm's Jacobian at x, by power iteration with the kernel's own backward (Jᵀ) and differences (J).
double jacobian_norm(const NormSite& site, const std::vector<double>& x) {
  const auto c = static_cast<std::int64_t>(x.size());
  std::vector<std::vector<double>> rows;  // Jᵀ column by column: the backward of unit cotangents
  const OwnedTensor tx = make_tensor(on_cpu(), DType::f32, {1, c}, x), z = make_tensor(on_cpu(), DType::f32, {1, c}),
                    stats = make_tensor(on_cpu(), DType::f32, {2, 1}), dx = make_tensor(on_cpu(), DType::f32, {1, c});
  norm(on_cpu(), site, {.x = tx, .z = z, .stats = stats});
  for (std::int64_t i = 0; i < c; ++i) {
    std::vector<double> unit(x.size(), 0.0);
    unit[static_cast<std::size_t>(i)] = 1;
    const OwnedTensor dz = make_tensor(on_cpu(), DType::f32, {1, c}, unit);
    norm_backward(on_cpu(), site, {}, {.x = tx, .stats = stats, .dz = dz, .dx = dx, .accumulate = false});
    rows.push_back(to_doubles(on_cpu(), dx));
  }
  std::vector<double> v(x.size(), 1.0), u(x.size());
  double sigma = 0;
  for (int iteration = 0; iteration < 300; ++iteration) {
    double norm2 = 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      u[i] = 0;
      for (std::size_t j = 0; j < v.size(); ++j) u[i] += rows[i][j] * v[j];
    }
    for (std::size_t j = 0; j < v.size(); ++j) {
      v[j] = 0;
      for (std::size_t i = 0; i < u.size(); ++i) v[j] += rows[i][j] * u[i];
      norm2 += v[j] * v[j];
    }
    sigma = std::sqrt(std::sqrt(norm2));
    for (double& e : v) e /= std::sqrt(norm2);
  }
  return sigma;
}

TEST(NormProperties, JacobianIsBoundedByRmsNorms) {
  const std::int64_t c = 24;
  const OwnedTensor gamma = make_tensor(on_cpu(), DType::f32, {c}, std::vector<double>(24, 1.0));
  for (const double lambda : {0.5, 2.0, 9.0})
    for (const double size : {1e-3, 1.0, 30.0}) {
      Rng rng(static_cast<std::uint64_t>(lambda * 10 + size));
      std::vector<double> x(24);
      for (double& v : x) v = size * rng.normal() + (size > 1 ? 20 * rng.uniform() : 0);
      const OwnedTensor scale = make_tensor(on_cpu(), DType::f32, {1}, {lambda});
      const NormSite rms{.stat = Stat::rms, .map = Map::id, .factor = 1, .eps = 1e-6f, .gamma = gamma};
      const NormSite bhyt{.stat = Stat::rms, .map = Map::tanh, .factor = 0.1f, .eps = 1e-6f, .gamma = gamma, .scale = scale};
      EXPECT_LE(jacobian_norm(bhyt, x), lambda / 10 * jacobian_norm(rms, x) * (1 + 1e-4));
    }
}

TEST(NormProperties, TraceIdentityEqualsTheDenseProduct) {
  struct Shape {
    std::int64_t d, heads, kv, head_dim;
  };
  for (const Shape s : {Shape{24, 4, 2, 8}, Shape{17, 3, 3, 4}, Shape{32, 6, 1, 5}, Shape{1, 1, 1, 1}}) {
    Rng rng(5);
    std::vector<double> wv(static_cast<std::size_t>(s.kv * s.head_dim * s.d)), wo(static_cast<std::size_t>(s.d * s.heads * s.head_dim));
    for (double& v : wv) v = static_cast<float>(rng.normal());
    for (double& v : wo) v = static_cast<float>(rng.normal());
    double frobenius = 0;  // of the [d, d] product, heads expanded
    for (std::int64_t i = 0; i < s.d; ++i)
      for (std::int64_t j = 0; j < s.d; ++j) {
        double m = 0;
        for (std::int64_t h = 0; h < s.heads; ++h)
          for (std::int64_t e = 0; e < s.head_dim; ++e)
            m += wv[static_cast<std::size_t>((h / (s.heads / s.kv) * s.head_dim + e) * s.d + i)] *
                 wo[static_cast<std::size_t>(j * s.heads * s.head_dim + h * s.head_dim + e)];
        frobenius += m * m;
      }
    for (Context& ctx : test::contexts()) {
      const OwnedTensor v = make_tensor(ctx, DType::f32, {s.kv * s.head_dim, s.d}, wv),
                        o = make_tensor(ctx, DType::f32, {s.d, s.heads * s.head_dim}, wo), c = make_tensor(ctx, DType::f32, {1});
      attention_constant(ctx, v, o, s.heads, s.kv, 128, c);
      EXPECT_NEAR(to_doubles(ctx, c)[0] / (frobenius / (128.0 * static_cast<double>(s.d))), 1, 1e-5);
    }
  }
}

TEST(NormProperties, ConstantFollowsTheFirstSite) {
  for (Context& ctx : test::contexts()) {
    const OwnedTensor c_attn = make_tensor(ctx, DType::f32, {1}, {3.0}), lambda = make_tensor(ctx, DType::f32, {1}, {2.0}),
                      gamma = make_tensor(ctx, DType::f32, {3}, {1.0, 2.0, 3.0}), out = make_tensor(ctx, DType::f32, {1});
    norm_constant(ctx, c_attn, lambda, 0.1f, {}, out);
    EXPECT_NEAR(to_doubles(ctx, out)[0], 3.0 * 0.04, 1e-6);
    norm_constant(ctx, c_attn, {}, 1, gamma, out);
    EXPECT_NEAR(to_doubles(ctx, out)[0], 3.0 * 14 / 3, 1e-5);
  }
}

TEST(NormProperties, RowMoments) {
  for (Context& ctx : test::contexts()) {
    const OwnedTensor x = make_tensor(ctx, DType::f32, {2, 2}, {3, 4, -1, 1}), out = make_tensor(ctx, DType::f32, {4});
    row_moments(ctx, x, out);
    const auto m = to_doubles(ctx, out);
    EXPECT_NEAR(m[0], (5 + std::sqrt(2.0)) / 2, 1e-6);
    EXPECT_NEAR(m[1], (3.5 + 1) / 2, 1e-6);
    EXPECT_NEAR(m[2], (0.25 + 1) / 2, 1e-6);
    EXPECT_NEAR(m[3], (12.5 + 1) / 2, 1e-6);
  }
}

// With λ/κ < 1/√L BHyT's variance stays at or below LNS's in every layer: the additive recursion with equal constants, driven by what the
// two norms make of a row.
TEST(NormProperties, BhytVarianceStaysBelowLns) {
  constexpr int kLayers = 24;
  const auto x = sample("normal", 4000);
  NormConfig bhyt_config, lns_config;
  bhyt_config.method = "bhyt_exact", bhyt_config.lambda = {2.0, 2.0};  // 2/10 < 1/√24
  lns_config.method = "lns";
  const NormPlan bhyt_plan = plan_norms(bhyt_config, kLayers, 4000, 1e-5), lns_plan = plan_norms(lns_config, kLayers, 4000, 1e-5);
  const auto grow = [](double s2, double output, double rho) {
    const double c = 0.8 * output;
    return s2 + c + 2 * rho * std::sqrt(s2 * c);
  };
  double harmonic = 0;
  for (int l = 1; l <= kLayers; ++l) harmonic += 1.0 / l;
  for (const double rho : {0.0, 0.3, 1.0}) {
    double lns = 1, bhyt = 1;
    for (std::size_t l = 0; l < kLayers; ++l)
      for (SitePlan BlockPlan::*site : {&BlockPlan::site1, &BlockPlan::site2}) {
        lns = grow(lns, mean_of_squares(through(lns_plan.blocks[l].*site, x)), rho);
        bhyt = grow(bhyt, mean_of_squares(through(bhyt_plan.blocks[l].*site, x)), rho);
        EXPECT_LE(bhyt, lns) << "layer " << l + 1;
      }
    if (rho == 0) {  // 1/√ℓ at both sites
      EXPECT_NEAR(lns, 1 + 2 * 0.8 * harmonic, 0.1);
    }
  }
}

}  // namespace
}  // namespace bhyt::testing
