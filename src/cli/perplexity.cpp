// bhyt perplexity: how well a checkpoint predicts texts, token by token.
#include "eval/perplexity.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "data/files.h"
#include "data/input.h"
#include "io/format.h"
#include "model/kv_pages.h"

namespace bhyt::cli {

namespace {

using PerplexityJson = nlohmann::ordered_json;

struct PerplexityFlags {
  ModelOption model;
  RepackOption repack;
  PerplexityOptions what;
  std::string mode = "windows", tokenizer, samples;
  std::int64_t max_length = 0;
  bool no_bos = false, json = false, force = false;
  std::vector<std::string> words;
};

void add_options(CLI::App& app, PerplexityFlags& f) {
  f.model.add_to(app);
  app.add_option("--mode", f.mode, "windows: each text by itself; packed: all joined, end-of-text behind each, and cut into blocks")
      ->capture_default_str();
  app.add_option("--window", f.what.window, "tokens of a window or block (default: the model's longest)")->transform(count());
  app.add_option("--stride", f.what.stride, "tokens from window to window; less than --window gives each more context (default: --window)")
      ->transform(count());
  app.add_flag("--no-bos", f.no_bos, "put nothing before a text (otherwise what the tokenizer adds)");
  app.add_option("--max-length", f.max_length, "tokens that the model reads at most (default: its config's max_position_embeddings)")
      ->transform(count())
      ->check(between(1));
  app.add_option("--limit", f.what.limit, "the first N texts only")->transform(count())->check(between(1));
  app.add_option("--key", f.what.key, "key of the text in JSONL objects")->capture_default_str();
  app.add_option("--samples", f.samples, "JSONL file to write: a line for each text, with --mode packed for each block");
  app.add_flag("--force", f.force, "replace the file of --samples that is there");
  app.add_flag("--json", f.json, "print the result as JSON");
  app.add_option("--tokenizer", f.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  f.repack.add_to(app);
  f.repack.add_load_to(app);
  app.add_option("FILE | key=value", f.words,
                 "texts: a .txt is one, each line of .jsonl or .ndjson is one, plain or with .gz or .zst; folders, globs;\n"
                 "keys: device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
}

// Files from key=value words: a file may have a name with = in it.
Placement take_words(PerplexityFlags& f) {
  std::vector<std::string> keys;
  for (const std::string& word : f.words) (word.find('=') != word.npos && !is_there(word) ? keys : f.what.inputs).push_back(word);
  return take_placement(keys, "auto");
}

// What is known before the model is: mistakes should not wait for it.
void check_flags(const PerplexityFlags& f) {
  f.repack.how();
  f.repack.loading();
  check_usage(f.mode == "windows" || f.mode == "packed", "--mode takes windows or packed, got {}", f.mode);
  check_usage(!f.what.inputs.empty(), "expected files with texts: a .txt is one text, each line of a .jsonl is one");
  const std::vector<InputFile> files = find_inputs(f.what.inputs);
  if (f.samples.empty()) return;
  std::error_code ignored;
  for (const InputFile& file : files)
    check_usage(!std::filesystem::equivalent(f.samples, file.path, ignored), "--samples {} is an input: writing to it would destroy it",
                f.samples);
  check_output_file(f.samples, f.force);
}

// Fills in what the model and the flags leave open.
void settle(PerplexityFlags& f, const CLI::App& app, const ModelConfig& config) {
  const std::int64_t longest = f.max_length > 0 ? f.max_length : config.max_positions;
  if (!app.count("--window")) f.what.window = longest;
  if (!app.count("--stride")) f.what.stride = f.what.window;
  f.what.mode = f.mode == "packed" ? PerplexityMode::packed : PerplexityMode::windows;
  f.what.bos = !f.no_bos;
  check_perplexity(f.what);
  check_usage(f.what.window <= longest, "--window {} is more than the {} tokens that {}", f.what.window, longest,
              f.max_length > 0 ? "--max-length allows" : "the model reads at most; --max-length N lets it read more");
}

// Windows come and go in order: those of two steps, and one that each of them may cut, are as many as there ever are.
std::int64_t pages_for(const Model& model, std::int64_t window) {
  constexpr std::int64_t kStep = 2048, kSequences = 256;
  const std::int64_t windows = std::min(kSequences, 2 * kStep / window + 3);
  return std::min(affordable_pages(model), windows * KvPages::pages_for(window));
}

// A checkpoint that is ready to be asked.
struct PerplexityModel {
  PerplexityModel(PerplexityFlags& f, const CLI::App& app, const Placement& where)
      : context(where.device, where.threads), checkpoint(f.model.find()), adapter(f.model.find_adapter()) {
    model = load_with_adapter(context, checkpoint, adapter, where.dtype, f.repack.how(), f.repack.loading());
    settle(f, app, model->config());
    tokenizer = open_tokenizer(tokenizer_home(checkpoint, adapter), f.tokenizer, model->config().vocab, f.model.verify());
    engine.emplace(context, *model,
                   EngineOptions{.pages = pages_for(*model, f.what.window), .interrupted = [] { return StopSignals::received() != 0; }});
  }

  Context context;
  std::filesystem::path checkpoint, adapter;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<Engine> engine;
};

// What all ranks must have alike.
PerplexityJson facts_of(const PerplexityFlags& f, const PerplexityModel& m, const Placement& where) {
  PerplexityJson files = PerplexityJson::array();
  for (const InputFile& file : find_inputs(f.what.inputs)) files.push_back(fmt::format("{} ({} bytes)", file.path, file.bytes));
  return {{"model", m.checkpoint.string()},
          {"weights", identity_of(m.checkpoint, m.adapter)},
          {"tokenizer", fmt::format("{:016x}", m.tokenizer->fingerprint())},
          {"files", files},
          {"kind of device", where.device.is_cuda() ? "cuda" : "cpu"},
          {"dtype", name_of(where.dtype)},
          {"mode", f.mode},
          {"window", f.what.window},
          {"stride", f.what.stride},
          {"bos", f.what.bos},
          {"limit", f.what.limit},
          {"key", f.what.key}};
}

PerplexityJson or_null(const std::optional<double>& x) { return x ? PerplexityJson(*x) : PerplexityJson(nullptr); }

void put_costs(PerplexityJson& j, const TokenCosts& c) {
  const bool any = c.scored > 0;
  j["scored"] = c.scored;
  j["windows"] = c.windows;
  j["nll"] = or_null(any ? std::optional(c.nll()) : std::nullopt);
  j["nll_stderr"] = or_null(c.nll_stderr());
  j["ppl"] = or_null(any ? std::optional(c.ppl()) : std::nullopt);
  j["ppl_stderr"] = or_null(c.ppl_stderr());
  j["bytes"] = c.bytes;
  j["bits_per_byte"] = or_null(c.bits_per_byte());
}

std::string sample_line(const ScoredText& text) {
  PerplexityJson j{{text.file.empty() ? "block" : "doc_id", text.number}};
  if (!text.file.empty()) j.update({{"file", text.file}, {"line", text.line}});
  j["tokens"] = text.tokens;
  put_costs(j, text.costs);
  return j.dump(-1, ' ', false, PerplexityJson::error_handler_t::replace) + "\n";
}

void print(const PerplexityFlags& f, const Perplexity& r) {
  const TokenCosts& c = r.costs;
  if (f.json) {
    PerplexityJson j{{"documents", r.documents}, {"tokens", r.tokens}};
    put_costs(j, c);
    j.update({{"mode", f.mode}, {"window", f.what.window}, {"stride", f.what.stride}, {"bos", f.what.bos && f.mode != "packed"}});
    fmt::print("{}\n", j.dump(2));
    return;
  }
  const auto error = [](const std::optional<double>& e) { return e ? fmt::format(" ± {:.2g}", *e) : ""; };
  fmt::print("{} texts, {} tokens, of which {} are scored in {} {} of {}\n", grouped(r.documents), grouped(r.tokens), grouped(c.scored),
             grouped(c.windows), f.mode == "packed" ? "blocks" : "windows", grouped(f.what.window));
  fmt::print("ppl  {:.4f}{}\n", c.ppl(), error(c.ppl_stderr()));
  fmt::print("nll  {:.6f}{} nats per token{}\n", c.nll(), error(c.nll_stderr()),
             c.bits_per_byte() ? fmt::format(", {:.4f} bits per byte", *c.bits_per_byte()) : "");
}

// The exit code.
int interrupted(const Perplexity& r, int signal) {
  const std::string ppl = r.costs.scored > 0 ? fmt::format(": ppl {:.4f} so far", r.costs.ppl()) : "";
  log::info("interrupted after {} scored tokens{}; no result is printed or written", grouped(r.costs.scored), ppl);
  return 128 + signal;
}

}  // namespace

int cmd_perplexity(const Args& args) {
  CLI::App app("How well a checkpoint predicts texts, token by token", "bhyt perplexity");
  PerplexityFlags f;
  add_options(app, f);
  app.footer("Several processes share the windows out: mpirun -n 8 bhyt perplexity ..., one for each GPU of a machine (docs/scaling.md).");
  parse(app, args);
  const Ranks ranks;
  Placement where;
  std::optional<PerplexityModel> m;
  std::optional<OutputFile> samples;
  PerplexityJson facts;
  ranks.together([&] {
    where = take_words(f);
    check_flags(f);
  });
  ranks.share(where);
  ranks.together([&] {
    m.emplace(f, app, where);
    if (ranks.group) facts = facts_of(f, *m, where);
  });
  ranks.agree(facts);
  ranks.together([&] {
    if (!f.samples.empty() && ranks.first()) samples.emplace(output_path(f.samples));
  });
  const StopSignals signals("\n", StopSignals::Second::quits);
  f.what.ranks = Sharing::over(ranks.group, where.device);
  const Perplexity r = score_files(*m->engine, *m->tokenizer, f.what, [&](const ScoredText& text) {
    if (!samples) return;
    const std::string line = sample_line(text);
    samples->write(line.data(), line.size());
  });
  if (r.interrupted) return interrupted(r, ranks.signal());
  if (samples) samples->commit();
  if (ranks.first()) print(f, r);
  return 0;
}

}  // namespace bhyt::cli
