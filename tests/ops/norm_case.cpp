#include "tests/ops/norm_case.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "ops/norm/norm.h"

namespace bhyt::testing {

namespace {

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

std::vector<Input> site_inputs(const SitePlan& plan, std::int64_t n, std::int64_t c, const SiteExtra& e) {
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
NormGrads grads_of(CaseTensors& c, const SitePlan& p, const SiteExtra& e) {
  const auto of = [&](const std::string& name, bool there) { return gradient(c, name, there && e.frozen.count(name) == 0); };
  return {.gamma = of("gamma", true),
          .beta = of("beta", p.beta),
          .scale = of("scale", p.scale != ScaleKind::none),
          .shift = of("shift", p.shift),
          .gate = of("gate", p.seed),
          .direction = of("direction", p.seed)};
}

// A site that looks at its own input.
Case exact_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, const SiteExtra& e) {
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

// A site whose statistic comes from the block's input x0 through its first norm, a plain RMSNorm with γ = 1: the gradient must reach x0
// too.
struct GivenSite {
  SitePlan plan;
  std::int64_t n, c;
  SiteExtra e;

  bool on_ms() const { return e.correction == Correction::eta || e.correction == Correction::residual_aware; }
  bool on_constant() const { return e.correction == Correction::beta || e.correction == Correction::residual_aware; }

  bool counts(std::int64_t row) const { return !e.filling || row % 3 != 1; }
  double aux_by() const { return e.filling ? 0.5 : 1; }

  static double squared_gap(double given, double exact) {
    const double gap = std::log(given + 1e-8) - std::log(exact + 1e-8);
    return gap * gap;
  }

  void reference(Arrays& a) const {
    const RowReference row{plan, a, c};
    double aux = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double *x0 = a["x0"].data() + i * c, ms = mean_square(x0, c);
      const double s =
          e.calibration * (ms * (1 + row.param("ms_correction", 0, 0)) + row.param("constant_correction", 0, 1) * a["constant"][0]);
      row.run(a["x"].data() + i * c, a["z"].data() + i * c, s);
      for (std::int64_t j = 0; j < c; ++j) a["z0"][static_cast<std::size_t>(i * c + j)] = x0[j] / std::sqrt(ms + 1e-5);
      if (counts(i)) aux += squared_gap(s, mean_square(a["x"].data() + i * c, c));
    }
    if (e.aux > 0) a["aux"][0] = aux_by() * aux;
  }

  NormSite first_norm(CaseTensors& t) const {
    const Tensor& g = t.scratch("ones", DType::f32, {c});
    copy(t.ctx(), make_tensor(t.ctx(), DType::f32, {c}, std::vector<double>(static_cast<std::size_t>(c), 1.0)), g);
    return NormSite{.stat = Stat::rms, .map = Map::id, .factor = 1, .eps = 1e-5f, .gamma = g};
  }
  Given given(CaseTensors& t, double aux) const {
    const Tensor& stats = t.scratch("stats0", DType::f32, {2, n});
    return Given{.ms = Tensor(stats.data, DType::f32, t.device(), {n}),
                 .constant = t["constant"],
                 .ms_correction = value(t, "ms_correction", on_ms()),
                 .constant_correction = value(t, "constant_correction", on_constant()),
                 .calibration = static_cast<float>(e.calibration),
                 .dms_correction = gradient(t, "ms_correction", on_ms()),
                 .dconstant_correction = gradient(t, "constant_correction", on_constant()),
                 .dms = e.stop ? Tensor{} : t.scratch("dms", DType::f32, {n}),
                 .aux = static_cast<float>(aux),
                 .exact = t.scratch("exact", DType::f32, {n}),
                 .aux_by = value(t, "aux_by", e.filling),
                 .targets = value(t, "targets", e.filling)};
  }

  void forward(CaseTensors& t) const {
    norm(t.ctx(), first_norm(t), {.x = t["x0"], .z = t["z0"], .stats = t.scratch("stats0", DType::f32, {2, n})});
    const Given g = given(t, e.aux);
    norm(t.ctx(), site_of(t, plan), {.x = t["x"], .z = t["z"], .stats = {}, .given = &g});
    if (e.aux > 0) write_aux(t, g);
  }
  // What the backward is the gradient of, from the mean squares that the forwards kept.
  void write_aux(CaseTensors& t, const Given& g) const {
    const auto first = [&](const Tensor& s, double otherwise) { return s ? to_doubles(t.ctx(), s)[0] : otherwise; };
    const std::vector<double> ms = to_doubles(t.ctx(), g.ms), exact = to_doubles(t.ctx(), g.exact);
    double aux = 0;
    for (std::size_t i = 0; i < ms.size(); ++i)
      if (counts(static_cast<std::int64_t>(i)))
        aux += squared_gap(
            e.calibration * (ms[i] * (1 + first(g.ms_correction, 0)) + first(g.constant_correction, 1) * first(g.constant, 0)), exact[i]);
    copy(t.ctx(), make_tensor(t.ctx(), DType::f32, {1}, {aux_by() * aux}), t["aux"]);
  }

  void backward(CaseTensors& t) const {
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
    norm_backward(t.ctx(), first_norm(t), {},
                  {.x = t["x0"],
                   .stats = t.scratch("stats0", DType::f32, {2, n}),
                   .dz = t.grad("z0"),
                   .dx = t.grad("x0"),
                   .accumulate = false,
                   .dms = g.dms});
  }
};

Case given_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, const SiteExtra& e) {
  const GivenSite site{plan, n, c, e};
  Case k = exact_case(name, plan, n, c, e);
  k.name += fmt::format(" given, correction {}, aux {}{}", static_cast<int>(e.correction), e.aux, e.stop ? ", stopped" : "");
  k.inputs.push_back({"x0", {n, c}, e.stop ? Role::constant : Role::activation, e.fill, 1.5 * e.scale});
  k.inputs.push_back({"constant", {1}, Role::constant32, Fill::uniform, 0, e.correction == Correction::eta ? 0.0 : 0.7});
  if (site.on_ms()) k.inputs.push_back({"ms_correction", {1}, Role::parameter, Fill::uniform, 0, 0.1});
  if (site.on_constant()) k.inputs.push_back({"constant_correction", {1}, Role::parameter, Fill::uniform, 0, 1.2});
  if (e.filling) {
    k.inputs.push_back({"aux_by", {1}, Role::constant32, Fill::uniform, 0, site.aux_by()});
    k.inputs.push_back({.name = "targets", .shape = {n}, .role = Role::integer, .make = [site](Rng&, std::int64_t i) {
                          return static_cast<double>(site.counts(i) ? -1 : kFilling);
                        }});
  }
  k.outputs.push_back({"z0", {n, c}});  // the first norm's output
  if (e.aux > 0) k.outputs.push_back({"aux", {1}, Output::Type::fp32});
  k.reference = [site](Arrays& a, Round) { site.reference(a); };
  k.forward = [site](CaseTensors& t) { site.forward(t); };
  k.backward = [site](CaseTensors& t) { site.backward(t); };
  return k;
}

}  // namespace

Case site_case(const std::string& name, const SitePlan& plan, std::int64_t n, std::int64_t c, const SiteExtra& e) {
  return plan.stat == Stat::given ? given_case(name, plan, n, c, e) : exact_case(name, plan, n, c, e);
}

NormPlan plan_of(std::string_view method, std::int64_t layers, std::int64_t d) {
  NormConfig config;
  config.method = method;
  return plan_norms(config, layers, d, 1e-5);
}

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

}  // namespace bhyt::testing
