#include "ops/norm/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace bhyt {

namespace {

using schema::Json;

const schema::Names<Gain> kGains = {{"one", Gain::one}, {"unit", Gain::unit}, {"fixed_unit", Gain::fixed_unit}};
const schema::Names<Depth> kDepths = {{"none", Depth::none}, {"inv_sqrt", Depth::inv_sqrt}};
const schema::Names<KappaSchedule> kSchedules = {{"constant", KappaSchedule::constant},
                                                 {"decay", KappaSchedule::decay},
                                                 {"grow", KappaSchedule::grow},
                                                 {"mild_grow", KappaSchedule::mild_grow}};
const schema::Names<Correction> kCorrections = {
    {"none", Correction::none}, {"beta", Correction::beta}, {"eta", Correction::eta}, {"residual_aware", Correction::residual_aware}};

template <std::size_t N>
std::array<double, N> read_numbers(const Json& j, const std::string& key, schema::Range range) {
  if (!j.is_array() || j.size() != N) schema::wrong(key, fmt::format("a list of {} numbers", N), j);
  std::array<double, N> out{};
  for (std::size_t i = 0; i < N; ++i) out[i] = schema::Reader::as_number(fmt::format("{}[{}]", key, i), j[i], range);
  return out;
}

std::vector<double> read_list(const Json& j, const std::string& key, schema::Range range) {
  if (!j.is_array()) schema::wrong(key, "a list of numbers", j);
  std::vector<double> out;
  for (std::size_t i = 0; i < j.size(); ++i) out.push_back(schema::Reader::as_number(fmt::format("{}[{}]", key, i), j[i], range));
  return out;
}

void read_exact(NormConfig& c, const Json& j, const std::string& key) {
  c.exact_first = 0;
  c.exact_list.clear();
  if (j.is_array())
    for (std::size_t i = 0; i < j.size(); ++i)
      c.exact_list.push_back(schema::Reader::as_integer(fmt::format("{}[{}]", key, i), j[i], {.at_least = 1}));
  else if (j.is_number())
    c.exact_first = schema::Reader::as_integer(key, j, {.at_least = 0});
  else
    schema::wrong(key, "a number or a list of layers counted from 1", j);
}

void read_layers(NormConfig& c, const Json& j, const std::string& key) {
  c.first_layer = 1;
  c.last_layer = 0;
  if (j == "all") return;
  if (!j.is_array() || j.size() != 2) schema::wrong(key, "all, or [from, to] counted from 1", j);
  c.first_layer = schema::Reader::as_integer(key + "[0]", j[0], {.at_least = 1});
  c.last_layer = schema::Reader::as_integer(key + "[1]", j[1], {.at_least = 1});
}

// κ to 12 digits: those of 1 − p end there, and p = 0.99 means 10.
double bound_of(double p) {
  const std::string digits = fmt::format("{:.12g}", 1.0 / std::sqrt(1.0 - p));
  double kappa = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), kappa);
  return kappa;
}

// p and κ say the same thing: only one may be given.
void read_bound(NormConfig& c, schema::Reader& v) {
  const Json* p = v.take("p");
  const Json* kappa = v.take("kappa");
  if (p && kappa) throw UsageError(fmt::format("{} and {} say the same thing: give one of them", v.full("p"), v.full("kappa")));
  if (p) c.kappa = bound_of(schema::Reader::as_number(v.full("p"), *p, {.below = 1, .at_least = 0}));
  if (kappa) c.kappa = schema::Reader::as_number(v.full("kappa"), *kappa, {.above = 0});
}
void read_bound(NormConfig& c, schema::Writer& v) { v.number("kappa", c.kappa, ""); }
void read_bound(NormConfig& c, schema::Lister& v) {
  double p = 1.0 - 1.0 / (c.kappa * c.kappa);
  v.number("p", p, "share of the inputs that the bound covers (Chebyshev); kappa = (1-p)^(-1/2)");
  v.number("kappa", c.kappa, "or the bound itself");
}

