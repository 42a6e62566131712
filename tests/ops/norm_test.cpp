// The norm family: every kind of site that a row of the method table can ask for, at odd sizes and on awkward data.
#include "ops/norm/norm.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include "core/error.h"
#include "ops/norm/methods.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

// Options of a case beside the site itself.
struct Extra {
  Fill fill = Fill::normal;
  double scale = 1;  // of the data
  double offset = 0;
  bool add = false;   // the norm sees x + h
  double lambda = 0;  // instead of the plan's
  Correction correction = Correction::none;
  double calibration = 1;
  double aux = 0;
  bool stop = false;
};

double map_value(Map map, double u) { return map == Map::tanh ? std::tanh(u) : map == Map::erf ? std::erf(u) : u; }

// One row in double: z from x (and the block input's mean square where the statistic is given).
struct RowReference {
  SitePlan plan;
  const Arrays& a;
  std::int64_t c;
  double param(const std::string& name, std::int64_t j, double otherwise) const {
    const auto it = a.find(name);
    return it == a.end() ? otherwise : it->second[static_cast<std::size_t>(j)];
  }
  void run(const double* x, double* z, double given) const {
    double mean = 0, ms = 0, var = 0, dot = 0;
    for (std::int64_t j = 0; j < c; ++j) mean += x[j] / static_cast<double>(c), ms += x[j] * x[j] / static_cast<double>(c);
    for (std::int64_t j = 0; j < c; ++j)
      var += (x[j] - mean) * (x[j] - mean) / static_cast<double>(c), dot += x[j] * param("direction", j, 0);
    const double k = plan.factor * param("scale", 0, 1), eps = plan.eps;
    double scale = k, centre = 0;
    switch (plan.stat) {
      case Stat::none: break;
      case Stat::rms: scale = k / std::sqrt(ms + eps); break;
      case Stat::mean_var: scale = k / std::sqrt(var + eps), centre = mean; break;
      case Stat::mean_std: scale = k / (std::sqrt(var + eps) + plan.factor * std::fabs(mean)); break;
      case Stat::given: scale = k / std::sqrt(given + eps); break;
    }
    for (std::int64_t j = 0; j < c; ++j) {
      const double gamma = param("gamma", j, 1) + (plan.seed ? std::tanh(dot) * param("gate", j, 0) : 0);
      z[j] = gamma * map_value(plan.map, scale * (x[j] - centre) + param("shift", 0, 0)) + param("beta", j, 0);
    }
  }
};

double mean_square(const double* x, std::int64_t c) {
  double s = 0;
  for (std::int64_t j = 0; j < c; ++j) s += x[j] * x[j];
  return s / static_cast<double>(c);
}

std::vector<Input> site_inputs(const SitePlan& plan, std::int64_t n, std::int64_t c, const Extra& e) {
  // The auxiliary loss holds rms(x')² constant, which differences in x would not.
  std::vector<Input> in{{"x", {n, c}, e.aux > 0 ? Role::constant : Role::activation, e.fill, e.scale, e.offset},
                        {"gamma", {c}, Role::parameter, Fill::normal, 0.3, 1}};
  if (e.add) in.push_back({"h", {n, c}, Role::activation, Fill::normal, 0.5});
  if (plan.beta) in.push_back({"beta", {c}, Role::parameter, Fill::normal, 0.3});
  if (plan.scale != ScaleKind::none) in.push_back({"scale", {1}, Role::parameter, Fill::uniform, 0, e.lambda > 0 ? e.lambda : plan.scale0});
  if (plan.shift) in.push_back({"shift", {1}, Role::parameter, Fill::uniform, 0, 0.2});
  if (plan.seed) {
    in.push_back({"gate", {c}, Role::parameter, Fill::normal, 0.5, 1});
    in.push_back({"direction", {c}, Role::parameter, Fill::normal, 0.3 / std::sqrt(static_cast<double>(c))});
  }
  return in;
}

