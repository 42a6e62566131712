#include "analysis/depth.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "ops/norm/maps.h"

namespace bhyt::analysis {

double add_branch(double stream, double branch, double rho) { return stream + branch + 2 * rho * std::sqrt(stream * branch); }

double delta(double rho, double pi) { return 1 + pi + 2 * rho * std::sqrt(pi); }

double Gain::at(double variance) const {
  check(!input.empty() && input.size() == gain.size(), "[depth] expected a gain for each of some inputs, got {} and {}", gain.size(),
        input.size());
  const auto above = std::upper_bound(input.begin(), input.end(), variance);
  if (above == input.begin()) return gain.front();
  if (above == input.end()) return gain.back();
  const auto i = static_cast<std::size_t>(above - input.begin());
  if (gain[i] <= 0 || gain[i - 1] <= 0) return gain[i - 1];
  const double t = std::log(variance / input[i - 1]) / std::log(input[i] / input[i - 1]);
  return gain[i - 1] * std::pow(gain[i] / gain[i - 1], t);
}

Stack stretched(const Stack& stack, std::int64_t layers) {
  Stack out{.input = stack.input};
  const auto have = std::ssize(stack.layers);
  for (std::int64_t l = 0; l < layers; ++l) out.layers.push_back(stack.layers[static_cast<std::size_t>((2 * l + 1) * have / (2 * layers))]);
  return out;
}

Stack levelled(const Stack& stack) {
  const auto n = static_cast<double>(stack.layers.size());
  LayerGains one;
  double attention = 0, mlp = 0;
  for (const LayerGains& l : stack.layers) {
    attention += std::log(l.attention.at(1)) / n;
    one.rho1 += l.rho1 / n;
    one.rho2 += l.rho2 / n;
    one.c_attn += l.c_attn / n;
  }
  one.attention = Gain::constant(std::exp(attention));
  // The MLP's curve: every layer's, at the points of the first.
  one.mlp.input = stack.layers[0].mlp.input;
  for (const double at : one.mlp.input) {
    mlp = 0;
    for (const LayerGains& l : stack.layers) mlp += std::log(l.mlp.at(at)) / n;
    one.mlp.gain.push_back(std::exp(mlp));
  }
  return {.input = stack.input, .layers = std::vector(stack.layers.size(), one)};
}

namespace {

SiteValues initial(const SitePlan& plan) {
  return {.plan = plan, .gamma2 = static_cast<double>(plan.gamma0) * plan.gamma0, .scale = plan.scale0};
}

// E f(k·g)² of a standard normal g by the trapezoidal rule, in two pieces: where the map rises, and where it has come to its end or nothing
// is left of the density.
double mean_square_of_map(Map map, double k) {
  return dispatch_map(map, [k](auto f) {
    const auto piece = [&](double from, double to) {
      constexpr int kSteps = 400;
      const double step = (to - from) / kSteps;
      double sum = 0;
      for (int i = 0; i <= kSteps; ++i) {
        const double g = from + i * step, y = decltype(f)::value(k * g);
        sum += y * y * std::exp(-0.5 * g * g) * (i == 0 || i == kSteps ? 0.5 : 1);
      }
      return sum * step;
    };
    constexpr double kEnd = 9;
    const double middle = std::min(kEnd, 8 / std::max(k, 1e-300));
    return 2 * (piece(0, middle) + (middle < kEnd ? piece(middle, kEnd) : 0)) / std::sqrt(2 * std::numbers::pi);
  });
}

}  // namespace

std::vector<BlockValues> initial_values(const NormPlan& plan) {
  std::vector<BlockValues> blocks;
  for (const BlockPlan& b : plan.blocks) {
    BlockValues v{.site1 = initial(b.site1),
                  .site2 = initial(b.site2),
                  .calibration = b.calibration,
                  .uses_constant = b.uses_constant,
                  .gamma_in_constant = b.gamma_in_constant};
    if (b.out1) v.out1 = initial(*b.out1);
    if (b.out2) v.out2 = initial(*b.out2);
    blocks.push_back(v);
  }
  return blocks;
}

double output_variance(const SiteValues& site, double variance, double statistic) {
  const SitePlan& p = site.plan;
  double a = static_cast<double>(p.factor) * (p.scale == ScaleKind::none ? 1 : site.scale);
  if (p.stat != Stat::none) a /= std::sqrt(statistic + p.eps);
  const double k = std::fabs(a) * std::sqrt(variance), out = static_cast<double>(p.out_factor) * p.out_factor * site.gamma2;
  return out * (p.map == Map::id ? k * k : mean_square_of_map(p.map, k));
}

Profile predict(const Stack& stack, const std::vector<BlockValues>& blocks) {
  check(stack.layers.size() == blocks.size(), "[depth] expected norms for {} layers, got {}", stack.layers.size(), blocks.size());
  Profile p;
  double s = stack.input;
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    const LayerGains& gains = stack.layers[l];
    const BlockValues& b = blocks[l];
    p.entrance.push_back(s);
    const double f1 = output_variance(b.site1, s, s);
    double branch = gains.attention.at(f1) * f1;
    if (b.out1) branch = output_variance(*b.out1, branch, branch);
    const double middle = add_branch(s, branch, gains.rho1);
    p.between.push_back(middle);
    double statistic = middle;
    if (b.site2.plan.stat == Stat::given) {
      const SitePlan& first = b.site1.plan;
      const double factor = static_cast<double>(first.factor) * first.out_factor * (first.scale == ScaleKind::none ? 1 : b.site1.scale);
      const double constant = b.uses_constant ? gains.c_attn * factor * factor * (b.gamma_in_constant ? b.site1.gamma2 : 1) : 0;
      statistic = b.calibration * (s * (1 + b.ms_correction) + b.constant_correction * constant);
    }
    const double f2 = output_variance(b.site2, middle, statistic);
    branch = gains.mlp.at(f2) * f2;
    if (b.out2) branch = output_variance(*b.out2, branch, branch);
    s = add_branch(middle, branch, gains.rho2);
  }
  p.entrance.push_back(s);
  return p;
}

