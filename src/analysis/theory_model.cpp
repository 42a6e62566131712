// The statements on a model's weights and activations.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/depth.h"
#include "analysis/theory.h"
#include "analysis/theory_model.h"
#include "analysis/theory_random.h"
#include "core/check.h"
#include "ops/norm/maps.h"

namespace bhyt::analysis {

namespace {

constexpr std::int64_t kJacobianTokens = 8;  // of each layer

// A site as the statements speak of it.
struct SiteView {
  const SiteValues& values;
  const Matrix& x;      // what it sees
  const Matrix& scale;  // a of each token; empty where the method has no λ
  std::vector<double> gamma;
  double lambda, kappa;
  bool own_statistic;
  std::int64_t layer;
  int number;  // 1 or 2

  std::string where(std::int64_t token) const { return fmt::format("layer {}, site {}, token {}", layer, number, token); }
};

SiteView view(const LayerValues& v, const SiteValues& values, const SiteWeights& w, Context& ctx, int number) {
  const bool first = number == 1, own = values.plan.scale == ScaleKind::lambda;
  static const Matrix none;
  const NormConfig defaults;
  const Matrix gamma = to_matrix(ctx, w.gamma);
  return {.values = values,
          .x = v.at(first ? Point::block_input : Point::after_attention),
          .scale = own ? v.at(first ? Point::scale1 : Point::scale2) : none,
          .gamma = {gamma.values.begin(), gamma.values.end()},
          .lambda = own ? std::fabs(values.scale) : defaults.lambda[first ? 0 : 1],
          .kappa = own ? 1 / static_cast<double>(values.plan.factor) : defaults.kappa,
          .own_statistic = !own || values.plan.stat != Stat::given,
          .layer = v.layer,
          .number = number};
}

std::vector<double> row_of(const Matrix& m, std::int64_t i) {
  const auto r = m.row(i);
  return {r.begin(), r.end()};
}

constexpr double kNearZero = 0.1;  // of its deviation, a mean that counts as none

// Keeps the reading that is furthest from what is expected, by its logarithm.
void keep_worst(Assumption& a, double measured, std::int64_t layer, bool first) {
  const auto off = [&](double m) { return m > 0 ? std::fabs(std::log(m / a.expected)) : INFINITY; };
  if (first || off(measured) > off(a.measured)) {
    a.measured = measured;
    a.layer = layer;
  }
  a.met = off(a.measured) <= kQuarter;
}

void keep_most(Assumption& a, double measured, std::int64_t layer, bool first) {
  if (first || measured > a.measured) {
    a.measured = measured;
    a.layer = layer;
  }
}

class ModelCheck {
 public:
  ModelCheck(Context& ctx, const Model& model, const TokenRows& rows)
      : ctx_(ctx), model_(model), rows_(rows), values_(learned_values(ctx, model)) {
    scaled_.assumptions = {{.name = "the scale is made from the row's own statistic", .expected = 1}};
    sandwich_.assumptions = {{.name = "|a·x| ≤ λ everywhere", .expected = 0}, {.name = "zero mean", .expected = 0}};
    jacobian_.assumptions = {{.name = "the statistic is the row's own", .expected = 1}};
  }

  void see(const LayerValues& v) {
    for (const Point p : {Point::block_input, Point::after_attention, Point::block_output})
      for (const float x : v.at(p).values)
        check(std::isfinite(x), "layer {}: {} holds values that are not finite; nothing can be said of such a model", v.layer,
              bhyt::name_of(p));
    const BlockValues& b = values_[static_cast<std::size_t>(v.layer - 1)];
    const LayerWeights& w = model_.weights().layers[static_cast<std::size_t>(v.layer - 1)];
    for (const int number : {1, 2}) {
      const SiteView s = view(v, number == 1 ? b.site1 : b.site2, number == 1 ? w.site1 : w.site2, ctx_, number);
      chebyshev(s);
      jacobian(s);
      sandwich_of(s);
    }
    check_attention(ctx_, model_, rows_, v, b.site1, attention_);
    check_mlp(ctx_, model_, v, mlp_);
    measure_layer(ctx_, model_, v, measure_);
  }

