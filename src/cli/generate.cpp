// bhyt generate: continue a prompt.
#include "generate/generate.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "model/checkpoint.h"
#include "text/tokenizer.h"

namespace bhyt::cli {

namespace {

struct Options {
  ModelOption model;
  std::string checkpoint;  // what model stands for
  std::string tokenizer, prompt, prompt_file;
  bool ids = false, ignore_eos = false, json = false;
  GenerateOptions generate;
  std::vector<std::string> words;
};

std::string read_all(std::istream& in) { return {std::istreambuf_iterator<char>(in), {}}; }

std::string read_prompt(const CLI::App& app, const Options& o) {
  if (app.count("--prompt")) return o.prompt;
  if (!app.count("--prompt-file")) return read_all(std::cin);
  std::ifstream in(o.prompt_file, std::ios::binary);
  std::error_code ignored;
  check(in.good() && !std::filesystem::is_directory(o.prompt_file, ignored), "cannot read {}: expected a file with the text to continue",
        o.prompt_file);
  return read_all(in);
}

// "5 17 3", "5,17,3" or "[5, 17, 3]".
std::vector<TokenId> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  std::size_t at = 0;
  while ((at = text.find_first_not_of(" \t\r\n,[]", at)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of(" \t\r\n,[]", at), text.size());
    TokenId id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    check_usage(error == std::errc() && stop == text.data() + end && id >= 0, "a prompt of ids holds numbers from 0, got {}",
                text.substr(at, end - at));
    ids.push_back(id);
    at = end;
  }
  return ids;
}

void print_json(const Generated& g, std::size_t prompt_tokens, const std::optional<std::string>& text) {
  nlohmann::ordered_json j{{"prompt_tokens", prompt_tokens}, {"ids", g.ids}};
  if (text) j["text"] = *text;
  j["finish_reason"] = g.stopped ? "stop" : "length";
  j["prompt_seconds"] = g.prompt_seconds;
  j["decode_seconds"] = g.decode_seconds;
  fmt::print("{}\n", j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void run_ids(Context& ctx, const Model& model, const std::string& prompt, const Options& o) {
  const std::vector<TokenId> ids = parse_ids(prompt);
  const Generated g = generate(ctx, model, ids, o.generate);
  if (o.json) return print_json(g, ids.size(), std::nullopt);
  fmt::print("{}\n", nlohmann::json(g.ids).dump());
}

void run_text(Context& ctx, const Model& model, const std::string& prompt, Options o) {
  const auto tokenizer = open_tokenizer(o.checkpoint, o.tokenizer, model.config().vocab, ", and --ids takes and gives token ids without");
  std::vector<TokenId> ids = tokenizer->encode(prompt);
  if (ids.empty()) {
    // Nothing to continue: start a document.
    const auto start = tokenizer->bos() ? tokenizer->bos() : tokenizer->end_of_text();
    check_usage(start.has_value(), "the prompt is empty and the tokenizer has no token that starts a text");
    ids.push_back(*start);
  }
  if (!o.ignore_eos) {
    o.generate.stops = tokenizer->stops();
    for (std::int64_t id : model.config().eos) o.generate.stops.push_back(static_cast<TokenId>(id));
  }
  const auto beyond = [&](TokenId id) { return id >= tokenizer->vocab_size(); };  // a row of a padded model: it stands for no text
  Utf8Stream stream;
  const auto show = [&](TokenId id) {
    fmt::print("{}", stream.push(beyond(id) ? "" : tokenizer->piece(id, false)));
    return std::fflush(stdout) == 0;  // nobody reads any more: stop
  };
  const Generated g = o.json ? generate(ctx, model, ids, o.generate) : generate(ctx, model, ids, o.generate, show);
  std::vector<TokenId> with_text = g.ids;
  const auto lost = std::erase_if(with_text, beyond);
  if (o.json)
    print_json(g, ids.size(), tokenizer->decode(with_text));
  else
    fmt::print("{}\n", stream.rest());
  if (lost > 0)
    log::warning("{} of {} new tokens have no text: their ids are not below {}, the tokenizer's vocabulary", lost, g.ids.size(),
                 tokenizer->vocab_size());
  if (!o.json && log::stderr_is_terminal())
    log::info("{} prompt tokens in {:.2f} s, {} new at {:.1f} tok/s", ids.size(), g.prompt_seconds, g.ids.size(),
              static_cast<double>(g.ids.size()) / std::max(g.decode_seconds, 1e-9));
}

}  // namespace

int cmd_generate(const Args& args) {
  CLI::App app("Continue a prompt with a checkpoint", "bhyt generate");
  Options o;
  o.generate.max_tokens = 128;
  o.model.add_to(app);
  auto* prompt = app.add_option("--prompt", o.prompt, "the text to continue (otherwise --prompt-file or stdin)");
  app.add_option("--prompt-file", o.prompt_file, "a file with the text to continue")->excludes(prompt);
  app.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_flag("--ids", o.ids, "the prompt is token ids (\"5 17 3\" or \"5,17,3\"); prints only the new ids, as one JSON array");
  app.add_option("--max-tokens", o.generate.max_tokens, "how many new tokens at most")->capture_default_str()->transform(count());
  add_sampling(app, o.generate.sampler);
  app.add_flag("--ignore-eos", o.ignore_eos, "go on after the end-of-text token");
  app.add_flag("--json", o.json, "one JSON object: ids, text, finish_reason, times");
  app.add_option("key=value", o.words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
  parse(app, args);
  const Placement where = take_placement(o.words, "auto");
  Context ctx(where.device, where.threads);
  o.checkpoint = o.model.find().string();
  const auto model = load_model(ctx, o.checkpoint, where.dtype);
  const std::string text = read_prompt(app, o);
  if (o.ids)
    run_ids(ctx, *model, text, o);
  else
    run_text(ctx, *model, text, o);
  return 0;
}

}  // namespace bhyt::cli