Tensor value(Context& c, const std::string& name, bool there) { return there ? c[name] : Tensor{}; }
Tensor gradient(Context& c, const std::string& name, bool there) { return there ? c.grad(name) : Tensor{}; }

NormSite site_of(Context& c, const SitePlan& p) {
  return {.stat = p.stat,
          .map = p.map,
          .factor = p.factor,
          .eps = p.eps,
          .gamma = c["gamma"],
          .beta = value(c, "beta", p.beta),
          .scale = value(c, "scale", p.scale != ScaleKind::none),
          .shift = value(c, "shift", p.shift),
          .gate = value(c, "gate", p.seed),
          .direction = value(c, "direction", p.seed)};
}
NormGrads grads_of(Context& c, const SitePlan& p) {
  return {.gamma = c.grad("gamma"),
          .beta = gradient(c, "beta", p.beta),
          .scale = gradient(c, "scale", p.scale != ScaleKind::none),
          .shift = gradient(c, "shift", p.shift),
          .gate = gradient(c, "gate", p.seed),
          .direction = gradient(c, "direction", p.seed)};
}

// A site that looks at its own input.
Case exact_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, const Extra& e) {
  Case k;
  k.name = fmt::format("{} {}x{}{}", name, n, c, e.add ? " add" : "");
  k.inputs = site_inputs(plan, n, c, e);
  k.outputs = {{"z", {n, c}}};
  if (e.add) k.outputs.push_back({"sum", {n, c}});
  k.reference = [=](Arrays& a, Round round) {
    auto x = a["x"];
    if (e.add)
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = a["sum"][i] = round(x[i] + a["h"][i]);
    const RowReference row{plan, a, c};
    for (std::int64_t i = 0; i < n; ++i) row.run(x.data() + i * c, a["z"].data() + i * c, 0);
  };
  k.forward = [=](Context& t) {
    norm(site_of(t, plan), {.x = t["x"],
                            .add = value(t, "h", e.add),
                            .sum = value(t, "sum", e.add),
                            .z = t["z"],
                            .stats = t.scratch("stats", DType::f32, {2, n})});
  };
  k.backward = [=](Context& t) {
    if (e.add) copy(t.grad("sum"), t.grad("x"));
    norm_backward(site_of(t, plan), grads_of(t, plan),
                  {.x = e.add ? t["sum"] : t["x"],
                   .stats = t.scratch("stats", DType::f32, {2, n}),
                   .dz = t.grad("z"),
                   .dx = t.grad("x"),
                   .accumulate = e.add});
    if (e.add) copy(t.grad("x"), t.grad("h"));
  };
  k.by_row = true;
  k.ulps = 256;
  k.grad_ulps = 4096;
  k.bf16_grad_ulps = e.add ? 6 : 3;
  return k;
}

