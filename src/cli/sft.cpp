// bhyt sft: fine-tunes a checkpoint on conversations. --dry-run shows what they come to, without a model.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/sft_preview.h"
#include "core/check.h"
#include "core/log.h"
#include "data/files.h"
#include "text/chat_template_yaml.h"
#include "text/chat_tokenizer.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

struct SftFlags {
  std::vector<std::string> words;
  std::string dump, save_tokenizer;
  bool dry_run = false, json = false, quiet = false;
};

// The part of a run's config that a dry run reads.
struct DataKeys {
  std::vector<std::string> train, valid;
  std::string tokenizer, chat_template = "llama3";
  ExampleOptions options;
};

std::vector<std::string> read_paths(const schema::Json& j, const std::string& key) {
  std::vector<std::string> paths;
  for (const schema::Json& entry : j.is_array() ? j : schema::Json::array({j})) {
    const schema::Json& path = entry.is_object() && entry.contains("path") ? entry["path"] : entry;
    if (!path.is_string()) schema::wrong(key, "a path, {path, weight}, or a list of these", entry);
    paths.push_back(path.get<std::string>());
  }
  return paths;
}

DataKeys read_data_keys(const SftFlags& flags) {
  std::string config;
  std::vector<std::string> overrides;
  for (const std::string& word : flags.words) {
    if (word.find('=') != std::string::npos) {
      overrides.push_back(word);
      continue;
    }
    check_usage(config.empty(), "expected one config, got {} and {} (overrides are written key=value)", config, word);
    config = word;
  }
  const schema::Json tree = train::config_tree(config, overrides), nothing = schema::Json::object();
  DataKeys keys;
  schema::Reader data(tree.contains("data") ? tree["data"] : nothing, "data");
  if (const schema::Json* j = data.take("train")) keys.train = read_paths(*j, "data.train");
  if (const schema::Json* j = data.take("valid")) keys.valid = read_paths(*j, "data.valid");
  data.text("tokenizer", keys.tokenizer, "");
  data.text("template", keys.chat_template, "");
  data.integer("seq_len", keys.options.seq_len, "", {.at_least = 1});
  data.boolean("mask_prompt", keys.options.mask_prompt, "");
  for (const char* of_training : {"packing", "shuffle", "attend", "calibrate"}) data.take(of_training);
  data.finish();
  if (keys.tokenizer == "auto") keys.tokenizer.clear();
  if (keys.tokenizer.empty() && tree.contains("model") && tree["model"].is_object() && tree["model"].contains("init"))
    keys.tokenizer = schema::Reader::as_text("model.init", tree["model"]["init"]);
  check_usage(!keys.train.empty(), "data.train names no file; see bhyt help sft");
  check_usage(!keys.tokenizer.empty(), "expected data.tokenizer ({}) or model.init, whose tokenizer is taken", kTokenizerHelp);
  for (const auto* paths : {&keys.train, &keys.valid})
    for (const std::string& path : *paths)
      check_usage(!path.ends_with(".safetensors"), "{} holds rows of tokens already: a dry run is for conversations", path);
  return keys;
}

// {"index": …, "input_ids": […], "labels": […]}, a line for each example; the file is there once all are.
class Dump {
 public:
  explicit Dump(const std::string& path) : file_(path) {}
  void add(const Example& e) {
    fmt::format_to(std::back_inserter(text_), "{{\"index\": {}, \"input_ids\": [{}], \"labels\": [{}]}}\n", e.index, fmt::join(e.ids, ", "),
                   fmt::join(e.labels, ", "));
    if (text_.size() > (1 << 20)) flush();
  }
  void commit() {
    flush();
    file_.commit();
  }

 private:
  void flush() {
    file_.write(text_.data(), text_.size());
    text_.clear();
  }
  OutputFile file_;
  fmt::memory_buffer text_;
};

void tell_of_growth(const ChatFormat& format) {
  std::string tokens;
  for (const SpecialToken& t : format.missing()) tokens += fmt::format("{}{} ({})", tokens.empty() ? "" : ", ", t.text, t.id);
  if (!tokens.empty())
    log::warning("template {} has tokens that this tokenizer lacks: its vocabulary grows by {}", format.row().name, tokens);
}

