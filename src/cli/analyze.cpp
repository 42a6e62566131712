// bhyt analyze: looks inside models while they read a text.
#include "analysis/analyze.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "cli/analyze.h"
#include "cli/analyze_model.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "data/files.h"
#include "io/format.h"
#include "model/checkpoint_files.h"
#include "report/analysis.h"
#include "report/html.h"

namespace bhyt::cli {

namespace {

namespace fs = std::filesystem;
using AnalysisJson = nlohmann::ordered_json;

constexpr std::int64_t kTokens = 8192, kPoints = 200, kLongestRow = 1024;

struct AnalyzeFlags {
  std::vector<std::string> models, data, words;
  std::string checkpoints, layers, key = "text", tokenizer, svg, html;
  std::int64_t tokens = kTokens, seq = 0, points = kPoints;
  bool json = false, save = false, force = false, no_verify = false;
};

void add_options(CLI::App& app, AnalyzeFlags& f) {
  app.add_option("--model", f.models, "checkpoint folder, or a run directory: its best or newest checkpoint; of several each is analyzed")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--checkpoints", f.checkpoints, "a run directory: all its checkpoints, oldest first");
  app.add_option("--data", f.data, "text to read: .txt, .jsonl, plain or with .gz or .zst; a folder, a glob, a token file")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--layers", f.layers, "which ones, from 1: 1,5,8..12 (default: all)");
  app.add_option("--tokens", f.tokens, "tokens to read, in whole rows")->transform(count())->check(between(2))->capture_default_str();
  app.add_option("--seq-len", f.seq, "tokens of a row (default: what the model was trained with, at most 1024)")
      ->transform(count())
      ->check(between(2));
  app.add_option("--points", f.points, "points of each layer's scatter at most")->check(between(2))->capture_default_str();
  app.add_option("--key", f.key, "key of the text in JSONL objects")->capture_default_str();
  app.add_option("--tokenizer", f.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_flag("--json", f.json, "print the result as JSON");
  app.add_option("--svg", f.svg, "folder to write the figures to");
  app.add_option("--html", f.html, "one self-contained file to write: figures and tables");
  app.add_flag("--save", f.save, "leave analysis.json in each model's run directory, for its report");
  app.add_flag("--force", f.force, "replace the file of --html that is there, whatever it is");
  app.add_flag("--no-verify", f.no_verify, kNoVerifyHelp);
  app.add_option("FILE | key=value", f.words, "more of --data; device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
}

// Files from key=value words: a file may have a name with = in it.
Placement take_words(AnalyzeFlags& f) {
  std::vector<std::string> keys;
  for (const std::string& word : f.words) (word.find('=') != word.npos && !is_there(word) ? keys : f.data).push_back(word);
  check_usage(!f.data.empty(), "expected --data FILE, a text for the model to read");
  return take_placement(keys, "auto");
}

// 1,5,8..12
std::vector<std::int64_t> parse_layers(const std::string& text) {
  std::set<std::int64_t> out;
  const auto number = [&](std::string_view word) {
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    check_usage(error == std::errc() && stop == word.data() + word.size() && n >= 1 && n <= 100000,
                "--layers takes numbers from 1 and ranges, as in 1,5,8..12; got {}", text);
    return n;
  };
  for (std::size_t at = 0; !text.empty() && at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    const std::size_t dots = part.find("..");
    const std::int64_t from = number(part.substr(0, dots)), to = dots == part.npos ? from : number(part.substr(dots + 2));
    check_usage(from <= to, "--layers: {}..{} runs backwards", from, to);
    for (std::int64_t l = from; l <= to; ++l) out.insert(l);
    at = end + 1;
  }
  return {out.begin(), out.end()};
}

struct Analyzed {
  fs::path folder;
  std::string name;                  // as it was given, or run/checkpoint-N
  std::optional<std::int64_t> step;  // of a run's checkpoint
};

std::optional<std::int64_t> step_of_folder(const fs::path& folder) {
  const std::string name = folder.filename().string();
  for (const std::int64_t step : checkpoint_steps(folder.parent_path()))
    if (name == checkpoint_folder(folder.parent_path(), step).filename()) return step;
  return std::nullopt;
}

std::vector<Analyzed> find_models(const AnalyzeFlags& f) {
  const Verify verify = f.no_verify ? Verify::no : Verify::yes;
  std::vector<Analyzed> out;
  for (const std::string& named : f.models) {
    const fs::path folder = fs::canonical(named_checkpoint(named, verify));  // a run's best one is a link
    out.push_back({folder, named, step_of_folder(folder)});
  }
  if (!f.checkpoints.empty()) {
    std::vector<std::int64_t> steps = checkpoint_steps(f.checkpoints);
    check_usage(!steps.empty(), "--checkpoints {}: no checkpoint-N folder there", f.checkpoints);
    std::reverse(steps.begin(), steps.end());
    for (const std::int64_t step : steps) {
      const fs::path folder = checkpoint_folder(f.checkpoints, step);
      out.push_back({fs::canonical(named_checkpoint(folder, verify)), folder.string(), step});
    }
  }
  check_usage(!out.empty(), "expected --model DIR, or --checkpoints RUN");
  return out;
}

// Rows as long as in training: what is known of the approximation holds there.
std::int64_t row_length(const AnalyzeFlags& f, const ModelConfig& c) {
  if (f.seq > 0) {
    check_usage(f.seq <= c.max_positions, "--seq-len {} is more than the {} tokens that the model reads at most", f.seq, c.max_positions);
    return f.seq;
  }
  return std::min({c.norm.seq_len > 0 ? c.norm.seq_len : kLongestRow, c.max_positions, kLongestRow});
}

AnalysisJson analyze_one(Context& ctx, const Analyzed& which, const AnalyzeFlags& f, DType type) {
  const auto model = load_model(ctx, which.folder, type);
  const ModelConfig& c = model->config();
  const std::int64_t seq = row_length(f, c);
  check_usage(f.tokens >= seq, "--tokens {} is less than one row of {}; --seq-len makes rows shorter", f.tokens, seq);
  const std::vector<TokenId> tokens = tokens_for(c, {.inputs = f.data, .key = f.key, .tokens = f.tokens / seq * seq + 1},
                                                 which.folder.string(), f.tokenizer, f.no_verify ? Verify::no : Verify::yes);
  const auto read = static_cast<double>(std::ssize(tokens));
  log::Progress progress("analyzed", read, "tokens");
  const analysis::Analysis a =
      analysis::analyze(ctx, *model, tokens,
                        {.layers = parse_layers(f.layers), .seq = seq, .progress = [&](double share) { progress.update(read * share); }});
  progress.finish(which.name);
  if (!f.json) {
    fmt::print(
        "{}  {}, {} layers of {}, {} parameters\nloss {:.4f} over {} tokens in rows of {}; left out and gradient: of the first {}\n\n",
        which.name, c.norm.method, c.layers, c.d, grouped(model->parameters().count()), a.loss, grouped(a.tokens), a.seq,
        grouped(a.batch_tokens));
    for (const std::string& line : analysis::tables(a)) fmt::print("{}\n", line);
    fmt::print("\n");
  }
  AnalysisJson out{{"model", which.name},
                   {"step", which.step ? AnalysisJson(*which.step) : AnalysisJson()},
                   {"run", which.step ? AnalysisJson(which.folder.parent_path().string()) : AnalysisJson()},
                   {"method", c.norm.method},
                   {"model_layers", c.layers},
                   {"d", c.d},
                   {"parameters", model->parameters().count()}};
  out.update(analysis::to_json(a, f.points));
  return out;
}

void write_file_whole(const std::string& path, const std::string& text) {
  OutputFile out(output_path(path));
  out.write(text.data(), text.size());
  out.commit();
}

// Beside the checkpoints that they are of: the newest analysis of a run is the one that its report shows.
void save_with_runs(const std::vector<Analyzed>& models, const AnalysisJson& found) {
  std::map<fs::path, AnalysisJson> runs;
  for (std::size_t i = 0; i < models.size(); ++i)
    if (models[i].step) {
      AnalysisJson& own = runs[models[i].folder.parent_path()];
      if (own.is_null()) own = {{"models", AnalysisJson::array()}};
      own["models"].push_back(found[i]);
    }
  for (const auto& [run, own] : runs) write_file_whole((run / report::kAnalysisFile).string(), own.dump(1) + "\n");
}

void check_flags(const AnalyzeFlags& f) {
  parse_layers(f.layers);
  if (!f.html.empty()) check_output_file(f.html, f.force || report::is_page(f.html));
  if (!f.svg.empty()) check_output_folder(f.svg);
}

}  // namespace

int cmd_analyze(const Args& args) {
  const Args rest(args.begin() + (args.empty() ? 0 : 1), args.end());
  if (!args.empty() && args[0] == "theory") return analyze_theory(rest);
  if (!args.empty() && args[0] == "toy") return analyze_toy(rest);
  if (!args.empty() && args[0] == "depth") return analyze_depth(rest);
  CLI::App app("What goes on inside models while they read a text, layer by layer", "bhyt analyze");
  app.footer("bhyt analyze theory | toy | depth: the paper's statements in numbers, the toy stack, variance over depth (each has --help)");
  AnalyzeFlags f;
  add_options(app, f);
  parse(app, args);
  const Placement where = take_words(f);
  check_flags(f);
  const std::vector<Analyzed> models = find_models(f);
  if (f.save)
    for (const Analyzed& s : models)
      check_usage(s.step.has_value(), "--save: {} is no checkpoint of a run, whose report could show the analysis", s.name);
  Context ctx(where.device, where.threads);
  AnalysisJson all{{"models", AnalysisJson::array()}};
  for (const Analyzed& s : models) all["models"].push_back(analyze_one(ctx, s, f, where.dtype));
  if (f.json) fmt::print("{}\n", all.dump(2, ' ', false, AnalysisJson::error_handler_t::replace));
  if (f.save) save_with_runs(models, all["models"]);
  for (const report::NamedSvg& figure : f.svg.empty() ? std::vector<report::NamedSvg>() : report::analysis_svgs(all))
    write_file_whole((fs::path(f.svg) / (figure.name + ".svg")).string(), figure.svg);
  if (!f.html.empty()) report::write_html(report::render_analysis(all), f.html);
  return 0;
}

}  // namespace bhyt::cli
