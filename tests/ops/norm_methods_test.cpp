// The table of norm methods, and what a config makes of it.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "core/error.h"
#include "tests/ops/norm_case.h"

namespace bhyt::testing {
namespace {

// How many rows a block looks at: as docs/method.md counts them for the methods it names, and as a row says for any other.
TEST(NormMethods, ExactStatisticsPerBlock) {
  const std::map<std::string, int> named{{"layernorm", 2}, {"rmsnorm", 2},        {"lns", 2},        {"peri", 4},
                                         {"dyt", 0},       {"derf", 0},           {"seednorm", 2},   {"rmsnorm_approx", 1},
                                         {"bhyt", 1},      {"rmsnorm_shared", 1}, {"bhyt_exact", 2}, {"bhyt_star", 2}};
  const auto looks = [](SiteStat s) { return s == SiteStat::rms || s == SiteStat::mean_var || s == SiteStat::mean_std; };
  std::size_t seen = 0;
  for (const Method& m : methods()) {
    const BlockPlan b = plan_of(m.name).blocks[0];
    int exact = 0;
    for (const auto& site : {std::optional(b.site1), std::optional(b.site2), b.out1, b.out2})
      exact += site && site->stat != Stat::none && site->stat != Stat::given;
    EXPECT_EQ(exact, looks(m.site1) + looks(m.site2) + (m.place == Place::pre_and_post ? 2 : 0)) << m.name;
    const auto it = named.find(std::string(m.name));
    if (it == named.end()) continue;
    EXPECT_EQ(exact, it->second) << m.name;
    ++seen;
  }
  EXPECT_EQ(seen, named.size());
}

TEST(NormMethods, LnsScalesBothSitesButNotTheEnd) {
  const NormPlan plan = plan_of("lns", 9);
  for (int l = 1; l <= 9; ++l) {
    EXPECT_FLOAT_EQ(plan.blocks[static_cast<std::size_t>(l - 1)].site1.factor, static_cast<float>(1 / std::sqrt(l)));
    EXPECT_FLOAT_EQ(plan.blocks[static_cast<std::size_t>(l - 1)].site2.factor, static_cast<float>(1 / std::sqrt(l)));
  }
  EXPECT_EQ(plan.last.factor, 1);
}

TEST(NormMethods, OptionsSettlePerLayer) {
  NormConfig c;
  c.kappa_schedule = KappaSchedule::grow;
  c.gain = Gain::unit;
  c.depth_gain = Depth::inv_sqrt;
  c.exact_list = {2};
  c.first_layer = 2, c.last_layer = 4, c.elsewhere = "lns";
  c.lambda_last = 3;
  const NormPlan p = plan_norms(c, 5, 64, 1e-5);
  EXPECT_EQ(p.blocks[0].site1.map, Map::id);
  EXPECT_EQ(p.blocks[4].site1.scale, ScaleKind::none);
  EXPECT_EQ(p.blocks[1].site2.stat, Stat::rms);
  EXPECT_EQ(p.blocks[2].site2.stat, Stat::given);
  EXPECT_EQ(p.approximated, 2);
  EXPECT_FLOAT_EQ(p.blocks[3].site1.factor, 1.0f / 20);      // κ·√4
  EXPECT_FLOAT_EQ(p.blocks[3].site1.gamma0, 20.0f / 2 / 2);  // κ/λ/√ℓ
  EXPECT_FLOAT_EQ(p.last.factor, static_cast<float>(1 / (10 * std::sqrt(6.0))));
  EXPECT_FLOAT_EQ(p.last.gamma0, static_cast<float>(10 * std::sqrt(6.0) / 3));
  EXPECT_FLOAT_EQ(p.last.eps, 1e-6f);
}

// λ/κ and 1/√ℓ inside the map multiply each other, as do the factors outside.
TEST(NormMethods, DepthAndLambdaMultiply) {
  Method both = method("bhyt");
  both.depth = Depth::inv_sqrt;
  const SitePlan s = plan_site({}, both, SiteStat::rms, 4, 0, 64, 1e-5);
  EXPECT_FLOAT_EQ(s.factor, 1.0f / 10 / 2);  // 1/κ/√ℓ
  EXPECT_EQ(s.out_factor, 1);
}

TEST(NormMethods, ConstantFactorsStandOutsideTheMap) {
  NormConfig c;
  c.kappa_schedule = KappaSchedule::grow;
  c.gain = Gain::fixed_unit;
  c.depth_factor = Depth::inv_sqrt;
  c.lambda = {4.0, 1.0};
  c.lambda_last = 3;
  const NormPlan p = plan_norms(c, 5, 64, 1e-5);
  EXPECT_FLOAT_EQ(p.blocks[3].site1.out_factor, 20.0f / 4 / 2);  // κ·√4/λ/√4
  EXPECT_FLOAT_EQ(p.blocks[3].site2.out_factor, 20.0f / 1 / 2);
  EXPECT_FLOAT_EQ(p.blocks[3].site1.factor, 1.0f / 20);
  EXPECT_EQ(p.blocks[3].site1.gamma0, 1);
  EXPECT_EQ(p.last.out_factor, 1);
  EXPECT_EQ(p.last.gamma0, 1);
  c = {};
  c.method = "peri";
  c.depth_factor = Depth::inv_sqrt;
  const NormPlan peri = plan_norms(c, 4, 64, 1e-5);
  EXPECT_FLOAT_EQ(peri.blocks[3].site2.out_factor, 0.5f);
  EXPECT_EQ(peri.blocks[3].out2->out_factor, 1);
}

TEST(NormMethods, EtaReadsNoConstant) {
  NormConfig c;
  for (const Correction correction : {Correction::none, Correction::beta, Correction::eta, Correction::residual_aware}) {
    c.correction = correction;
    const NormPlan p = plan_norms(c, 3, 64, 1e-5);
    EXPECT_EQ(p.blocks[1].uses_constant, correction != Correction::eta);
    EXPECT_TRUE(p.blocks[1].approximated);
    EXPECT_EQ(p.approximated, 3);
  }
}

TEST(NormMethods, EndsAsTheTableSays) {
  EXPECT_EQ(plan_of("bhyt").last.map, Map::id);
  EXPECT_FLOAT_EQ(plan_of("bhyt").last.eps, 1e-5f);
  EXPECT_EQ(plan_of("dyt").last.map, Map::tanh);
  EXPECT_EQ(plan_of("derf").last.map, Map::erf);
  EXPECT_EQ(plan_of("layernorm").last.stat, Stat::mean_var);
  EXPECT_TRUE(plan_of("seednorm").last.seed);
  EXPECT_FALSE(plan_of("peri").blocks[0].out1->seed);
  EXPECT_FLOAT_EQ(plan_of("dyt", 4, 3072).blocks[0].site1.scale0, 0.2f);
}

// Rows that the table would not compile with; each one change away from a row that is fine.
TEST(NormMethods, RowsThatMakeNoSense) {
  for (const Method& m : methods()) EXPECT_EQ(fault(m), "") << m.name;
  const auto expect_fault = [](const char* name, const char* why, auto&& change) {
    Method m = method(name);
    change(m);
    EXPECT_NE(fault(m).find(why), std::string_view::npos) << name << ": " << fault(m);
  };
  const auto posts = [](Method& m) { m.place = Place::pre_and_post; };
  for (const char* name : {"bhyt", "rmsnorm_approx", "rmsnorm_shared"}) expect_fault(name, "added without a norm", posts);
  for (const char* name : {"layernorm", "rmsnorm", "dyt", "bhyt_exact"}) {
    Method m = method(name);
    posts(m);
    EXPECT_EQ(fault(m), "") << name;
  }
  expect_fault("bhyt", "dispatch_map", [](Method& m) { m.map = static_cast<Map>(99); });
  expect_fault("rmsnorm", "no statistic before it", [](Method& m) { m.site1 = SiteStat::block_input; });
  expect_fault("bhyt", "mean square", [](Method& m) { m.site1 = SiteStat::mean_std; });
  expect_fault("rmsnorm_shared", "constant", [](Method& m) { m.gamma_in_constant = true; });
  expect_fault("rmsnorm", "alpha", [](Method& m) { m.site2 = SiteStat::none; });
  expect_fault("rmsnorm", "alpha", [](Method& m) { m.scale = ScaleKind::alpha; });
  expect_fault("seednorm", "gated", [](Method& m) { m.map = Map::tanh; });
  expect_fault("seednorm", "beta", [](Method& m) { m.beta = true; });
  expect_fault("rmsnorm", "shift", [](Method& m) { m.shift = true; });
  expect_fault("bhyt", "rms_or_exact", [](Method& m) { m.end = End::own; });
  expect_fault("rmsnorm", "lambda_last", [](Method& m) { m.end = End::rms_or_exact; });
}

TEST(NormMethods, RefusesWhatMakesNoSense) {
  EXPECT_THROW(plan_of("rmsnrm"), UsageError);
  NormConfig c;
  c.exact_first = 9;
  EXPECT_THROW(plan_norms(c, 4, 64, 1e-5), UsageError);
  c = {};
  c.calibration = {1, 1};
  EXPECT_THROW(plan_norms(c, 4, 64, 1e-5), UsageError);
  c = {};
  c.method = "rmsnorm", c.correction = Correction::eta;
  EXPECT_THROW(plan_norms(c, 4, 64, 1e-5), UsageError);
  for (const Gain gain : {Gain::unit, Gain::fixed_unit}) {  // κ/λ needs a λ somewhere
    c = {};
    c.method = "rmsnorm", c.gain = gain;
    EXPECT_THROW(plan_norms(c, 4, 64, 1e-5), UsageError);
    c.first_layer = 1, c.last_layer = 2, c.elsewhere = "bhyt";
    EXPECT_NO_THROW(plan_norms(c, 4, 64, 1e-5));
  }
  c = {};
  c.method = "lns", c.depth_factor = Depth::inv_sqrt;
  EXPECT_THROW(plan_norms(c, 4, 64, 1e-5), UsageError);
  c.method = "bhyt", c.elsewhere = "lns";
  EXPECT_NO_THROW(plan_norms(c, 4, 64, 1e-5));
  c.first_layer = 1, c.last_layer = 2;
  EXPECT_THROW(plan_norms(c, 4, 64, 1e-5), UsageError);
  EXPECT_EQ(refresh_interval({}, 20000), 400);
  EXPECT_EQ(refresh_interval({}, 10), 1);
  EXPECT_EQ(refresh_interval({}, 1000000), 1000);
}

}  // namespace
}  // namespace bhyt::testing