  void finish(std::vector<Statement>& all) {
    const auto put = [&](const char* id, Finding f) {
      f.settle();
      for (Statement& s : all)
        if (s.id == id) s.model = std::move(f);
    };
    settle_sites();
    put("chebyshev", scaled_);
    put("jacobian", jacobian_);
    put("sandwich", sandwich_);
    put("attention", attention_);
    put("mlp", mlp_);
    put("recursion", recursion_finding());
    put("comparison", comparison_finding());
  }

 private:
  void chebyshev(const SiteView& s) {
    const double p = 1 - 1 / (s.kappa * s.kappa);
    for (std::int64_t t = 0; t < s.x.rows; ++t) {
      const std::vector<double> x = row_of(s.x, t);
      const double own = s.lambda / (s.kappa * std::sqrt(moments(x).square + s.values.plan.eps));
      const double a = s.scale.rows > 0 ? std::fabs(static_cast<double>(s.scale.values[static_cast<std::size_t>(t)])) : own;
      const double share = share_within(x, a, s.lambda);
      if (s.own_statistic) {
        scaled_.add(share - p, s.where(t), 1e-9);
        continue;
      }
      keep_worst(scaled_.assumptions[0], a / own, s.layer, scaled_.beyond == 0);
      scaled_.add_beyond(share >= p);
      least_share_ = std::min(least_share_, share - p);
    }
  }

  void jacobian(const SiteView& s) {
    const double g = s.lambda / s.kappa, eps = s.values.plan.eps;
    for (std::int64_t k = 0; k < std::min(kJacobianTokens, s.x.rows); ++k) {
      const std::int64_t t = k * s.x.rows / std::min(kJacobianTokens, s.x.rows);
      const std::vector<double> x = row_of(s.x, t);
      const JacobianInput free{.x = x, .gamma = s.gamma, .gain = g, .eps = eps};
      JacobianInput bounded = free;
      bounded.bounded = true;
      const double bound = g * jacobian_norm(free);
      jacobian_.add(1 - jacobian_norm(bounded) / bound, s.where(t), 1e-9);
      if (s.own_statistic) continue;
      // As the program has it: the scale does not move with x'.
      const double a = std::fabs(static_cast<double>(s.scale.values[static_cast<std::size_t>(t)]));
      double most = 0;
      for (std::size_t i = 0; i < x.size(); ++i) most = std::max(most, std::fabs(s.gamma[i]) * a / std::pow(std::cosh(a * x[i]), 2));
      keep_most(jacobian_.assumptions[0], most / bound, s.layer, jacobian_.beyond == 0);
      jacobian_.add_beyond(most <= bound * (1 + 1e-6));
    }
  }

  void sandwich_of(const SiteView& s) {
    for (std::int64_t t = 0; t < s.x.rows; ++t) {
      const std::vector<double> x = row_of(s.x, t);
      const Moments m = moments(x);
      if (!(m.variance > 0)) continue;  // nothing to say of
      const Sandwich w = sandwich(x, s.lambda, s.kappa);
      const double above = (w.high - w.value) / w.high, below = (w.value - w.low) / w.high;
      const double outside = 1 - share_within(x, s.lambda / (s.kappa * std::sqrt(m.variance)), s.lambda);
      outside_ += outside;
      mean_ = std::max(mean_, std::fabs(m.mean) / std::sqrt(m.variance));
      ++seen_;
      if (w.bounded && std::fabs(m.mean) <= kNearZero * std::sqrt(m.variance)) {
        sandwich_.add(std::min(above, below), s.where(t), 1e-12);
        continue;
      }
      unbounded_ += !w.bounded;
      sandwich_.add(above, s.where(t) + ", upper half alone", 1e-12);
      sandwich_.add_beyond(below >= 0);
    }
  }