// Each file by itself, in order.
std::vector<Preview> look_at(Threads& threads, const std::vector<std::string>& files, const ChatFormat& format,
                             const ExampleOptions& options, Dump* dump) {
  std::vector<Preview> all;
  for (const std::string& file : files) {
    Samples samples;
    ExampleSummary summary = for_each_example(threads, file, format, options, [&](Example&& e) {
      if (dump) dump->add(e);
      samples.offer(e);
    });
    all.push_back({std::move(summary), samples.take()});
  }
  return all;
}

std::vector<std::uint64_t> fingerprints_of(const std::vector<Preview>& previews) {
  std::vector<std::uint64_t> all;
  for (const Preview& p : previews) all.insert(all.end(), p.summary.fingerprints.begin(), p.summary.fingerprints.end());
  return all;
}

int dry_run(const SftFlags& flags, const DataKeys& keys) {
  const ChatTemplate row = load_chat_template(keys.chat_template);
  const auto tokenizer = load_tokenizer(keys.tokenizer);
  const ChatFormat format(row, *tokenizer);
  tell_of_growth(format);
  const auto grown = chat_tokenizer(format);
  if (!flags.save_tokenizer.empty()) grown->save(flags.save_tokenizer);
  Threads threads;
  std::optional<Dump> dump;
  if (!flags.dump.empty()) dump.emplace(flags.dump);
  const std::vector<Preview> train = look_at(threads, keys.train, format, keys.options, dump ? &*dump : nullptr);
  const std::vector<Preview> valid = look_at(threads, keys.valid, format, keys.options, nullptr);
  if (dump) dump->commit();
  const std::int64_t shared = count_shared(fingerprints_of(valid), fingerprints_of(train));
  if (shared > 0) log::warning("{} examples of data.valid are examples of data.train, too", shared);
  if (flags.json) {
    schema::Json out{{"template", row.name}, {"tokens", grown->vocab_size()}, {"shared", shared}};
    for (const Preview& p : train) out["train"].push_back(preview_json(p.summary));
    for (const Preview& p : valid) out["valid"].push_back(preview_json(p.summary));
    fmt::print("{}\n", out.dump(-1, ' ', false, schema::Json::error_handler_t::replace));
    return 0;
  }
  const bool color = isatty(STDOUT_FILENO) == 1 && !std::getenv("NO_COLOR");
  for (const auto* previews : {&train, &valid})
    for (const Preview& p : *previews) fmt::print("{}\n", show_preview(p, keys.options, *grown, color));
  return 0;
}

}  // namespace

int cmd_sft(const Args& args) {
  CLI::App app("Fine-tune a checkpoint on conversations", "bhyt sft");
  SftFlags f;
  app.add_option("key=value", f.words,
                 "a config, and keys on top of it: data.train, data.valid (.json or .jsonl: alpaca, ShareGPT or OpenAI messages), "
                 "data.tokenizer, data.template (" +
                     chat_template_names() + " or a FILE.yaml), data.seq_len, data.mask_prompt");
  app.add_flag("--dry-run", f.dry_run, "show what the data comes to: counts, lengths, what is cut and dropped, three examples");
  app.add_option("--dump", f.dump, "with --dry-run, write every example of data.train as a line of JSON");
  app.add_option("--save-tokenizer", f.save_tokenizer,
                 "with --dry-run, write the tokenizer that a tuned model is saved with into this folder");
  app.add_flag("--json", f.json, "the outcome as one JSON object on stdout");
  app.add_flag("-q,--quiet", f.quiet, "no messages but warnings and errors");
  parse(app, args);
  log::set_quiet(f.quiet);
  check_usage((f.dump.empty() && f.save_tokenizer.empty()) || f.dry_run, "--dump and --save-tokenizer go with --dry-run");
  check_usage(f.dry_run, "expected --dry-run");
  return dry_run(f, read_data_keys(f));
}

}  // namespace bhyt::cli