// A site whose statistic comes from the block's input x0 through its first norm: the gradient must reach x0 too.
Case given_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, const Extra& e) {
  Case k = exact_case(name, plan, n, c, e);
  k.name += fmt::format(" given, correction {}, aux {}{}", static_cast<int>(e.correction), e.aux, e.stop ? ", stopped" : "");
  const bool tilt = e.correction == Correction::eta || e.correction == Correction::residual_aware;
  const bool weight = e.correction == Correction::beta || e.correction == Correction::residual_aware;
  k.inputs.push_back({"x0", {n, c}, e.stop ? Role::constant : Role::activation, e.fill, 1.5 * e.scale});
  k.inputs.push_back({"constant", {1}, Role::constant32, Fill::uniform, 0, 0.7});
  if (tilt) k.inputs.push_back({"tilt", {1}, Role::parameter, Fill::uniform, 0, 0.1});
  if (weight) k.inputs.push_back({"weight", {1}, Role::parameter, Fill::uniform, 0, 1.2});
  k.outputs.push_back({"z0", {n, c}});  // the first norm's output: a plain RMSNorm with γ = 1
  if (e.aux > 0) k.outputs.push_back({"aux", {1}, Output::Type::fp32});
  k.reference = [=](Arrays& a, Round) {
    const RowReference row{plan, a, c};
    double aux = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double *x0 = a["x0"].data() + i * c, ms = mean_square(x0, c);
      const double s = e.calibration * (ms * (1 + row.param("tilt", 0, 0)) + row.param("weight", 0, 1) * a["constant"][0]);
      row.run(a["x"].data() + i * c, a["z"].data() + i * c, s);
      for (std::int64_t j = 0; j < c; ++j) a["z0"][static_cast<std::size_t>(i * c + j)] = x0[j] / std::sqrt(ms + 1e-5);
      const double gap = std::log(s + 1e-8) - std::log(mean_square(a["x"].data() + i * c, c) + 1e-8);
      aux += gap * gap;
    }
    if (e.aux > 0) a["aux"][0] = aux;
  };
  const auto ones = [=](Context& t) {
    const Tensor& g = t.scratch("ones", DType::f32, {c});
    copy(make_tensor(t.device(), DType::f32, {c}, std::vector<double>(static_cast<std::size_t>(c), 1.0)), g);
    return NormSite{.stat = Stat::rms, .map = Map::id, .factor = 1, .eps = 1e-5f, .gamma = g};
  };
  const auto given = [=](Context& t, double aux) {
    const Tensor& stats = t.scratch("stats0", DType::f32, {2, n});
    return Given{.ms = Tensor(stats.data, DType::f32, t.device(), {n}),
                 .constant = t["constant"],
                 .tilt = value(t, "tilt", tilt),
                 .weight = value(t, "weight", weight),
                 .calibration = static_cast<float>(e.calibration),
                 .dtilt = gradient(t, "tilt", tilt),
                 .dweight = gradient(t, "weight", weight),
                 .dms = e.stop ? Tensor{} : t.scratch("dms", DType::f32, {n}),
                 .aux = static_cast<float>(aux),
                 .exact = t.scratch("exact", DType::f32, {n}),
                 .aux_loss = value(t, "aux", e.aux > 0)};
  };
  k.forward = [=](Context& t) {
    norm(ones(t), {.x = t["x0"], .z = t["z0"], .stats = t.scratch("stats0", DType::f32, {2, n})});
    if (e.aux > 0) zero(t["aux"]);
    const Given g = given(t, e.aux);
    norm(site_of(t, plan), {.x = t["x"], .z = t["z"], .stats = {}, .given = &g});
  };
  k.backward = [=](Context& t) {
    // The auxiliary output's cotangent is the weight of the auxiliary loss.
    const double aux = e.aux > 0 ? to_doubles(t.grad("aux"))[0] : 0;
    const Given g = given(t, aux);
    norm_backward(site_of(t, plan), grads_of(t, plan),
                  {.x = t["x"],
                   .dz = t.grad("z"),
                   .dx = e.aux > 0 ? t.scratch("dx", t.dtype(), {n, c}) : t.grad("x"),
                   .accumulate = false,
                   .given = &g});
    if (e.stop) return;
    norm_backward(ones(t), {},
                  {.x = t["x0"],
                   .stats = t.scratch("stats0", DType::f32, {2, n}),
                   .dz = t.grad("z0"),
                   .dx = t.grad("x0"),
                   .accumulate = false,
                   .dms = g.dms});
  };
  return k;
}

Case site_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, Extra e = {}) {
  return plan.stat == Stat::given ? given_case(name, plan, n, c, e) : exact_case(name, plan, n, c, e);
}

NormPlan plan_of(std::string_view method, std::int64_t layers = 4, std::int64_t d = 64) {
  NormConfig config;
  config.method = method;
  return plan_norms(config, layers, d, 1e-5);
}