// Several keys under one name; what follows overrides them. Resolved configs have the keys.
void apply_preset(NormConfig& c, const std::string& name, const std::string& key) {
  if (name != "recommended") throw UsageError(fmt::format("{} must be recommended, got \"{}\"", key, name));
  c.method = "bhyt";
  c.gain = Gain::fixed_unit;
  c.depth_factor = Depth::inv_sqrt;
  c.gamma_in_constant = true;
}

constexpr schema::Range kPositive{.above = 0};

// The method and what its two norms of a block are made of.
template <class V>
void walk_method(NormConfig& c, V& v) {
  v.custom(
      "preset",
      "recommended: bhyt with gain fixed_unit, depth_factor inv_sqrt and gamma_in_constant, and model.embedding_scale sqrt_d; the lowest "
      "loss in docs/results.md, at high learning rates; keys that are given override it",
      [&](const Json& j, const std::string& key) { apply_preset(c, schema::Reader::as_text(key, j), key); },
      [] { return Json(Json::value_t::discarded); });
  v.custom(
      "method", method_names().c_str(),
      [&](const Json& j, const std::string& key) { c.method = method(schema::Reader::as_text(key, j)).name; },
      [&] { return Json(c.method); });
  read_bound(c, v);
  v.custom(
      "lambda", "bound of the map's input: attention, MLP",
      [&](const Json& j, const std::string& key) { c.lambda = read_numbers<2>(j, key, kPositive); }, [&] { return Json(c.lambda); });
  v.number("lambda_last", c.lambda_last, "the same for the final norm; 0 = end with RMSNorm", {.at_least = 0});
  v.boolean("learn_lambda", c.learn_lambda, "learn lambda");
  v.choice("gain", c.gain, kGains,
           "gamma starts at 1, or at kappa/lambda for unit variance; fixed_unit: at 1, and outputs times kappa/lambda for good");
  v.choice("depth_gain", c.depth_gain, kDepths, "initial gamma times 1/sqrt(layer)");
  v.choice("depth_factor", c.depth_factor, kDepths, "the blocks' norm outputs times 1/sqrt(layer), a constant; not with lns, which has it");
  v.choice("kappa_schedule", c.kappa_schedule, kSchedules, "kappa over depth");
}

// The second site, where its statistic is not its input's.
template <class V>
void walk_second_site(NormConfig& c, V& v) {
  v.custom(
      "exact_layers", "blocks whose second statistic is exact: the first N, or a list counted from 1",
      [&](const Json& j, const std::string& key) { read_exact(c, j, key); },
      [&] { return c.exact_list.empty() ? Json(c.exact_first) : Json(c.exact_list); });
  v.custom(
      "refresh", "steps between refreshes of c_attn; auto = clamp(steps/50, 1, 1000)",
      [&](const Json& j, const std::string& key) { c.refresh = schema::Reader::as_integer_or_auto(key, j, {.at_least = 1}); },
      [&] { return c.refresh ? Json(c.refresh) : Json("auto"); });
  v.choice("correction", c.correction, kCorrections, "learned correction of the approximation");
  v.boolean("gamma_in_constant", c.gamma_in_constant, "multiply the constant by mean(gamma^2) of the attention norm");
  v.boolean("stop_gradient", c.stop_gradient, "no gradient from the second site to the block's statistic");
  v.number("aux_loss", c.aux_loss, "weight of the auxiliary loss on the approximation", {.at_least = 0});
  v.integer("aux_every", c.aux_every, "steps between applications of the auxiliary loss", {.at_least = 1});
  v.custom(
      "calibration", "one factor per layer on the approximated statistic",
      [&](const Json& j, const std::string& key) { c.calibration = read_list(j, key, kPositive); }, [&] { return Json(c.calibration); });
}

