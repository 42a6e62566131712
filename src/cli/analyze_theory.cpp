// bhyt analyze theory | toy | depth.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "analysis/depth.h"
#include "analysis/theory.h"
#include "analysis/toy.h"
#include "cli/analyze.h"
#include "cli/cli.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "data/text_chunks.h"
#include "data/token_file.h"
#include "io/files.h"
#include "io/format.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

using analysis::TokenRows;
using Ordered = nlohmann::ordered_json;

// A checkpoint and the tokens that go through it.
struct OnModel {
  std::string model, adapter, tokenizer, key = "text";
  std::vector<std::string> data;
  bool no_verify = false;
  std::int64_t tokens = 2048, seq = 0;

  void add_to(CLI::App& app) {
    app.add_option("--model", model, "checkpoint folder, or a run directory: its best or newest checkpoint");
    app.add_option("--data", data, "what the model reads: texts (.txt, .jsonl, plain or with .gz or .zst) or token files");
    app.add_option("--tokens", tokens, "how many tokens, in whole rows")->capture_default_str()->transform(count())->check(between(1));
    app.add_option("--seq-len", seq, "tokens of a row (default: what the model was trained with, up to 512)")
        ->transform(count())
        ->check(between(2));
    app.add_option("--tokenizer", tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
    app.add_option("--key", key, "key of the text in JSONL objects")->capture_default_str();
    app.add_option("--adapter", adapter, kAdapterHelp);
    app.add_flag("--no-verify", no_verify, kNoVerifyHelp);
  }
  Verify verify() const { return no_verify ? Verify::no : Verify::yes; }
  void check() const {
    check_usage(model.empty() == data.empty(), "--model and --data go together: {} is missing", model.empty() ? "--model" : "--data");
  }

  struct Opened {
    std::unique_ptr<Model> model;
    TokenRows rows;
    std::string name;
  };
  Opened open(Context& ctx, DType type) const;

 private:
  std::int64_t row_length(const ModelConfig& c) const { return seq > 0 ? seq : std::min<std::int64_t>(trained_length(c), 512); }
  std::vector<TokenId> read_tokens(const ModelConfig& c, std::size_t wanted, const std::string& home) const;
};

std::vector<TokenId> OnModel::read_tokens(const ModelConfig& c, std::size_t wanted, const std::string& home) const {
  std::vector<TokenId> ids;
  if (TokenFile::recognised(data[0])) {
    for (const std::string& path : data) {
      const TokenFile file(path);
      check_usage(static_cast<std::int64_t>(file.info().meta.vocab) <= c.vocab, "{} has ids up to {}, the model's vocabulary is {}", path,
                  file.info().meta.vocab, c.vocab);
      const std::size_t more = std::min<std::size_t>(wanted - ids.size(), file.tokens()), before = ids.size();
      ids.resize(before + more);
      file.read(0, more, ids.data() + before);
    }
    return ids;
  }
  const auto words = open_tokenizer(home, tokenizer, c.vocab, verify());
  const std::vector<InputFile> files = find_inputs(data);
  TextChunkReader reader(files);
  TextChunk chunk;
  while (ids.size() < wanted && reader.next(chunk))
    for_each_text(chunk, key, [&](std::string_view text, std::int64_t) {
      if (ids.size() >= wanted) return;
      words->encode(text, ids, {.special = false});
      if (const auto end = words->end_of_text()) ids.push_back(*end);
    });
  ids.resize(std::min(ids.size(), wanted));
  return ids;
}

OnModel::Opened OnModel::open(Context& ctx, DType type) const {
  const std::filesystem::path checkpoint = named_checkpoint(model, verify());
  const std::filesystem::path beside = ModelOption{.named = model, .adapter = adapter, .no_verify = no_verify}.find_adapter();
  Opened o{.model = load_with_adapter(ctx, checkpoint, beside, type, {}), .name = model};
  const ModelConfig& c = o.model->config();
  const std::int64_t length = row_length(c), rows = std::max<std::int64_t>(1, tokens / length);
  check_usage(length <= c.max_positions, "--seq-len {} is more than the {} tokens that the model reads at most", length, c.max_positions);
  const std::vector<TokenId> ids = read_tokens(c, static_cast<std::size_t>(rows * length), tokenizer_home(checkpoint, beside));
  check_usage(std::ssize(ids) >= length, "--data holds {} tokens, which is less than a row of {}; --seq-len N takes shorter ones",
              ids.size(), length);
  o.rows = {.batch = std::ssize(ids) / length, .seq = length};
  o.rows.tokens.assign(ids.begin(), ids.begin() + o.rows.batch * length);
  return o;
}

Ordered to_json(const analysis::Finding& f) {
  Ordered j{{"verdict", analysis::name_of(f.verdict)},
            {"checks", f.checks},
            {"failed", f.failed},
            {"beyond", f.beyond},
            {"beyond_failed", f.beyond_failed}};
  j["margin"] = f.checks > 0 ? Ordered(f.margin) : Ordered(nullptr);
  j["worst"] = f.worst;
  j["assumptions"] = Ordered::array();
  for (const analysis::Assumption& a : f.assumptions) {
    Ordered one{{"name", a.name}, {"met", a.met}, {"expected", a.expected}, {"measured", a.measured}};
    if (a.layer > 0) one["layer"] = a.layer;
    one["says"] = a.says;
    j["assumptions"].push_back(one);
  }
  return j;
}

void print(const char* on, const analysis::Finding& f, const std::string& unit) {
  fmt::print("  on {:<12} {}", on, analysis::name_of(f.verdict));
  if (f.checks > 0)
    fmt::print("; {} checks{}, least margin {:.3g} ({}): {}", grouped(f.checks), f.failed ? fmt::format(" of which {} fail", f.failed) : "",
               f.margin, unit, f.worst);
  if (f.beyond > 0) fmt::print("; beyond its assumptions {} of {} fail", grouped(f.beyond_failed), grouped(f.beyond));
  fmt::print("\n");
  for (const analysis::Assumption& a : f.assumptions) fmt::print("    {:<8} {}: {}\n", a.met ? "met" : "not met", a.name, a.says);
}

}  // namespace

