// The statements: against numbers that scripts/make_theory_golden.py computed by itself with numpy, and their parts against closed forms.
#include "analysis/theory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "analysis/theory_model.h"
#include "core/check.h"
#include "core/rng.h"
#include "tests/devices.h"

namespace bhyt::analysis {
namespace {

using Json = nlohmann::json;

std::vector<double> normals(std::uint64_t stream, std::size_t n) {
  std::vector<double> v;
  for (std::size_t i = 0; i < n; ++i) v.push_back(normal(5, stream, i));
  return v;
}

TEST(Theory, RandomChecksAreWhatNumpyFinds) {
  std::ifstream in(std::string(BHYT_TEST_DIR) + "/golden/theory.json");
  const Json golden = Json::parse(in);
  for (Context& ctx : test::contexts()) {
    const std::vector<Statement> all = check_theory(ctx);
    ASSERT_EQ(all.size(), golden.size());
    for (const Statement& s : all) {
      SCOPED_TRACE(s.id);
      const Json& g = golden.at(s.id);
      const Finding& f = s.random;
      EXPECT_EQ(name_of(f.verdict), g.at("verdict").get<std::string>());
      EXPECT_EQ(f.checks, g.at("checks"));
      EXPECT_EQ(f.failed, 0);
      EXPECT_EQ(f.beyond, g.at("beyond"));
      EXPECT_EQ(f.beyond_failed, g.at("beyond_failed"));
      EXPECT_NEAR(f.margin, g.at("margin").get<double>(), 2e-6) << f.worst;  // what is computed in fp32 allows no more
      EXPECT_NEAR(f.mean_margin, g.at("mean_margin").get<double>(), 2e-6);
      ASSERT_EQ(f.assumptions.size(), g.at("measured").size());
      for (std::size_t i = 0; i < f.assumptions.size(); ++i) {
        const double expected = g.at("measured")[i];
        EXPECT_NEAR(f.assumptions[i].measured, expected, 1e-5 * std::fabs(expected)) << f.assumptions[i].name;
      }
    }
  }
}

TEST(Theory, VerdictsFollowFromTheCases) {
  Finding f;
  f.settle();
  EXPECT_EQ(f.verdict, Verdict::not_met);
  f.add(0.5, "a");
  f.add(0.25, "b");
  f.settle();
  EXPECT_EQ(f.verdict, Verdict::holds);
  EXPECT_EQ(f.worst, "b");
  EXPECT_EQ(f.mean_margin, 0.375);
  f.add_beyond(true);
  f.settle();
  EXPECT_EQ(f.verdict, Verdict::holds);
  f.add_beyond(false);
  f.settle();
  EXPECT_EQ(f.verdict, Verdict::under_assumptions);
  f.add(-1e-9, "within rounding", 1e-8);
  f.settle();
  EXPECT_EQ(f.verdict, Verdict::under_assumptions);
  f.add(std::nan(""), "not a number");
  f.settle();
  EXPECT_EQ(f.verdict, Verdict::fails);
  EXPECT_EQ(f.worst, "not a number");
}

TEST(Theory, ChebyshevsShareCountsItsEdge) {
  const std::vector<double> x{-2, -1, 0, 1, 2};
  EXPECT_EQ(share_within(x, 1, 1), 0.6);
  EXPECT_EQ(share_within(x, 1, 2), 1);
  EXPECT_EQ(share_within(x, 2, 1.9), 0.2);
}

TEST(SpectralNorm, OfMatricesWhoseNormIsKnown) {
  EXPECT_NEAR(spectral_norm({3, 0, 0, -5}, 2), 5, 1e-14);
  EXPECT_NEAR(spectral_norm({0, 2, 0, 0}, 2), 2, 1e-14);
  // [[1,1],[0,1]]: the golden ratio.
  EXPECT_NEAR(spectral_norm({1, 1, 0, 1}, 2), (1 + std::sqrt(5.0)) / 2, 1e-14);
  // u vᵀ: |u|·|v|.
  for (const std::int64_t n : {1, 7, 33}) {
    const std::vector<double> u = normals(1, static_cast<std::size_t>(n)), v = normals(2, static_cast<std::size_t>(n));
    std::vector<double> m;
    double uu = 0, vv = 0;
    for (const double a : u) {
      uu += a * a;
      for (const double b : v) m.push_back(a * b);
    }
    for (const double b : v) vv += b * b;
    EXPECT_NEAR(spectral_norm(m, n), std::sqrt(uu * vv), 1e-12 * std::sqrt(uu * vv)) << n;
  }
  // diag(1 … 20) behind a reflection is as long as it is, and its columns are not at right angles.
  std::vector<double> m(400, 0.0);
  const std::vector<double> v = normals(3, 20);
  double vv = 0;
  for (const double a : v) vv += a * a;
  for (std::size_t i = 0; i < 20; ++i)
    for (std::size_t j = 0; j < 20; ++j) m[i * 20 + j] = ((i == j ? 1 : 0) - 2 * v[i] * v[j] / vv) * static_cast<double>(i + 1);
  EXPECT_NEAR(spectral_norm(m, 20), 20, 1e-12);
}

// diag(m)·(I − x xᵀ/(d·s²))/s as a matrix.
std::vector<double> jacobian_matrix(const JacobianInput& in) {
  const std::size_t n = in.x.size();
  const double s2 = moments(in.x).square + in.eps, s = std::sqrt(s2);
  std::vector<double> j(n * n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c < n; ++c) {
      const double t = std::tanh(in.gain * in.x[r] / s), m = in.gamma[r] * (in.bounded ? in.gain * (1 - t * t) : 1);
      j[r * n + c] = m * ((r == c ? 1 : 0) - in.x[r] * in.x[c] / (static_cast<double>(n) * s2)) / s;
    }
  return j;
}

TEST(JacobianNorm, IsThatOfTheMatrix) {
  std::uint64_t stream = 10;
  for (const std::size_t n : {1u, 2u, 5u, 24u})
    for (const double gain : {0.1, 0.8, 3.0})
      for (const bool bounded : {false, true})
        for (const bool learned : {false, true}) {
          const std::vector<double> x = normals(stream++, n), gamma = learned ? normals(stream++, n) : std::vector(n, 1.0);
          const JacobianInput in{.x = x, .gamma = gamma, .gain = gain, .eps = 1e-3, .bounded = bounded};
          const double expected = spectral_norm(jacobian_matrix(in), static_cast<std::int64_t>(n));
          EXPECT_NEAR(jacobian_norm(in), expected, 1e-11 * expected) << n << " " << gain << bounded << learned;
        }
  // γ = 1: RMSNorm stretches all directions but x's by 1/s.
  const std::vector<double> x{3, -1, 2}, ones(3, 1.0);
  EXPECT_NEAR(jacobian_norm({.x = x, .gamma = ones, .eps = 0}), std::sqrt(3.0 / 14), 1e-14);
}

TEST(Sandwich, OfTwoPointsIsItsLowerBound) {
  const std::vector<double> x{1, -1};
  const Sandwich tight = sandwich(x, 0.5, 1), loose = sandwich(x, 0.5, 2);
  EXPECT_TRUE(tight.bounded);
  EXPECT_NEAR(tight.value, std::pow(std::tanh(0.5), 2), 1e-15);
  EXPECT_NEAR(tight.low, tight.value, 1e-15);
  EXPECT_NEAR(loose.value, std::pow(std::tanh(0.25), 2), 1e-15);
  EXPECT_NEAR(loose.high, 0.0625, 1e-15);
  EXPECT_FALSE(sandwich(x, 0.5, 0.9).bounded);
}

TEST(Recursion, IsWhatAPencilGives) {
  // s² 4, branch 2·0.5 = 1, ρ 0.5: 4 + 1 + 2·0.5·2·1 = 7; then 3·3 = 9, ρ −1/3: 7 + 9 − 2·√63/3.
  const std::vector<RecursionLayer> layers{{.c_attention = 2, .c_mlp = 3, .rho1 = 0.5, .rho2 = -1.0 / 3, .f1 = 0.5, .f2 = 3},
                                           {.c_attention = 1, .c_mlp = 0, .rho1 = 0, .rho2 = 1, .f1 = 2, .f2 = 5}};
  const std::vector<double> s = recursion(4, layers);
  ASSERT_EQ(s.size(), 3u);
  EXPECT_EQ(s[0], 4);
  EXPECT_NEAR(s[1], 16 - 2 * std::sqrt(63.0) / 3, 1e-13);
  EXPECT_NEAR(s[2], s[1] + 2, 1e-13);
  EXPECT_NEAR(product_form(4, layers), s[2], 1e-13);
}

// A model whose keys are zero looks at all that came before alike.
TEST(AttentionConcentration, OfUniformAndOfSharpAttention) {
  Context& ctx = test::context_on(Device::cpu());
  ModelConfig c;
  c.heads = 2, c.kv_heads = 1, c.head_dim = 2;
  const TokenRows rows{.batch = 2, .seq = 3};
  Matrix q{.rows = 6, .cols = 4, .values = std::vector<float>(24, 1.0f)}, k{.rows = 6, .cols = 2, .values = std::vector<float>(12, 0.0f)};
  EXPECT_NEAR(attention_concentration(ctx, c, rows, q, k), (1 + 1.0 / 2 + 1.0 / 3) / 3, 1e-6);
  // In the second row every query looks at the first key alone.
  k.values[6] = k.values[7] = 1000;
  EXPECT_NEAR(attention_concentration(ctx, c, rows, q, k), ((1 + 1.0 / 2 + 1.0 / 3) / 3 + 1) / 2, 1e-6);
  // The second head's queries turn away from it: what is left is alike.
  for (std::size_t t = 3; t < 6; ++t) q.values[4 * t + 2] = q.values[4 * t + 3] = -1;
  const double away = (1 + 1 + 1.0 / 2) / 3;
  EXPECT_NEAR(attention_concentration(ctx, c, rows, q, k), ((1 + 1.0 / 2 + 1.0 / 3) / 3 + (1 + away) / 2) / 2, 1e-6);
}

// Heads that share keys are neighbours.
TEST(AttentionConcentration, OfGroupedHeads) {
  Context& ctx = test::context_on(Device::cpu());
  ModelConfig c;
  c.heads = 4, c.kv_heads = 2, c.head_dim = 1;
  Matrix q{.rows = 2, .cols = 4, .values = {0, 0, 0, 0, 0, 500, 0, 500}}, k{.rows = 2, .cols = 2, .values = {1, 0, 0, 0}};
  // The second token's heads: 0 has no query, 1 looks at the first key of the first pair alone, 2 and 3 meet keys of zeros.
  EXPECT_NEAR(attention_concentration(ctx, c, {.batch = 1, .seq = 2}, q, k), (4 + 0.5 + 1 + 0.5 + 0.5) / 8, 1e-6);
}

std::unique_ptr<Model> narrow_model(Context& ctx, const std::string& method) {
  ModelConfig c;
  c.d = 32, c.layers = 3, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.mlp = 48, c.vocab = 61, c.init_std = 0.1;
  c.norm.method = method;
  c.norm.seq_len = 16;
  auto m = std::make_unique<Model>(ctx, c, DType::f32);
  m->parameters().initialize(3);
  m->refresh_constants();
  return m;
}

const Finding& on_model(const std::vector<Statement>& all, const std::string& id) {
  for (const Statement& s : all)
    if (s.id == id) return *s.model;
  throw Error("no statement " + id);
}

TEST(TheoryOnAModel, HoldsWhereItMust) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      SCOPED_TRACE(std::string(method.name));
      const auto model = narrow_model(ctx, std::string(method.name));
      std::vector<Statement> all(7);
      const char* const ids[] = {"chebyshev", "jacobian", "sandwich", "attention", "mlp", "recursion", "comparison"};
      for (std::size_t i = 0; i < 7; ++i) all[i].id = ids[i];
      check_theory_on(ctx, *model, random_tokens(4, 16, 61, 2), all);
      const bool given = method.scale == ScaleKind::lambda && method.site2 == SiteStat::approximate;
      const Finding &chebyshev = on_model(all, "chebyshev"), &jacobian = on_model(all, "jacobian");
      EXPECT_EQ(chebyshev.checks, given ? 192 : 384);  // 3 layers of 64 tokens
      EXPECT_EQ(chebyshev.beyond, given ? 192 : 0);
      EXPECT_EQ(chebyshev.failed, 0);
      EXPECT_EQ(jacobian.checks, 48);
      EXPECT_EQ(jacobian.failed, 0);
      EXPECT_GT(jacobian.margin, 0);
      EXPECT_EQ(on_model(all, "sandwich").failed, 0);
      EXPECT_EQ(on_model(all, "recursion").failed, 0);
      EXPECT_EQ(on_model(all, "recursion").checks, 6);
      // Whatever fails is laid to an assumption, and the factors make up the whole.
      for (const char* id : {"attention", "mlp"}) {
        const Finding& f = on_model(all, id);
        EXPECT_EQ(f.failed, 0) << id << f.worst;
        EXPECT_EQ(f.checks + f.beyond, 3) << id;
      }
      EXPECT_FALSE(on_model(all, "attention").assumptions[3].met) << "causal attention sees less than T";
    }
}

