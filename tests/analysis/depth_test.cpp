// The recursion over depth, what it predicts for norms, and what is measured of a model.
#include "analysis/depth.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/memory.h"
#include "tests/devices.h"

namespace bhyt::analysis {
namespace {

constexpr double kEps = 1e-5;

SiteValues site_of(const std::string& method, std::int64_t layer = 1, int place = 0) {
  const NormPlan plan = plan_norms({.method = method}, layer, 64, kEps);
  const BlockValues b = initial_values(plan).back();
  return place == 0 ? b.site1 : b.site2;
}

TEST(Gain, IsReadBetweenItsPointsByLogarithms) {
  const Gain g{{1, 100}, {2, 200}};
  EXPECT_NEAR(g.at(10), 20, 1e-12);
  EXPECT_EQ(g.at(0.5), 2);
  EXPECT_EQ(g.at(1000), 200);
  EXPECT_EQ(Gain::constant(3).at(7), 3);
}

TEST(OutputVariance, OfEveryKindOfNorm) {
  EXPECT_NEAR(output_variance(site_of("rmsnorm"), 4, 4), 1, 1e-5);
  EXPECT_NEAR(output_variance(site_of("lns", 9), 4, 4), 1.0 / 9, 1e-5);
  EXPECT_NEAR(output_variance(site_of("rmsnorm"), 4, 1), 4, 1e-4);  // a statistic that is not its own
  SiteValues gained = site_of("rmsnorm");
  gained.gamma2 = 2.5;
  gained.plan.out_factor = 2;
  EXPECT_NEAR(output_variance(gained, 4, 4), 10, 1e-4);
  // BHyT lies within its sandwich, near the top where λ/κ is small: E tanh²(0.2·g) = 0.0371 by numerical integration elsewhere.
  EXPECT_NEAR(output_variance(site_of("bhyt"), 7, 7), 0.037103, 2e-5);
  // DyT: α 1 at the first site; E tanh²(g) = 0.394294.
  EXPECT_NEAR(output_variance(site_of("dyt"), 1, 1), 0.394294, 1e-5);
  EXPECT_NEAR(output_variance(site_of("dyt"), 1e6, 1), 1 - 2 / std::sqrt(2 * M_PI) * 1e-3, 1e-6);
  // erf: E erf(g)² = 2/π·asin(2/3).
  EXPECT_NEAR(output_variance(site_of("derf"), 1, 1), 2 / M_PI * std::asin(2.0 / 3), 1e-5);
}

Stack even_stack(std::int64_t layers, double c_attention, double c_mlp, double rho, double input) {
  return {
      .input = input,
      .layers = std::vector(static_cast<std::size_t>(layers),
                            LayerGains{.attention = Gain::constant(c_attention), .mlp = Gain::constant(c_mlp), .rho1 = rho, .rho2 = rho})};
}

TEST(Predict, IsWhatALoopByHandGives) {
  const Stack stack = even_stack(5, 0.5, 2, 0.25, 1.5);
  const Profile rms = predict(stack, initial_values(plan_norms({.method = "rmsnorm"}, 5, 64, 0)));
  const Profile lns = predict(stack, initial_values(plan_norms({.method = "lns"}, 5, 64, 0)));
  double a = 1.5, b = 1.5;
  for (int l = 1; l <= 5; ++l) {
    const auto i = static_cast<std::size_t>(l - 1);
    EXPECT_NEAR(rms.entrance[i], a, 1e-6 * a);
    EXPECT_NEAR(lns.entrance[i], b, 1e-6 * b);
    a = a + 0.5 + 0.5 * std::sqrt(a * 0.5);
    EXPECT_NEAR(rms.between[i], a, 1e-6 * a);
    a = a + 2 + 0.5 * std::sqrt(a * 2);
    b = b + 0.5 / l + 0.5 * std::sqrt(b * 0.5 / l);
    b = b + 2.0 / l + 0.5 * std::sqrt(b * 2.0 / l);
  }
  EXPECT_NEAR(rms.entrance[5], a, 1e-6 * a);
  EXPECT_NEAR(lns.entrance[5], b, 1e-6 * b);
  // ρ = 0 and norms on the outputs: two more in every layer, whatever the gains.
  const Profile peri = predict(even_stack(5, 0.5, 2, 0, 1.5), initial_values(plan_norms({.method = "peri"}, 5, 64, 0)));
  EXPECT_NEAR(peri.entrance[5], 11.5, 1e-5);
}

TEST(Predict, AnApproximatedSiteTakesTheBlocksInput) {
  Stack stack = even_stack(1, 3, 1, 0, 1);
  stack.layers[0].c_attn = 0.5;
  // Attention adds 3: the second site sees 4, and takes it for 1 + 0.5 (γ = 1, s_f = 1).
  const Profile approximate = predict(stack, initial_values(plan_norms({.method = "rmsnorm_approx"}, 1, 64, 0)));
  EXPECT_NEAR(approximate.entrance[1], 4 + 4 / 1.5, 1e-6);
  const Profile shared = predict(stack, initial_values(plan_norms({.method = "rmsnorm_shared"}, 1, 64, 0)));
  EXPECT_NEAR(shared.entrance[1], 4 + 4, 1e-6);
  EXPECT_NEAR(predict(stack, initial_values(plan_norms({.method = "rmsnorm"}, 1, 64, 0))).entrance[1], 5, 1e-6);
}

TEST(LargestRatio, IsFoundWhereItIsKnown) {
  // Linear as long as λ/κ is small: L·(C_A + C_M)·g² = bound − 1.
  const Stack stack = even_stack(10, 2, 3, 0, 1);
  const NormConfig bhyt{.method = "bhyt_exact"};
  const auto small = largest_ratio(stack, bhyt, 64, kEps, 1.005);
  ASSERT_TRUE(small);
  EXPECT_NEAR(*small, std::sqrt(0.005 / 50), 1e-4 * *small + 2e-6);
  // It keeps the bound, and a little more does not.
  const auto end = [&](double g) {
    NormConfig c = bhyt;
    c.lambda = {10 * g, 10 * g};
    return largest(predict(stack, initial_values(plan_norms(c, 10, 64, kEps))));
  };
  const auto some = largest_ratio(stack, bhyt, 64, kEps, 20);
  ASSERT_TRUE(some);
  EXPECT_LE(end(*some), 20);
  EXPECT_GT(end(*some * 1.001), 20);
  EXPECT_EQ(largest_ratio(stack, bhyt, 64, kEps, 1000), kUnbounded);
  EXPECT_FALSE(largest_ratio(stack, bhyt, 64, kEps, 0.9));
}

TEST(Stack, StretchesByRelativeDepth) {
  Stack stack = even_stack(2, 1, 1, 0, 1);
  stack.layers[1].rho1 = 0.5;
  const auto rhos = [](const Stack& s) {
    std::vector<double> r;
    for (const LayerGains& l : s.layers) r.push_back(l.rho1);
    return r;
  };
  EXPECT_EQ(rhos(stretched(stack, 4)), (std::vector<double>{0, 0, 0.5, 0.5}));
  EXPECT_EQ(rhos(stretched(stack, 2)), (std::vector<double>{0, 0.5}));
  EXPECT_EQ(rhos(levelled(stack)), (std::vector<double>{0.25, 0.25}));
  EXPECT_EQ(stretched(stack, 1).layers.size(), 1u);
  stack.layers[1].attention = Gain::constant(4);
  EXPECT_NEAR(levelled(stack).layers[0].attention.at(1), 2, 1e-12);
}

std::unique_ptr<Model> wide_model(Context& ctx, const std::string& method) {
  ModelConfig c;
  c.d = 48, c.layers = 3, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.mlp = 64, c.vocab = 61, c.init_std = 0.15;
  c.norm.method = method;
  c.norm.seq_len = 24;
  auto m = std::make_unique<Model>(ctx, c, DType::f32);
  m->parameters().initialize(3);
  m->refresh_constants();
  return m;
}

double plain_variance(std::span<const float> row) {
  double mean = 0, v = 0;
  for (const float x : row) mean += x / static_cast<double>(row.size());
  for (const float x : row) v += (x - mean) * (x - mean) / static_cast<double>(row.size());
  return v;
}

TEST(MeasureDepth, TermsOfTheRecursionAddUp) {
  for (Context& ctx : test::contexts())
    for (const char* method : {"rmsnorm", "bhyt", "peri", "dyt", "lns"}) {
      SCOPED_TRACE(method);
      const auto model = wide_model(ctx, method);
      const TokenRows rows = random_tokens(12, 24, 61, 5);  // more than the MLP's curve is made from
      const DepthMeasure m = measure_depth(ctx, *model, rows);
      ASSERT_EQ(m.attention.size(), 3u);
      // The profile is the variance of the blocks' inputs, token mean.
      std::vector<double> seen;
      walk_layers(ctx, *model, rows, {Point::block_input}, [&](const LayerValues& v) {
        double sum = 0;
        for (std::int64_t t = 0; t < 288; ++t) sum += plain_variance(v.at(Point::block_input).row(t)) / 288;
        seen.push_back(sum);
      });
      const std::vector<double> profile = measured_profile(m);
      for (std::size_t l = 0; l < 3; ++l) {
        EXPECT_NEAR(profile[l], seen[l], 1e-9 + 1e-6 * seen[l]);
        const double middle = add_branch(m.attention[l].stream, m.attention[l].branch, m.attention[l].rho);
        EXPECT_NEAR(middle, m.mlp[l].stream, 1e-5 * middle);
        EXPECT_NEAR(add_branch(m.mlp[l].stream, m.mlp[l].branch, m.mlp[l].rho), profile[l + 1], 1e-5 * profile[l + 1]);
        // At the size its input has, the MLP's curve is what was measured.
        EXPECT_NEAR(m.stack.layers[l].mlp.at(m.mlp[l].norm) * m.mlp[l].norm, m.mlp[l].raw, 1e-3 * m.mlp[l].raw);
      }
      // A new model's norms give what their formulas say, so the prediction is the measurement.
      const DepthError e = depth_error(predict(m.stack, learned_values(ctx, *model)), m);
      EXPECT_LT(e.worst, 0.12) << e.layer;
      EXPECT_LE(e.mean, e.worst);
    }
}

// What the planner is for: the gains of one method's model tell what another's would come to.
TEST(MeasureDepth, PredictsAnotherMethod) {
  Context& ctx = test::context_on(Device::cpu());
  const TokenRows rows = random_tokens(4, 24, 61, 5);
  const auto bhyt = wide_model(ctx, "bhyt"), rms = wide_model(ctx, "rmsnorm");
  const Stack stack = measure_depth(ctx, *bhyt, rows).stack;
  const DepthMeasure measured = measure_depth(ctx, *rms, rows);
  const Profile predicted = predict(stack, initial_values(rms->norms()));
  EXPECT_LT(depth_error(predicted, measured).worst, 0.4);
  // With the MLP's gain held at what it is for BHyT's small outputs, the prediction is far off: a gated MLP is of second degree.
  Stack constant = stack;
  for (LayerGains& l : constant.layers) l.mlp = Gain::constant(l.mlp.gain[l.mlp.gain.size() / 2]);
  EXPECT_GT(depth_error(predict(constant, initial_values(rms->norms())), measured).worst, 1);
}

TEST(DepthError, NamesTheWorstLayer) {
  DepthMeasure m;
  m.attention = {{.stream = 1}, {.stream = 2}, {.stream = 4}};
  m.output = 8;
  const DepthError e = depth_error({.entrance = {1, 2, 2, 8}}, m);
  EXPECT_EQ(e.layer, 2);
  EXPECT_NEAR(e.worst, std::log(2), 1e-12);
  EXPECT_NEAR(e.mean, std::log(2) / 3, 1e-12);
}

TEST(Variances, AreAboutEachRowsMean) {
  const Matrix a{.rows = 2, .cols = 2, .values = {1, 3, 10, 10}}, b{.rows = 2, .cols = 2, .values = {5, 1, 0, 2}};
  const Variances v = variances(a, b);
  EXPECT_DOUBLE_EQ(v.a, 0.5);
  EXPECT_DOUBLE_EQ(v.b, 2.5);
  EXPECT_DOUBLE_EQ(v.covariance, -1);
}

}  // namespace
}  // namespace bhyt::analysis