template <class V>
void walk(NormConfig& c, V& v) {
  walk_method(c, v);
  walk_second_site(c, v);
  v.custom(
      "layers", "where the method stands: all, or [from, to] counted from 1",
      [&](const Json& j, const std::string& key) { read_layers(c, j, key); },
      [&] {
        return c.last_layer ? Json({c.first_layer, c.last_layer}) : Json("all");
      });
  v.custom(
      "elsewhere", "the method of the other layers",
      [&](const Json& j, const std::string& key) { c.elsewhere = method(schema::Reader::as_text(key, j), key).name; },
      [&] { return Json(c.elsewhere); });
  v.custom(
      "alpha", "dyt, derf: initial alpha for attention, MLP, last; auto = by width",
      [&](const Json& j, const std::string& key) {
        if (j == "auto")
          c.alpha.reset();
        else
          c.alpha = read_numbers<3>(j, key, kPositive);
      },
      [&] { return c.alpha ? Json(*c.alpha) : Json("auto"); });
  v.custom(
      "seq_len", "T of c_attn; follows data.seq_len",
      [&](const Json& j, const std::string& key) { c.seq_len = schema::Reader::as_integer(key, j, {.at_least = 1}); },
      [&] { return c.seq_len ? Json(c.seq_len) : Json(Json::value_t::discarded); });
}

// What a method must have for a key to matter to it.
using Needs = bool (*)(const Method& m, const NormConfig& c);

bool lambda(const Method& m, const NormConfig&) { return m.scale == ScaleKind::lambda; }
bool alpha(const Method& m, const NormConfig&) { return m.scale == ScaleKind::alpha; }
bool a_choice_of_end(const Method& m, const NormConfig&) { return m.end == End::rms_or_exact; }
bool approximation(const Method& m, const NormConfig&) { return m.site2 == SiteStat::approximate; }
bool auxiliary_loss(const Method& m, const NormConfig& c) { return approximation(m, c) && c.aux_loss > 0; }
bool given_statistic(const Method& m, const NormConfig& c) { return approximation(m, c) || m.site2 == SiteStat::block_input; }
bool other_layers(const Method&, const NormConfig& c) { return c.last_layer > 0; }

// The keys that do not matter to every method.
constexpr struct {
  const char *key, *shown;
  Needs needs;
} kUses[] = {
    {"kappa", "norm.kappa (norm.p)", lambda},
    {"lambda", "norm.lambda", lambda},
    {"lambda_last", "norm.lambda_last", a_choice_of_end},
    {"learn_lambda", "norm.learn_lambda", lambda},
    {"gain", "norm.gain", lambda},
    {"kappa_schedule", "norm.kappa_schedule", lambda},
    {"exact_layers", "norm.exact_layers", given_statistic},
    {"refresh", "norm.refresh", approximation},
    {"correction", "norm.correction", approximation},
    {"gamma_in_constant", "norm.gamma_in_constant", approximation},
    {"stop_gradient", "norm.stop_gradient", given_statistic},
    {"aux_loss", "norm.aux_loss", approximation},
    {"aux_every", "norm.aux_every", auxiliary_loss},
    {"calibration", "norm.calibration", given_statistic},
    {"elsewhere", "norm.elsewhere", other_layers},
    {"alpha", "norm.alpha", alpha},
};

}  // namespace

void fields(NormConfig& c, schema::Reader& v) { walk(c, v); }
void fields(NormConfig& c, schema::Writer& v) { walk(c, v); }
void fields(NormConfig& c, schema::Lister& v) { walk(c, v); }

std::vector<std::string> unused_keys(const NormConfig& c) {
  std::vector<const Method*> methods = {&method(c.method)};
  if (c.last_layer > 0) methods.push_back(&method(c.elsewhere));
  const Json given = schema::write(c), usual = schema::write(NormConfig());
  std::vector<std::string> unused;
  for (const auto& use : kUses)
    if (given[use.key] != usual[use.key] && std::none_of(methods.begin(), methods.end(), [&](const Method* m) { return use.needs(*m, c); }))
      unused.emplace_back(use.shown);
  return unused;
}

}  // namespace bhyt
