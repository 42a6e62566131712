// bhyt analyze depth.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "analysis/depth.h"
#include "cli/analyze.h"
#include "cli/analyze_model.h"
#include "cli/cli.h"
#include "core/check.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

struct Prediction {
  std::string method;
  analysis::Profile profile;
};

// Every method as it begins, in a stack with these gains.
std::vector<Prediction> predict_all(const analysis::Stack& stack, const ModelConfig& c) {
  std::vector<Prediction> all;
  for (const Method& m : methods()) {
    NormConfig norm{.method = std::string(m.name), .seq_len = trained_length(c)};
    const NormPlan plan = plan_norms(norm, std::ssize(stack.layers), c.d, c.eps);
    all.push_back({norm.method, analysis::predict(stack, analysis::initial_values(plan))});
  }
  return all;
}

struct DepthOutcome {
  std::string source;
  ModelConfig config;
  analysis::DepthMeasure measure;
  std::vector<analysis::BlockValues> learned;
  analysis::Stack stack;  // with the layers that were asked for
  std::vector<Prediction> predictions;
  double bound = 0;
  std::string bound_says;
  std::optional<double> ratio;
};

void print_gains(const DepthOutcome& o) {
  const analysis::Stack mean = analysis::levelled(o.measure.stack);
  const analysis::LayerGains& g = mean.layers[0];
  double c_mlp = 0, low1 = INFINITY, high1 = -INFINITY, low2 = INFINITY, high2 = -INFINITY;
  for (std::size_t l = 0; l < o.measure.mlp.size(); ++l) {
    const analysis::SublayerMeasure &a = o.measure.attention[l], &m = o.measure.mlp[l];
    c_mlp += std::log(m.norm > 0 ? m.raw / m.norm : NAN) / static_cast<double>(o.measure.mlp.size());
    low1 = std::min(low1, a.rho);
    high1 = std::max(high1, a.rho);
    low2 = std::min(low2, m.rho);
    high2 = std::max(high2, m.rho);
  }
  fmt::print("{}\n", o.source);
  fmt::print(
      "C_attention {:.3g}, C_mlp {:.3g} (geometric means over layers); ρ₁ {:.3g} ({:.3g} to {:.3g}), ρ₂ {:.3g} ({:.3g} to {:.3g}); "
      "variance of x₁ {:.4g}\n\n",
      g.attention.at(1), std::exp(c_mlp), g.rho1, low1, high1, g.rho2, low2, high2, o.stack.input);
}

void print_own(const DepthOutcome& o) {
  const analysis::Profile own = analysis::predict(o.measure.stack, o.learned),
                          level = analysis::predict(analysis::levelled(o.measure.stack), o.learned);
  const std::vector<double> measured = analysis::measured_profile(o.measure);
  fmt::print("{:<7} {:>10} {:>12} {:>8} {:>12} {:>8}   {}\n", "layer", "measured", "own C and ρ", "error", "mean C and ρ", "error",
             "variance behind the block, and what the recursion makes of it");
  for (std::size_t l = 1; l < measured.size(); ++l)
    fmt::print("{:<7} {:>10.4g} {:>12.4g} {:>+7.0f}% {:>12.4g} {:>+7.0f}%\n", l, measured[l], own.entrance[l],
               100 * (own.entrance[l] / measured[l] - 1), level.entrance[l], 100 * (level.entrance[l] / measured[l] - 1));
  const analysis::DepthError a = analysis::depth_error(own, o.measure), b = analysis::depth_error(level, o.measure);
  fmt::print(
      "each layer's own C and ρ: off by {:.3g} times on average, {:.3g} at the worst (layer {}); their means: {:.3g} and {:.3g} (layer "
      "{})\n\n",
      std::exp(a.mean), std::exp(a.worst), a.layer, std::exp(b.mean), std::exp(b.worst), b.layer);
}

void print_depth(const DepthOutcome& o) {
  print_gains(o);
  print_own(o);
  const auto layers = o.stack.layers.size();
  fmt::print("{} layers, each method as it begins:\n{:<16} {:>10} {:>10} {:>10} {:>10} {:>10}\n", layers, "", "behind 1", "1/4", "1/2",
             "3/4", "the last");
  for (const Prediction& p : o.predictions) {
    const auto& s = p.profile.entrance;
    fmt::print("{:<16} {:>10.4g} {:>10.4g} {:>10.4g} {:>10.4g} {:>10.4g}\n", p.method, s[1], s[std::max<std::size_t>(1, layers / 4)],
               s[std::max<std::size_t>(1, layers / 2)], s[std::max<std::size_t>(1, 3 * layers / 4)], s[layers]);
  }
  const double condition = 1 / std::sqrt(static_cast<double>(layers));
  fmt::print("\nbound {:.4g} ({}): ", o.bound, o.bound_says);
  if (!o.ratio)
    fmt::print("no λ/κ keeps bhyt at or below it\n");
  else if (*o.ratio >= analysis::kUnbounded)
    fmt::print("bhyt stays at or below it with any λ/κ\n");
  else
    fmt::print("bhyt stays at or below it up to λ/κ = {:.3g} at both sites (λ = {:.3g} with κ = 10); 1/√L is {:.3g}\n", *o.ratio,
               10 * *o.ratio, condition);
}