  void settle_sites() {
    Assumption& scale = scaled_.assumptions[0];
    if (scaled_.beyond == 0) {
      scale.measured = 1;
      scale.says = "so it is at every site";
    } else {
      scale.met = false;
      scale.says = fmt::format(
          "approximated second sites: a is {:.3g} times its exact value at the furthest; {} of {} tokens have less than p within λ{}",
          scale.measured, scaled_.beyond_failed, scaled_.beyond, least_share_ < 0 ? fmt::format(", by up to {:.3g}", -least_share_) : "");
    }
    Assumption& own = jacobian_.assumptions[0];
    if (jacobian_.beyond == 0) {
      own.measured = 1;
      own.says = "so it is at every site";
    } else {
      own.met = false;
      own.says = fmt::format("approximated second sites as they are: up to {:.3g} times the bound, above it in {} of {}", own.measured,
                             jacobian_.beyond_failed, jacobian_.beyond);
    }
    Assumption &inside = sandwich_.assumptions[0], &mean = sandwich_.assumptions[1];
    inside.measured = outside_ / static_cast<double>(std::max<std::int64_t>(seen_, 1));
    inside.met = unbounded_ == 0;
    inside.says =
        fmt::format("{:.3g} % of the values lie beyond, in {} of {} tokens at either site", 100 * inside.measured, unbounded_, seen_);
    mean.measured = mean_;
    mean.met = mean_ <= kNearZero;
    mean.says = fmt::format("a token's |mean| is at most {:.3g} of its deviation", mean_);
  }

  Finding recursion_finding() const {
    Finding f;
    const auto layers = std::ssize(measure_.attention);
    for (std::int64_t l = 0; l < layers; ++l) {
      const auto i = static_cast<std::size_t>(l);
      const SublayerMeasure &a = measure_.attention[i], &m = measure_.mlp[i];
      const double next = l + 1 < layers ? measure_.attention[i + 1].stream : measure_.output;
      f.add(1e-6 - std::fabs(add_branch(a.stream, a.branch, a.rho) / m.stream - 1), fmt::format("layer {}, attention", l + 1));
      f.add(1e-6 - std::fabs(add_branch(m.stream, m.branch, m.rho) / next - 1), fmt::format("layer {}, MLP", l + 1));
    }
    const DepthError own = depth_error(predict(measure_.stack, values_), measure_);
    const DepthError level = depth_error(predict(levelled(measure_.stack), values_), measure_);
    f.assumptions.push_back({.name = "norms give what their formula says",
                             .expected = 1,
                             .measured = std::exp(own.worst),
                             .met = own.worst <= kQuarter,
                             .layer = own.layer,
                             .says = fmt::format("each layer's own C and ρ: off by {:.3g} times at the worst, {:.3g} on average",
                                                 std::exp(own.worst), std::exp(own.mean))});
    f.assumptions.push_back({.name = "one C and one ρ for all layers",
                             .expected = 1,
                             .measured = std::exp(level.worst),
                             .met = level.worst <= kQuarter,
                             .layer = level.layer,
                             .says = fmt::format("with their means the variance is off by {:.3g} times at the worst, {:.3g} on average",
                                                 std::exp(level.worst), std::exp(level.mean))});
    return f;
  }

  Finding comparison_finding() const;