// One layer, so that the factors of its assumptions are those of the whole.
TEST(TheoryOnAModel, FactorsMakeUpTheDifference) {
  Context& ctx = test::context_on(Device::cpu());
  for (const char* method : {"bhyt", "rmsnorm", "dyt", "peri"}) {
    ModelConfig c = narrow_model(ctx, method)->config();
    c.layers = 1;
    Model model(ctx, c, DType::f32);
    model.parameters().initialize(4);
    model.refresh_constants();
    std::vector<Statement> all(7);
    all[0].id = "attention", all[1].id = "mlp";
    check_theory_on(ctx, model, random_tokens(3, 16, 61, 2), all);
    for (const char* id : {"attention", "mlp"}) {
      const Finding& f = on_model(all, id);
      double product = 1;
      for (std::size_t i = 0; i + 1 < f.assumptions.size(); ++i) product *= f.assumptions[i].measured;
      EXPECT_NEAR(product / f.assumptions.back().measured, 1, 1e-5) << method << " " << id;
    }
  }
}

TEST(TheoryOnAModel, RefusesWhatIsNotFinite) {
  Context& ctx = test::context_on(Device::cpu());
  const auto model = narrow_model(ctx, "rmsnorm");
  for (const Parameter& p : model->parameters().list())
    if (p.name == "model.layers.1.mlp.down_proj.weight") {
      auto v = model->parameters().read_value(p);
      v[0] = std::nanf("");
      model->parameters().write_value(p, v.data());
    }
  std::vector<Statement> all;
  try {
    check_theory_on(ctx, *model, random_tokens(1, 16, 61, 2), all);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("layer 2: block_output holds values that are not finite"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace bhyt::analysis
