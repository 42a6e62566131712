#include "ops/norm/methods.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/schema.h"

namespace bhyt {

namespace {

using S = SiteStat;

// z = γ ⊙ f(a·x + c) + β: which statistic makes a, which map is f, where it stands, what is learned, how the model ends.
// clang-format off
constexpr Method kMethods[] = {
    // name            site 1       site 2          map        placement            depth            scalar             β      σ      g,b    γ in C  end                own eps
    {"layernorm",      S::mean_var, S::mean_var,    Map::id,   Place::pre,          Depth::none,     ScaleKind::none,   true,  false, false, false,  End::own,          false},
    {"rmsnorm",        S::rms,      S::rms,         Map::id,   Place::pre,          Depth::none,     ScaleKind::none,   false, false, false, false,  End::rms,          false},
    {"rmsnorm_approx", S::rms,      S::approximate, Map::id,   Place::pre,          Depth::none,     ScaleKind::none,   false, false, false, true,   End::rms,          false},
    {"rmsnorm_shared", S::rms,      S::block_input, Map::id,   Place::pre,          Depth::none,     ScaleKind::none,   false, false, false, false,  End::rms,          false},
    {"lns",            S::rms,      S::rms,         Map::id,   Place::pre,          Depth::inv_sqrt, ScaleKind::none,   false, false, false, false,  End::rms,          false},
    {"peri",           S::rms,      S::rms,         Map::id,   Place::pre_and_post, Depth::none,     ScaleKind::none,   false, false, false, false,  End::rms,          false},
    {"dyt",            S::none,     S::none,        Map::tanh, Place::pre,          Depth::none,     ScaleKind::alpha,  false, false, false, false,  End::own,          false},
    {"derf",           S::none,     S::none,        Map::erf,  Place::pre,          Depth::none,     ScaleKind::alpha,  true,  true,  false, false,  End::own,          false},
    {"seednorm",       S::rms,      S::rms,         Map::id,   Place::pre,          Depth::none,     ScaleKind::none,   false, false, true,  false,  End::own,          false},
    {"bhyt",           S::rms,      S::approximate, Map::tanh, Place::pre,          Depth::none,     ScaleKind::lambda, false, false, false, false,  End::rms_or_exact, true},
    {"bhyt_exact",     S::rms,      S::rms,         Map::tanh, Place::pre,          Depth::none,     ScaleKind::lambda, false, false, false, false,  End::rms_or_exact, true},
    {"bhyt_star",      S::mean_std, S::mean_std,    Map::tanh, Place::pre,          Depth::none,     ScaleKind::lambda, false, false, false, false,  End::rms_or_exact, true},
};
// clang-format on

constexpr bool all_make_sense() {
  for (const Method& m : kMethods) {
    if (m.name.empty() || !fault(m).empty()) return false;
    for (const Method& other : kMethods)
      if (&m != &other && m.name == other.name) return false;
  }
  return true;
}
static_assert(all_make_sense(), "a row of the method table makes no sense, or its name is taken: see fault()");

template <class F>
std::string names_of(F&& wanted, const char* between = ", ") {
  std::vector<std::string_view> names;
  for (const Method& m : kMethods)
    if (wanted(m)) names.push_back(m.name);
  return fmt::format("{}", fmt::join(names, between));
}

Stat kernel_stat(SiteStat s) {
  switch (s) {
    case S::none: return Stat::none;
    case S::rms: return Stat::rms;
    case S::mean_var: return Stat::mean_var;
    case S::mean_std: return Stat::mean_std;
    case S::approximate:
    case S::block_input: return Stat::given;
  }
  return Stat::rms;
}

bool has_approximation(const Method& m) { return m.site2 == S::approximate; }

// DyT's published inits: (attention, MLP, last); Derf is given between 0.5 and 1 and takes the first row.
std::array<double, 3> alphas(const NormConfig& c, const Method& m, std::int64_t d) {
  if (c.alpha) return *c.alpha;
  if (m.map == Map::erf || d <= 2048) return {1.0, 0.5, 0.5};
  return {0.2, 0.05, 0.05};
}

SitePlan rms_site(double eps) { return {.stat = Stat::rms, .map = Map::id, .eps = static_cast<float>(eps)}; }

BlockPlan plan_block(const NormConfig& c, const Method& m, std::int64_t layer, std::int64_t d, double model_eps, bool inside) {
  BlockPlan b;
  const bool exact = layer <= c.exact_first || std::find(c.exact_list.begin(), c.exact_list.end(), layer) != c.exact_list.end();
  b.site1 = plan_site(c, m, m.site1, layer, 0, d, model_eps);
  b.site2 = plan_site(c, m, m.site2, layer, 1, d, model_eps);
  if (exact && b.site2.stat == Stat::given) b.site2.stat = Stat::rms;
  if (m.place == Place::pre_and_post) b.out1 = b.out2 = rms_site(model_eps);
  b.has_constant = has_approximation(m);
  b.approximated = has_approximation(m) && !exact;
  b.uses_constant = b.approximated && c.correction != Correction::eta;  // eta: rms²·(1+η) alone
  b.gamma_in_constant = m.gamma_in_constant || c.gamma_in_constant;
  if (has_approximation(m)) b.correction = c.correction;
  if (!c.calibration.empty() && inside) b.calibration = static_cast<float>(c.calibration[static_cast<std::size_t>(layer - 1)]);
  return b;
}

void check_config(const NormConfig& c, const Method& m, std::int64_t layers) {
  check_usage(c.exact_first <= layers, "norm.exact_layers must be at most the number of layers, {}, got {}", layers, c.exact_first);
  for (auto l : c.exact_list) check_usage(l >= 1 && l <= layers, "norm.exact_layers must list layers from 1 to {}, got {}", layers, l);
  check_usage(c.calibration.empty() || static_cast<std::int64_t>(c.calibration.size()) == layers,
              "norm.calibration must have one factor per layer, {}, got {}", layers, c.calibration.size());
  check_usage(c.last_layer == 0 || (c.first_layer >= 1 && c.first_layer <= c.last_layer && c.last_layer <= layers),
              "norm.layers must be [from, to] with 1 <= from <= to <= {}, got [{}, {}]", layers, c.first_layer, c.last_layer);
  const Method& other = c.last_layer > 0 ? method(c.elsewhere, "norm.elsewhere") : m;
  const bool approximated = has_approximation(m) || has_approximation(other);
  check_usage(c.correction == Correction::none || approximated,
              "norm.correction needs a method whose second site is approximated ({}), got {}", names_of(has_approximation), c.method);
  check_usage(c.aux_loss == 0 || approximated, "norm.aux_loss needs a method whose second site is approximated ({}), got {}",
              names_of(has_approximation), c.method);
  const auto has_lambda = [](const Method& r) { return r.scale == ScaleKind::lambda; };
  check_usage(c.gain == Gain::one || has_lambda(m) || has_lambda(other), "norm.gain needs a method that has lambda ({}), got {}",
              names_of(has_lambda), c.method);
  for (const Method* used : {&m, &other})
    check_usage(c.depth_factor == Depth::none || used->depth == Depth::none,
                "norm.depth_factor needs a method without a factor of its own over depth, got {}", used->name);
}

}  // namespace

SitePlan plan_site(const NormConfig& c, const Method& m, SiteStat stat, std::int64_t layer, int place, std::int64_t d, double model_eps) {
  SitePlan s;
  s.stat = kernel_stat(stat);
  s.map = m.map;
  s.eps = static_cast<float>(m.own_eps ? kOwnEps : model_eps);
  s.beta = m.beta;
  s.shift = m.shift;
  s.seed = m.seed;
  s.scale = m.scale;
  double gain = 1, factor = 1, out_factor = 1;
  if (m.scale == ScaleKind::lambda) {
    const double lambda = place == 2 ? c.lambda_last : c.lambda[static_cast<std::size_t>(place)], kappa = kappa_at(c, layer);
    factor = 1.0 / kappa;
    s.scale0 = static_cast<float>(lambda);
    s.scale_frozen = !c.learn_lambda;
    if (c.gain == Gain::unit) gain = kappa / lambda;
    if (c.gain == Gain::fixed_unit && place != 2) out_factor = kappa / lambda;
  } else if (m.scale == ScaleKind::alpha) {
    s.scale0 = static_cast<float>(alphas(c, m, d)[static_cast<std::size_t>(place)]);
  }
  const double inv_sqrt = 1.0 / std::sqrt(static_cast<double>(layer));
  if (m.depth == Depth::inv_sqrt && place != 2) factor *= inv_sqrt;
  if (c.depth_gain == Depth::inv_sqrt && place != 2) gain *= inv_sqrt;
  if (c.depth_factor == Depth::inv_sqrt && place != 2) out_factor *= inv_sqrt;
  s.factor = static_cast<float>(factor);
  s.out_factor = static_cast<float>(out_factor);
  s.gamma0 = static_cast<float>(gain);
  return s;
}

std::span<const Method> methods() { return kMethods; }

const std::string& method_names() {
  static const std::string names = names_of([](const Method&) { return true; }, " ");
  return names;
}

const Method& method(std::string_view name, std::string_view key) {
  std::vector<std::string> names;
  for (const Method& m : kMethods) {
    if (m.name == name) return m;
    names.emplace_back(m.name);
  }
  const std::string near = schema::nearest(std::string(name), names);
  throw UsageError(fmt::format("{} must be one of {}, got \"{}\"{}", key, fmt::join(names, ", "), name,
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

double kappa_at(const NormConfig& c, std::int64_t layer) {
  const double l = static_cast<double>(layer);
  switch (c.kappa_schedule) {
    case KappaSchedule::constant: return c.kappa;
    case KappaSchedule::decay: return c.kappa / std::sqrt(l);
    case KappaSchedule::grow: return c.kappa * std::sqrt(l);
    case KappaSchedule::mild_grow: return c.kappa * std::pow(l, 0.25);
  }
  return c.kappa;
}

std::int64_t refresh_interval(const NormConfig& c, std::int64_t max_steps) {
  return c.refresh > 0 ? c.refresh : std::clamp<std::int64_t>(max_steps / 50, 1, 1000);
}

NormPlan plan_norms(const NormConfig& c, std::int64_t layers, std::int64_t d, double model_eps) {
  const Method& m = method(c.method);
  const Method& other = method(c.elsewhere);
  check_config(c, m, layers);
  NormPlan plan;
  plan.stop_gradient = c.stop_gradient;
  plan.aux_loss = c.aux_loss;
  plan.aux_every = c.aux_every;
  for (std::int64_t l = 1; l <= layers; ++l) {
    const bool inside = c.last_layer == 0 || (l >= c.first_layer && l <= c.last_layer);
    plan.blocks.push_back(plan_block(c, inside ? m : other, l, d, model_eps, inside));
    plan.approximated += plan.blocks.back().approximated;
  }
  const bool exact_end = m.end == End::rms_or_exact && c.lambda_last > 0;
  if (exact_end)
    plan.last = plan_site(c, method("bhyt_exact"), S::rms, layers + 1, 2, d, model_eps);
  else if (m.end == End::own)
    plan.last = plan_site(c, m, m.site1, layers + 1, 2, d, model_eps);
  else
    plan.last = rms_site(model_eps);
  return plan;
}

}  // namespace bhyt