  Context& ctx_;
  const Model& model_;
  const TokenRows& rows_;
  std::vector<BlockValues> values_;
  Finding scaled_, jacobian_, sandwich_, attention_, mlp_;
  double least_share_ = INFINITY, outside_ = 0, mean_ = 0;
  std::int64_t seen_ = 0, unbounded_ = 0;
  DepthMeasure measure_;
};

// The model's own C and ρ under both norms, with BHyT's upper bound and the same γ.
Finding ModelCheck::comparison_finding() const {
  Finding f;
  std::vector<RecursionLayer> bhyt, lns;
  const auto layers = static_cast<double>(values_.size());
  const NormConfig defaults;
  double ratio = 0, least_rho = INFINITY, gain = 0;
  std::int64_t low_layer = 0;
  for (std::size_t l = 0; l < values_.size(); ++l) {
    const SublayerMeasure &a = measure_.attention[l], &m = measure_.mlp[l];
    const auto lambda_over_kappa = [&](const SiteValues& s, double standard) {
      return s.plan.scale == ScaleKind::lambda ? std::fabs(s.scale) * s.plan.factor : standard / defaults.kappa;
    };
    const double g1 = lambda_over_kappa(values_[l].site1, defaults.lambda[0]), g2 = lambda_over_kappa(values_[l].site2, defaults.lambda[1]);
    const auto rms_gain = [](const SiteValues& s) { return std::sqrt(s.gamma2) * s.plan.out_factor; };
    ratio = std::max({ratio, g1, g2});
    gain = std::max({gain, rms_gain(values_[l].site1), rms_gain(values_[l].site2)});
    for (const double rho : {a.rho, m.rho})
      if (rho < least_rho) {
        least_rho = rho;
        low_layer = static_cast<std::int64_t>(l + 1);
      }
    RecursionLayer one{
        .c_attention = a.norm > 0 ? a.branch / a.norm : 0, .c_mlp = m.norm > 0 ? m.branch / m.norm : 0, .rho1 = a.rho, .rho2 = m.rho};
    one.f1 = g1 * g1;
    one.f2 = g2 * g2;
    bhyt.push_back(one);
    one.f1 = one.f2 = 1 / static_cast<double>(l + 1);
    lns.push_back(one);
  }
  const std::vector<double> b = recursion(measure_.stack.input, bhyt), n = recursion(measure_.stack.input, lns);
  double margin = INFINITY;
  for (std::size_t l = 1; l + 1 < b.size(); ++l) margin = std::min(margin, 1 - b[l] / n[l]);
  const bool condition = ratio < 1 / std::sqrt(layers), positive = least_rho >= 0;
  if (b.size() < 3)
    margin = 0;  // one layer: nothing to compare
  else if (condition && positive)
    f.add(margin, "the model's C and ρ, γ = 1");
  else
    f.add_beyond(margin > 0);
  f.assumptions = {{.name = "λ/κ < 1/√L",
                    .expected = 1 / std::sqrt(layers),
                    .measured = ratio,
                    .met = condition,
                    .says = fmt::format("the largest λ/κ is {:.3g}, 1/√L is {:.3g}", ratio, 1 / std::sqrt(layers))},
                   {.name = "ρ ≥ 0",
                    .expected = 0,
                    .measured = least_rho,
                    .met = positive,
                    .layer = low_layer,
                    .says = fmt::format("the least ρ is {:.3g}; with the model's C and ρ BHyT {} LNS in every layer", least_rho,
                                        margin > 0 ? "is below" : "is not below")},
                   {.name = "γ as LNS has it",
                    .expected = 1,
                    .measured = gain,
                    .met = gain <= 1.25,
                    .says = fmt::format("rms γ (times the constant factor) is at most {:.3g}", gain)}};
  return f;
}

}  // namespace

void check_theory_on(Context& ctx, const Model& model, const TokenRows& rows, std::vector<Statement>& statements) {
  ModelCheck check(ctx, model, rows);
  std::vector<Point> points = depth_points();
  for (const Point p : {Point::scale1, Point::scale2, Point::q, Point::k, Point::v, Point::up, Point::hidden}) points.push_back(p);
  walk_layers(ctx, model, rows, points, [&](const LayerValues& v) { check.see(v); });
  check.finish(statements);
}

}  // namespace bhyt::analysis