double largest(const Profile& p) {
  return std::max(*std::max_element(p.entrance.begin(), p.entrance.end()), *std::max_element(p.between.begin(), p.between.end()));
}

std::optional<double> largest_ratio(const Stack& stack, const NormConfig& config, std::int64_t d, double eps, double bound) {
  const auto within = [&](double ratio) {
    NormConfig c = config;
    const double lambda = ratio * c.kappa;
    c.lambda = {lambda, lambda};
    const NormPlan plan = plan_norms(c, std::ssize(stack.layers), d, eps);
    return largest(predict(stack, initial_values(plan))) <= bound;
  };
  // A grid first: with ρ < 0 the variance need not rise with the ratio.
  constexpr int kGrid = 48;
  constexpr double kLeast = 1e-3;
  const auto at = [](double i) { return kLeast * std::pow(kUnbounded / kLeast, i / kGrid); };
  int fails = 0;
  while (fails <= kGrid && within(at(fails))) ++fails;
  if (fails == 0) return {};
  if (fails > kGrid) return kUnbounded;
  double low = fails - 1, high = fails;
  for (int i = 0; i < 24; ++i) (within(at((low + high) / 2)) ? low : high) = (low + high) / 2;
  return at(low);
}

std::vector<double> measured_profile(const DepthMeasure& m) {
  std::vector<double> p;
  for (const SublayerMeasure& a : m.attention) p.push_back(a.stream);
  p.push_back(m.output);
  return p;
}

DepthError depth_error(const Profile& predicted, const DepthMeasure& measured) {
  const std::vector<double> m = measured_profile(measured);
  check(m.size() == predicted.entrance.size(), "[depth] expected a prediction for {} layers, got {}", m.size() - 1,
        predicted.entrance.size() - 1);
  DepthError e;
  for (std::size_t i = 1; i < m.size(); ++i) {
    const double off = std::fabs(std::log(predicted.entrance[i] / m[i]));
    e.mean += off / static_cast<double>(m.size() - 1);
    if (off > e.worst) {
      e.worst = off;
      e.layer = static_cast<std::int64_t>(i);
    }
  }
  return e;
}

}  // namespace bhyt::analysis