int analyze_theory(const Args& args) {
  CLI::App app("The paper's statements in numbers, on random inputs and on a model", "bhyt analyze theory");
  OnModel on;
  bool json = false;
  std::vector<std::string> words;
  on.add_to(app);
  app.add_flag("--json", json, "print the findings as JSON");
  app.add_option("key=value", words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
  parse(app, args);
  const Placement where = take_placement(words, "auto");
  on.check();
  Context ctx(where.device, where.threads);
  std::vector<analysis::Statement> all = analysis::check_theory(ctx);
  std::string name;
  if (!on.model.empty()) {
    const OnModel::Opened o = on.open(ctx, where.dtype);
    analysis::check_theory_on(ctx, *o.model, o.rows, all);
    name = fmt::format("{} ({}), {} rows of {} tokens", o.name, o.model->config().norm.method, o.rows.batch, o.rows.seq);
  }
  if (json) {
    Ordered j{{"model", name.empty() ? Ordered(nullptr) : Ordered(name)}, {"statements", Ordered::array()}};
    for (const analysis::Statement& s : all) {
      Ordered one{{"id", s.id}, {"title", s.title}, {"claim", s.claim}, {"margin_unit", s.unit}, {"random", to_json(s.random)}};
      if (s.model) one["on_model"] = to_json(*s.model);
      j["statements"].push_back(one);
    }
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  if (!name.empty()) fmt::print("model: {}\n\n", name);
  for (const analysis::Statement& s : all) {
    fmt::print("{}: {}\n", s.title, s.claim);
    print("random", s.random, s.unit);
    if (s.model) print("this model", *s.model, s.unit);
    fmt::print("\n");
  }
  return 0;
}

namespace {

void print_toy(const std::vector<analysis::ToyProfile>& profiles, const analysis::ToyOptions& o) {
  const auto last = static_cast<std::size_t>(o.layers);
  fmt::print("{:<18} {:>10} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9}  {}\n", "f", "‖x‖ at 1", "‖x‖ end", "variance 1", "half-way", "end",
             "rms f end", "saturated", "also");
  for (const analysis::ToyProfile& p : profiles)
    fmt::print("{:<18} {:>8.4g} {:>8.4g} {:>10.4g} {:>10.4g} {:>10.4g} {:>9.3g} {:>8.1f}%  {}\n", p.variant.name, p.norm.front(),
               p.norm.back(), p.variance.front(), p.variance[last / 2], p.variance.back(), p.output.back(), 100 * p.saturated.back(),
               fmt::join(p.variant.same, ", "));
}

std::string or_none(const std::optional<double>& v, const char* none) { return v ? fmt::format("{:.2g}", *v) : none; }

void print_findings(const analysis::ToyFindings& f) {
  fmt::print("\nNoise: from c = {} on a layer adds as much variance as the stream began with (the paper: growth turns rapid near 0.7).\n",
             or_none(f.rapid_noise, "none of those tried"));
  fmt::print(
      "DyT: f has come to that size at the end from α = {} on, and half of it is saturated there from α = {} on (the paper: α ≲ 0.5).\n",
      or_none(f.rapid_alpha, "none of those tried"), or_none(f.saturated_alpha, "none of those tried"));
  fmt::print("Flattest of the methods as they begin: {}, whose variance grows {:.3g} times.\n", f.flattest, f.flattest_growth);
}

Ordered toy_json(const std::vector<analysis::ToyProfile>& profiles, const analysis::ToyOptions& o) {
  const analysis::ToyFindings f = analysis::toy_findings(profiles);
  const auto number = [](const std::optional<double>& v) { return v ? Ordered(*v) : Ordered(nullptr); };
  Ordered j{{"dim", o.d}, {"layers", o.layers}, {"seeds", o.seeds}};
  j["rapid_noise"] = number(f.rapid_noise);
  j["rapid_alpha"] = number(f.rapid_alpha);
  j["saturated_alpha"] = number(f.saturated_alpha);
  j["flattest"] = f.flattest;
  j["profiles"] = Ordered::array();
  for (const analysis::ToyProfile& p : profiles) {
    const analysis::ToyVariant& v = p.variant;
    j["profiles"].push_back({{"name", v.name},
                             {"family", v.family},
                             {"setting", number(v.setting)},
                             {"same", v.same},
                             {"norm", p.norm},
                             {"variance", p.variance},
                             {"output_rms", p.output},
                             {"saturated", p.saturated}});
  }
  return j;
}

}  // namespace

int analyze_toy(const Args& args) {
  CLI::App app("A residual stack x + f(x)·W under noise and under every method (figure 6)", "bhyt analyze toy");
  analysis::ToyOptions o;
  bool json = false;
  std::string svg;
  std::vector<std::string> words;
  app.add_option("--dim", o.d, "width of the stream")->capture_default_str()->check(between(2, 16384));
  app.add_option("--layers", o.layers, "depth of the stack")->capture_default_str()->check(between(1, 4096));
  app.add_option("--seeds", o.seeds, "matrices, inputs and noise are drawn so many times")->capture_default_str()->check(between(1, 1000));
  app.add_flag("--json", json, "print the profiles as JSON");
  app.add_option("--svg", svg, "folder for toy.svg (the paper's panels) and toy_methods.svg (every method)");
  app.add_option("key=value", words, "device=cpu|cuda[:N] (cpu), threads=N");
  parse(app, args);
  const Placement where = take_placement(words, "cpu");
  if (!svg.empty()) std::filesystem::create_directories(svg);
  Context ctx(where.device, where.threads);
  const auto profiles = analysis::run_toy(ctx, analysis::toy_variants(o.layers, o.d), o);
  if (!svg.empty()) {
    replace_synced(std::filesystem::path(svg) / "toy.svg", analysis::toy_figure(profiles));
    replace_synced(std::filesystem::path(svg) / "toy_methods.svg", analysis::toy_methods_figure(profiles));
  }
  if (json) {
    fmt::print("{}\n", toy_json(profiles, o).dump(2));
    return 0;
  }
  print_toy(profiles, o);
  print_findings(analysis::toy_findings(profiles));
  return 0;
}

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
    low1 = std::min(low1, a.rho), high1 = std::max(high1, a.rho), low2 = std::min(low2, m.rho), high2 = std::max(high2, m.rho);
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

Ordered depth_json(const DepthOutcome& o) {
  const analysis::Profile own = analysis::predict(o.measure.stack, o.learned),
                          level = analysis::predict(analysis::levelled(o.measure.stack), o.learned);
  const analysis::DepthError a = analysis::depth_error(own, o.measure), b = analysis::depth_error(level, o.measure);
  Ordered j{{"source", o.source}, {"layers", o.stack.layers.size()}, {"input_variance", o.stack.input}};
  j["measured"] = Ordered::array();
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
  j["largest_ratio"] = o.ratio ? Ordered(*o.ratio) : Ordered(nullptr);
  j["condition"] = 1 / std::sqrt(static_cast<double>(o.stack.layers.size()));
  return j;
}

// A new model of a config, which reads tokens drawn at random.
OnModel::Opened open_new(Context& ctx, const ModelConfig& config, DType type, const OnModel& on) {
  OnModel::Opened o{.model = std::make_unique<Model>(ctx, config, type)};
  o.model->parameters().initialize(0);
  o.model->refresh_constants();
  const std::int64_t seq = on.seq > 0 ? on.seq : std::min<std::int64_t>(trained_length(config), 512);
  o.rows = analysis::random_tokens(std::max<std::int64_t>(1, on.tokens / seq), seq, config.vocab, 1);
  o.name = fmt::format("a new {}", config.preset.empty() ? "model" : config.preset);
  return o;
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
  const OnModel::Opened opened = on.model.empty() ? open_new(ctx, config, where.dtype, on) : on.open(ctx, where.dtype);
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