nlohmann::ordered_json depth_json(const DepthOutcome& o) {
  const analysis::Profile own = analysis::predict(o.measure.stack, o.learned),
                          level = analysis::predict(analysis::levelled(o.measure.stack), o.learned);
  const analysis::DepthError a = analysis::depth_error(own, o.measure), b = analysis::depth_error(level, o.measure);
  nlohmann::ordered_json j{{"source", o.source}, {"layers", o.stack.layers.size()}, {"input_variance", o.stack.input}};
  j["measured"] = nlohmann::ordered_json::array();
  for (std::size_t l = 0; l < o.measure.attention.size(); ++l) {
    const analysis::SublayerMeasure &at = o.measure.attention[l], &m = o.measure.mlp[l];
    j["measured"].push_back({{"layer", l + 1},
                             {"variance", at.stream},
                             {"c_attention", at.norm > 0 ? at.raw / at.norm : 0},
                             {"c_mlp", m.norm > 0 ? m.raw / m.norm : 0},
                             {"rho1", at.rho},
                             {"rho2", m.rho},
                             {"norm1_variance", at.norm},
                             {"norm2_variance", m.norm},
                             {"c_attn", o.measure.stack.layers[l].c_attn}});
  }
  j["profile"] = {{"measured", analysis::measured_profile(o.measure)}, {"own", own.entrance}, {"level", level.entrance}};
  j["error"] = {{"own_mean", a.mean}, {"own_worst", a.worst}, {"level_mean", b.mean}, {"level_worst", b.worst}};
  for (const Prediction& p : o.predictions) j["predicted"][p.method] = p.profile.entrance;
  j["bound"] = o.bound;
  j["largest_ratio"] = o.ratio ? nlohmann::ordered_json(*o.ratio) : nlohmann::ordered_json(nullptr);
  j["condition"] = 1 / std::sqrt(static_cast<double>(o.stack.layers.size()));
  return j;
}

void settle_bound(DepthOutcome& o, const std::optional<double>& bound) {
  const auto lns = std::find_if(o.predictions.begin(), o.predictions.end(), [](const Prediction& p) { return p.method == "lns"; });
  o.bound = bound ? *bound : analysis::largest(lns->profile);
  o.bound_says = bound ? "--bound" : "what lns comes to";
  const NormConfig base{.method = "bhyt", .seq_len = trained_length(o.config)};
  o.ratio = analysis::largest_ratio(o.stack, base, o.config.d, o.config.eps, o.bound);
}

}  // namespace

int analyze_depth(const Args& args) {
  CLI::App app("How the stream's variance grows with depth under every method, by the paper's recursion", "bhyt analyze depth");
  OnModel on;
  bool json = false;
  std::int64_t layers = 0;
  std::optional<double> bound;
  std::vector<std::string> words;
  on.add_to(app);
  app.add_option("--layers", layers, "depth to plan for (default: that of the model)")->check(between(1, 100000));
  app.add_option("--bound", bound, "the largest variance that is wanted (default: what LNS comes to)");
  app.add_flag("--json", json, "print all of it as JSON");
  app.add_option("key=value", words,
                 "with --model: device=auto|cpu|cuda[:N], dtype=fp32|bf16, threads=N;\nwithout: the keys of a config, model.preset=tiny … "
                 ": a new model is measured");
  parse(app, args);
  on.check();
  check_usage(!bound || (std::isfinite(*bound) && *bound > 0), "--bound takes a variance above 0, got {}", bound.value_or(0));
  Placement where;
  ModelConfig config;
  if (on.model.empty()) {
    std::vector<std::string> keys = words;
    if (std::none_of(words.begin(), words.end(), [](const std::string& w) { return w.starts_with("model."); }))
      keys.emplace_back("model.preset=tiny");
    const train::RunConfig run = train::read_run_config(train::config_tree("", keys));
    config = run.model.config;
    where = {
        .device = parse_device(run.run.device), .dtype = run.run.dtype.value_or(DType::f32), .threads = static_cast<int>(run.run.threads)};
  } else {
    where = take_placement(words, "auto");
  }
  Context ctx(where.device, where.threads);
  const OnModel::Opened opened = on.model.empty() ? on.open_new(ctx, config, where.dtype) : on.open(ctx, where.dtype);
  DepthOutcome o{.config = opened.model->config()};
  o.source = fmt::format("{} ({}, {} layers), {} rows of {} tokens", opened.name, o.config.norm.method, o.config.layers, opened.rows.batch,
                         opened.rows.seq);
  o.measure = analysis::measure_depth(ctx, *opened.model, opened.rows);
  o.learned = analysis::learned_values(ctx, *opened.model);
  o.stack = analysis::stretched(o.measure.stack, layers > 0 ? layers : o.config.layers);
  o.predictions = predict_all(o.stack, o.config);
  settle_bound(o, bound);
  if (json)
    fmt::print("{}\n", depth_json(o).dump(2));
  else
    print_depth(o);
  return 0;
}

}  // namespace bhyt::cli