// Every kind of site that the table can ask for, once, under the name of the first method that has it.
std::map<std::string, SitePlan> distinct_sites() {
  std::map<std::string, SitePlan> sites;
  std::set<std::tuple<Stat, Map, bool, bool, bool, ScaleKind, bool>> seen;
  for (const Method& m : methods()) {
    const NormPlan plan = plan_of(m.name);
    const std::vector<SitePlan> all{plan.blocks[2].site1, plan.blocks[2].site2, plan.last};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const SitePlan& s = all[i];
      if (seen.insert({s.stat, s.map, s.beta, s.shift, s.seed, s.scale, s.factor == 1}).second)
        sites[fmt::format("{} site {}", m.name, i + 1)] = s;
    }
  }
  return sites;
}

std::vector<Case> tests() {
  std::vector<Case> cases;
  for (const auto& [name, site] : distinct_sites()) {
    for (const std::int64_t cols : {31, 32, 33, 257}) cases.push_back(site_case(name, site, 5, cols));
    cases.push_back(site_case(name, site, 5, 1, {.scale = 1e-3}));  // small against eps: otherwise x/s is ±1 and nothing depends on x
    cases.push_back(site_case(name + " outlier", site, 7, 67, {.fill = Fill::outlier, .scale = 0.01}));
    cases.push_back(site_case(name + " zero rows", site, 7, 33, {.fill = Fill::zero_rows}));
    cases.push_back(site_case(name + " many rows", site, 131, 5));
    if (site.stat != Stat::given) cases.push_back(site_case(name, site, 9, 300, {.add = true}));
    if (site.stat == Stat::mean_std || site.stat == Stat::mean_var)
      cases.push_back(site_case(name + " offset", site, 5, 40, {.offset = -3}));
    if (site.scale == ScaleKind::lambda) {
      cases.push_back(site_case(name + " small lambda", site, 5, 40, {.lambda = 1e-3}));
      cases.push_back(site_case(name + " large lambda", site, 5, 40, {.lambda = 60}));
    }
  }
  const SitePlan given = plan_of("bhyt").blocks[2].site2;
  for (const Correction c : {Correction::beta, Correction::eta, Correction::residual_aware})
    cases.push_back(site_case("bhyt", given, 7, 33, {.correction = c, .calibration = 1.3}));
  cases.push_back(site_case("bhyt", given, 7, 33, {.correction = Correction::residual_aware, .aux = 1}));
  cases.push_back(site_case("bhyt", given, 7, 33, {.correction = Correction::beta, .stop = true}));
  return cases;
}

std::vector<Case> benchmarks() {
  std::vector<Case> cases;
  for (const char* name : {"rmsnorm", "layernorm", "bhyt", "dyt", "derf", "seednorm", "bhyt_star"})
    cases.push_back(site_case(name, plan_of(name).blocks[2].site1, 16384, 2048));
  return cases;
}

OP_CASES(Norm, tests, benchmarks)

// ---- the table and its options

TEST(NormMethods, ExactStatisticsPerBlock) {
  const std::map<std::string, int> expected{
      {"layernorm", 2},      {"rmsnorm", 2},        {"lns", 2},  {"peri", 4},       {"dyt", 0},      {"derf", 0}, {"seednorm", 2},
      {"rmsnorm_approx", 1}, {"rmsnorm_shared", 1}, {"bhyt", 1}, {"bhyt_exact", 2}, {"bhyt_star", 2}};
  EXPECT_EQ(methods().size(), expected.size());
  for (const Method& m : methods()) {
    const BlockPlan b = plan_of(m.name).blocks[0];
    int exact = 0;
    for (const auto& site : {std::optional(b.site1), std::optional(b.site2), b.out1, b.out2})
      exact += site && site->stat != Stat::none && site->stat != Stat::given;
    EXPECT_EQ(exact, expected.at(std::string(m.name))) << m.name;
  }
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
  EXPECT_EQ(refresh_interval({}, 20000), 400);
  EXPECT_EQ(refresh_interval({}, 10), 1);
  EXPECT_EQ(refresh_interval({}, 1000000), 1000);
}

}  // namespace
}  // namespace bhyt::testing
