// The toy stack against loops in double, and what is found in its profiles.
#include "analysis/toy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/devices.h"

namespace bhyt::analysis {
namespace {

using Row = std::vector<double>;
using Map = std::function<Row(const Row&, int layer)>;

constexpr int kDim = 24, kLayers = 5, kSeeds = 2;

Row scaled(const Row& x, double a, double (*f)(double)) {
  Row z;
  for (const double v : x) z.push_back(f(a * v));
  return z;
}
double same(double v) { return v; }
double rms(const Row& x, double eps) {
  double s = 0;
  for (const double v : x) s += v * v / kDim;
  return std::sqrt(s + eps);
}

struct NaiveProfile {
  Row norm = Row(kLayers + 1, 0.0), variance = Row(kLayers + 1, 0.0), output = Row(kLayers, 0.0), saturated = Row(kLayers, 0.0);

  void note(const Row& x, int at) {
    double mean = 0, square = 0;
    for (const double v : x) mean += v / kDim, square += v * v;
    norm[static_cast<std::size_t>(at)] += std::sqrt(square) / (kSeeds * kToyTokens);
    for (const double v : x) variance[static_cast<std::size_t>(at)] += (v - mean) * (v - mean) / kDim / (kSeeds * kToyTokens);
  }
};

// One variant: f of a row, and what is done to f(x)·W before it is added.
NaiveProfile naive(const std::function<Row(const Row&, int layer, std::uint64_t seed, int token)>& f, const Map& after) {
  NaiveProfile out;
  for (std::uint64_t seed = 3; seed < 3 + kSeeds; ++seed) {
    std::vector<Row> x(kToyTokens, Row(kDim));
    for (int t = 0; t < kToyTokens; ++t)
      for (int i = 0; i < kDim; ++i) x[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)] = toy_input(seed, t, i, kDim);
    for (int layer = 1; layer <= kLayers; ++layer) {
      double square = 0, beyond = 0;
      for (int t = 0; t < kToyTokens; ++t) {
        Row& row = x[static_cast<std::size_t>(t)];
        out.note(row, layer - 1);
        const Row z = f(row, layer, seed, t);
        Row h(kDim, 0.0);
        for (int i = 0; i < kDim; ++i)
          for (int j = 0; j < kDim; ++j)
            h[static_cast<std::size_t>(j)] += z[static_cast<std::size_t>(i)] * toy_weight(seed, layer, i, j, kDim);
        h = after(h, layer);
        for (int j = 0; j < kDim; ++j) row[static_cast<std::size_t>(j)] += h[static_cast<std::size_t>(j)];
        for (const double v : z) square += v * v / (kDim * kToyTokens), beyond += (std::fabs(v) > 0.95) / double(kDim * kToyTokens);
      }
      out.output[static_cast<std::size_t>(layer - 1)] += std::sqrt(square) / kSeeds;
      out.saturated[static_cast<std::size_t>(layer - 1)] += beyond / kSeeds;
    }
    for (const Row& row : x) out.note(row, kLayers);
  }
  return out;
}

void expect_same(const ToyProfile& p, const NaiveProfile& n, bool bounded) {
  SCOPED_TRACE(p.variant.name);
  ASSERT_EQ(p.norm.size(), n.norm.size());
  for (std::size_t i = 0; i < n.norm.size(); ++i) {
    EXPECT_NEAR(p.norm[i], n.norm[i], 1e-5 * n.norm[i]) << i;
    EXPECT_NEAR(p.variance[i], n.variance[i], 1e-5 * n.variance[i]) << i;
  }
  for (std::size_t i = 0; i < n.output.size(); ++i) {
    EXPECT_NEAR(p.output[i], n.output[i], 1e-5 * n.output[i]) << i;
    EXPECT_NEAR(p.saturated[i], bounded ? n.saturated[i] : 0, 1e-9) << i;
  }
}

TEST(Toy, IsTheStackOfPlainLoops) {
  const auto none = [](const Row& h, int) { return h; };
  for (Context& ctx : test::contexts()) {
    const std::vector<ToyVariant> variants = toy_variants(kLayers, kDim);
    const auto profiles = run_toy(ctx, variants, {.d = kDim, .layers = kLayers, .seeds = kSeeds, .first_seed = 3});
    const auto of = [&](const std::string& name) -> const ToyProfile& {
      return *std::find_if(profiles.begin(), profiles.end(), [&](const ToyProfile& p) { return p.variant.name == name; });
    };
    const auto row_map = [&](const Map& f) {
      return naive([&](const Row& x, int layer, std::uint64_t, int) { return f(x, layer); }, none);
    };
    expect_same(of("rmsnorm"), row_map([](const Row& x, int) { return scaled(x, 1 / rms(x, 1e-5), same); }), false);
    expect_same(of("lns"), row_map([](const Row& x, int l) { return scaled(x, 1 / rms(x, 1e-5) / std::sqrt(l), same); }), false);
    expect_same(of("dyt α=2"), row_map([](const Row& x, int) { return scaled(x, 2, std::tanh); }), true);
    expect_same(of("bhyt"), row_map([](const Row& x, int) { return scaled(x, 0.2 / rms(x, 1e-6), std::tanh); }), true);
    expect_same(of("bhyt λ=8"), row_map([](const Row& x, int) { return scaled(x, 0.8 / rms(x, 1e-6), std::tanh); }), true);
    expect_same(of("noise c=0.7"),
                naive(
                    [](const Row&, int layer, std::uint64_t seed, int token) {
                      Row z;
                      for (int i = 0; i < kDim; ++i) z.push_back(0.7 * toy_noise(seed, layer, token, i, kDim));
                      return z;
                    },
                    none),
                false);
    expect_same(of("peri"),
                naive([](const Row& x, int, std::uint64_t, int) { return scaled(x, 1 / rms(x, 1e-5), same); },
                      [](const Row& h, int) { return scaled(h, 1 / rms(h, 1e-5), same); }),
                false);
  }
}

TEST(Toy, HasEveryMethodOnce) {
  const std::vector<ToyVariant> variants = toy_variants(4, 16);
  for (const Method& m : methods()) {
    int count = 0;
    for (const ToyVariant& v : variants)
      if (v.norm && !v.setting) count += v.name == m.name || std::ranges::find(v.same, m.name) != v.same.end();
    EXPECT_EQ(count, 1) << m.name;
  }
  const auto bhyt = std::ranges::find(variants, "bhyt", &ToyVariant::name);
  EXPECT_EQ(bhyt->same, (std::vector<std::string>{"bhyt_exact"}));
}

ToyProfile profile(const std::string& family, double setting, Row variance, double output, double saturated) {
  ToyProfile p;
  p.variant = {.name = family, .family = family, .setting = setting};
  if (family != "noise") p.variant.norm = NormConfig{};
  p.variance = std::move(variance);
  p.output = {0, output};
  p.saturated = {0, saturated};
  return p;
}

TEST(Toy, FindsWhereGrowthTurnsRapid) {
  std::vector<ToyProfile> all{profile("noise", 0.5, {2, 3, 4}, 0.5, 0),  profile("noise", 1.0, {2, 6, 10}, 1, 0),
                              profile("dyt", 0.2, {1, 1, 1}, 0.25, 0.1), profile("dyt", 0.6, {1, 1, 1}, 0.75, 0.5),
                              profile("a", 0, {1, 2, 3}, 1, 0),          profile("b", 0, {2, 4, 5}, 1, 0)};
  for (std::size_t i : {4u, 5u}) all[i].variant.setting.reset();
  // Added in a layer, of what there was: 0.5 at c = 0.5, 2 at c = 1.
  const ToyFindings f = toy_findings(all);
  ASSERT_TRUE(f.rapid_noise);
  EXPECT_NEAR(*f.rapid_noise, 0.5 + 0.5 / 3, 1e-12);
  EXPECT_NEAR(*f.rapid_alpha, 0.2 + 0.4 * (*f.rapid_noise - 0.25) / 0.5, 1e-12);
  EXPECT_NEAR(*f.saturated_alpha, 0.6, 1e-12);
  EXPECT_EQ(f.flattest, (std::vector<std::string>{"b"}));
  EXPECT_EQ(f.flattest_growth, 2.5);
  // At full width: W's variance is 2/d, so c = 1/√2.
  Context& ctx = test::context_on(Device::cpu());
  const ToyFindings real = toy_findings(run_toy(ctx, toy_variants(8, 256), {.d = 256, .layers = 8, .seeds = 1}));
  EXPECT_NEAR(*real.rapid_noise, std::sqrt(0.5), 0.05);
}

TEST(Toy, FiguresHoldTheirLines) {
  Context& ctx = test::context_on(Device::cpu());
  const auto profiles = run_toy(ctx, toy_variants(3, 8), {.d = 8, .layers = 3, .seeds = 1});
  const std::string svg = toy_figure(profiles), all = toy_methods_figure(profiles);
  for (const char* part : {"noise c=0.7", "dyt α=0.5", "bhyt λ=2", ">rmsnorm<", "variance", "magnitude"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.find(">peri<"), std::string::npos);
  EXPECT_NE(all.find(">peri<"), std::string::npos);
  // Nothing that a page's style sheet would have to say.
  EXPECT_NE(svg.find("xmlns=\"http://www.w3.org/2000/svg\""), std::string::npos);
  EXPECT_NE(svg.find("color:#c0629a"), std::string::npos);
  EXPECT_EQ(svg.find("var("), std::string::npos);
}

}  // namespace
}  // namespace bhyt::analysis
