// The norm family: every kind of site that a row of the method table can ask for, at odd sizes and on awkward data.
#include "ops/norm/norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include "core/error.h"
#include "ops/norm/methods.h"
#include "tests/devices.h"
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
  std::set<std::string> frozen = {};  // parameters whose gradient nobody asks for
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
  const double* vector(const std::string& name) const {
    const auto it = a.find(name);
    return it == a.end() ? nullptr : it->second.data();
  }
  void run(const double* x, double* z, double given) const {
    const double *gamma = vector("gamma"), *beta = vector("beta"), *gate = vector("gate"), *direction = vector("direction");
    const double n = static_cast<double>(c), shift = param("shift", 0, 0);
    double sum = 0, squares = 0, centred = 0, dot = 0;
    for (std::int64_t j = 0; j < c; ++j) {
      sum += x[j];
      squares += x[j] * x[j];
      if (direction) dot += x[j] * direction[j];
    }
    const double mean = sum / n, ms = squares / n;
    for (std::int64_t j = 0; j < c; ++j) centred += (x[j] - mean) * (x[j] - mean);
    const double var = centred / n;
    const double k = plan.factor * param("scale", 0, 1), eps = plan.eps;
    double scale = k, centre = 0;
    switch (plan.stat) {
      case Stat::none: break;
      case Stat::rms: scale = k / std::sqrt(ms + eps); break;
      case Stat::mean_var:
        scale = k / std::sqrt(var + eps);
        centre = mean;
        break;
      case Stat::mean_std: scale = k / (std::sqrt(var + eps) + plan.factor * std::fabs(mean)); break;
      case Stat::given: scale = k / std::sqrt(given + eps); break;
    }
    const double t = plan.seed ? std::tanh(dot) : 0;
    for (std::int64_t j = 0; j < c; ++j) {
      const double gain = gamma[j] + (gate ? t * gate[j] : 0);
      z[j] = plan.out_factor * (gain * map_value(plan.map, scale * (x[j] - centre) + shift) + (beta ? beta[j] : 0));
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

Tensor value(CaseTensors& c, const std::string& name, bool there) { return there ? c[name] : Tensor{}; }
Tensor gradient(CaseTensors& c, const std::string& name, bool there) { return there ? c.grad(name) : Tensor{}; }

NormSite site_of(CaseTensors& c, const SitePlan& p) {
  return {.stat = p.stat,
          .map = p.map,
          .factor = p.factor,
          .eps = p.eps,
          .out_factor = p.out_factor,
          .gamma = c["gamma"],
          .beta = value(c, "beta", p.beta),
          .scale = value(c, "scale", p.scale != ScaleKind::none),
          .shift = value(c, "shift", p.shift),
          .gate = value(c, "gate", p.seed),
          .direction = value(c, "direction", p.seed)};
}
NormGrads grads_of(CaseTensors& c, const SitePlan& p, const Extra& e) {
  const auto of = [&](const std::string& name, bool there) { return gradient(c, name, there && e.frozen.count(name) == 0); };
  return {.gamma = of("gamma", true),
          .beta = of("beta", p.beta),
          .scale = of("scale", p.scale != ScaleKind::none),
          .shift = of("shift", p.shift),
          .gate = of("gate", p.seed),
          .direction = of("direction", p.seed)};
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
  k.forward = [=](CaseTensors& t) {
    norm(t.ctx(), site_of(t, plan),
         {.x = t["x"],
          .add = value(t, "h", e.add),
          .sum = value(t, "sum", e.add),
          .z = t["z"],
          .stats = t.scratch("stats", DType::f32, {2, n})});
  };
  k.backward = [=](CaseTensors& t) {
    if (e.add) copy(t.ctx(), t.grad("sum"), t.grad("x"));
    norm_backward(t.ctx(), site_of(t, plan), grads_of(t, plan, e),
                  {.x = e.add ? t["sum"] : t["x"],
                   .stats = t.scratch("stats", DType::f32, {2, n}),
                   .dz = t.grad("z"),
                   .dx = t.grad("x"),
                   .accumulate = e.add});
    if (e.add) copy(t.ctx(), t.grad("x"), t.grad("h"));
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
  const bool on_ms = e.correction == Correction::eta || e.correction == Correction::residual_aware;
  const bool on_constant = e.correction == Correction::beta || e.correction == Correction::residual_aware;
  k.inputs.push_back({"x0", {n, c}, e.stop ? Role::constant : Role::activation, e.fill, 1.5 * e.scale});
  k.inputs.push_back({"constant", {1}, Role::constant32, Fill::uniform, 0, e.correction == Correction::eta ? 0.0 : 0.7});
  if (on_ms) k.inputs.push_back({"ms_correction", {1}, Role::parameter, Fill::uniform, 0, 0.1});
  if (on_constant) k.inputs.push_back({"constant_correction", {1}, Role::parameter, Fill::uniform, 0, 1.2});
  k.outputs.push_back({"z0", {n, c}});  // the first norm's output: a plain RMSNorm with γ = 1
  if (e.aux > 0) k.outputs.push_back({"aux", {1}, Output::Type::fp32});
  k.reference = [=](Arrays& a, Round) {
    const RowReference row{plan, a, c};
    double aux = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double *x0 = a["x0"].data() + i * c, ms = mean_square(x0, c);
      const double s =
          e.calibration * (ms * (1 + row.param("ms_correction", 0, 0)) + row.param("constant_correction", 0, 1) * a["constant"][0]);
      row.run(a["x"].data() + i * c, a["z"].data() + i * c, s);
      for (std::int64_t j = 0; j < c; ++j) a["z0"][static_cast<std::size_t>(i * c + j)] = x0[j] / std::sqrt(ms + 1e-5);
      const double gap = std::log(s + 1e-8) - std::log(mean_square(a["x"].data() + i * c, c) + 1e-8);
      aux += gap * gap;
    }
    if (e.aux > 0) a["aux"][0] = aux;
  };
  const auto ones = [=](CaseTensors& t) {
    const Tensor& g = t.scratch("ones", DType::f32, {c});
    copy(t.ctx(), make_tensor(t.ctx(), DType::f32, {c}, std::vector<double>(static_cast<std::size_t>(c), 1.0)), g);
    return NormSite{.stat = Stat::rms, .map = Map::id, .factor = 1, .eps = 1e-5f, .gamma = g};
  };
  const auto given = [=](CaseTensors& t, double aux) {
    const Tensor& stats = t.scratch("stats0", DType::f32, {2, n});
    return Given{.ms = Tensor(stats.data, DType::f32, t.device(), {n}),
                 .constant = t["constant"],
                 .ms_correction = value(t, "ms_correction", on_ms),
                 .constant_correction = value(t, "constant_correction", on_constant),
                 .calibration = static_cast<float>(e.calibration),
                 .dms_correction = gradient(t, "ms_correction", on_ms),
                 .dconstant_correction = gradient(t, "constant_correction", on_constant),
                 .dms = e.stop ? Tensor{} : t.scratch("dms", DType::f32, {n}),
                 .aux = static_cast<float>(aux),
                 .exact = t.scratch("exact", DType::f32, {n})};
  };
  k.forward = [=](CaseTensors& t) {
    norm(t.ctx(), ones(t), {.x = t["x0"], .z = t["z0"], .stats = t.scratch("stats0", DType::f32, {2, n})});
    const Given g = given(t, e.aux);
    norm(t.ctx(), site_of(t, plan), {.x = t["x"], .z = t["z"], .stats = {}, .given = &g});
    if (e.aux == 0) return;
    // What the backward is the gradient of, from the mean squares that the forwards kept.
    const auto first = [&](const Tensor& s, double otherwise) { return s ? to_doubles(t.ctx(), s)[0] : otherwise; };
    const std::vector<double> ms = to_doubles(t.ctx(), g.ms), exact = to_doubles(t.ctx(), g.exact);
    double aux = 0;
    for (std::size_t i = 0; i < ms.size(); ++i) {
      const double s = e.calibration * (ms[i] * (1 + first(g.ms_correction, 0)) + first(g.constant_correction, 1) * first(g.constant, 0));
      const double gap = std::log(s + 1e-8) - std::log(exact[i] + 1e-8);
      aux += gap * gap;
    }
    copy(t.ctx(), make_tensor(t.ctx(), DType::f32, {1}, {aux}), t["aux"]);
  };
  k.backward = [=](CaseTensors& t) {
    // The auxiliary output's cotangent is the weight of the auxiliary loss.
    const double aux = e.aux > 0 ? to_doubles(t.ctx(), t.grad("aux"))[0] : 0;
    const Given g = given(t, aux);
    norm_backward(t.ctx(), site_of(t, plan), grads_of(t, plan, e),
                  {.x = t["x"],
                   .dz = t.grad("z"),
                   .dx = e.aux > 0 ? t.scratch("dx", t.dtype(), {n, c}) : t.grad("x"),
                   .accumulate = false,
                   .given = &g});
    if (e.stop) return;
    norm_backward(t.ctx(), ones(t), {},
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
  // The widths of real models: every kind of column sums and maps once, and the given statistic.
  const std::vector<std::pair<std::string, SitePlan>> wide{{"layernorm", plan_of("layernorm").blocks[2].site1},
                                                           {"seednorm", plan_of("seednorm").blocks[2].site1},
                                                           {"bhyt_star", plan_of("bhyt_star").blocks[2].site1},
                                                           {"bhyt given", plan_of("bhyt").blocks[2].site2}};
  for (const auto& [name, site] : wide)
    for (const std::int64_t cols : {512, 1000, 2048, 8192}) cases.push_back(site_case(name + " wide", site, 1, cols));
  // Many rows where the reference's differences still take seconds.
  const SitePlan bhyt_given = plan_of("bhyt").blocks[2].site2;
  cases.push_back(site_case("bhyt given wide", bhyt_given, 700, 512));
  for (const std::int64_t cols : {1000, 2048, 8192}) cases.push_back(site_case("bhyt given wide", bhyt_given, 9, cols));
  for (const char* name : {"layernorm", "seednorm", "derf", "bhyt"})
    for (SitePlan site : {plan_of(name).blocks[2].site1, plan_of(name).blocks[2].site2}) {
      site.out_factor = 2.5f;
      for (const std::int64_t cols : {40, 33}) cases.push_back(site_case(fmt::format("{} times 2.5", name), site, 6, cols));
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

// ---- parameters that are not trained

// Every output and gradient of a case, to the bit.
std::map<std::string, std::vector<char>> bits_of(const Case& c, Context& ctx, DType type) {
  Arrays cotangents;
  for (const Output& out : c.outputs) cotangents[out.name] = draw({{out.name, out.shape}}, type, 7).at(out.name);
  CaseTensors tensors(c, ctx, type);
  tensors.load(draw(c.inputs, type), cotangents);
  c.forward(tensors);
  c.backward(tensors);
  return tensors.bytes();
}

void check_frozen(Context& ctx, const std::string& name, const SitePlan& site, DType type, std::int64_t rows, std::int64_t cols) {
  const auto whole = bits_of(site_case(name, site, rows, cols), ctx, type);
  for (const std::set<std::string>& frozen :
       std::vector<std::set<std::string>>{{"gamma"}, {"beta"}, {"gamma", "gate"}, {"gamma", "beta", "gate", "direction"}})
    for (const auto& [what, bits] : bits_of(site_case(name, site, rows, cols, {.frozen = frozen}), ctx, type)) {
      SCOPED_TRACE(fmt::format("{} {}x{} {} on {}: {} without {}", name, rows, cols, name_of(type), name_of(ctx.device()), what,
                               fmt::join(frozen, ", ")));
      EXPECT_TRUE(frozen.count(what.substr(1)) > 0 ? bits == std::vector<char>(bits.size()) : bits == whole.at(what));
    }
}

// The sums of frozen parameters are not made, and nothing else changes for it. 20000 rows: more than a GPU works on at a time.
TEST(Norm, FrozenParametersLeaveTheOtherGradientsTheirBits) {
  for (Context& ctx : test::contexts())
    for (const auto& [name, site] : distinct_sites())
      for (const DType type : {DType::f32, DType::bf16}) {
        for (const std::int64_t cols : {33, 64, 300}) check_frozen(ctx, name, site, type, 150, cols);
        if (ctx.device().is_cuda()) check_frozen(ctx, name, site, type, 20000, 64);
      }
}

// ---- the table and its options

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

// Large outputs are written past the cache (x86-64): the same bits, to the last element of an odd row, and nothing beyond it.
TEST(Norm, OutputsWrittenPastTheCacheHaveTheSameBits) {
  const SitePlan plan = plan_of("bhyt").blocks[2].site1;
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t cols : {1, 7, 255, 256, 261, 1001}) {
      const std::int64_t rows = 3, wide = (cols + 15) / 16 * 16 + 16;
      Rng rng(3);
      std::vector<double> values(static_cast<std::size_t>(rows * wide));
      for (double& v : values) v = rng.normal();
      const OwnedTensor x = make_tensor(on_cpu(), type, {rows, wide}, values), h = make_tensor(on_cpu(), type, {rows, wide}, values),
                        gamma = make_tensor(on_cpu(), DType::f32, {cols}, std::vector<double>(static_cast<std::size_t>(cols), 1.5)),
                        lambda = make_tensor(on_cpu(), DType::f32, {1}, {2.0});
      const NormSite site{.stat = plan.stat, .map = plan.map, .factor = plan.factor, .eps = plan.eps, .gamma = gamma, .scale = lambda};
      const auto run = [&](std::size_t past_cache_bytes) {
        const OwnedTensor z = make_tensor(on_cpu(), type, {rows, wide}, std::vector<double>(values.size(), 9.0)),
                          sum = make_tensor(on_cpu(), type, {rows, wide}, std::vector<double>(values.size(), 9.0));
        norm(on_cpu(), site,
             {.x = x.t.col_slice(0, cols),
              .add = h.t.col_slice(0, cols),
              .sum = sum.t.col_slice(0, cols),
              .z = z.t.col_slice(0, cols),
              .past_cache_bytes = past_cache_bytes});
        return std::pair(to_doubles(on_cpu(), z), to_doubles(on_cpu(), sum));
      };
      EXPECT_EQ(run(0), run(std::size_t{1} << 40)) << name_of(type) << " " << cols;
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
