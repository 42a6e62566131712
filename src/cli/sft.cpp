// bhyt sft: fine-tunes a checkpoint on conversations. --dry-run shows what they come to, without a model.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/sft_preview.h"
#include "cli/tokenizer_train.h"
#include "cli/training.h"
#include "core/check.h"
#include "core/log.h"
#include "data/example_summary.h"
#include "data/files.h"
#include "eval/task.h"
#include "text/chat_tokenizer.h"
#include "train/chat_data.h"

namespace bhyt::cli {

namespace {

struct SftFlags {
  bool dry_run = false;
  std::string dump, save_tokenizer, seed_list;
  std::vector<std::int64_t> seeds;
};

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

// Before any work: what is written must not be there already, unless --force, and never be what is read.
void check_outputs(const SftFlags& flags, const TrainingWords& words, const train::RunConfig& config) {
  const train::DataSection& data = config.data;
  if (!flags.save_tokenizer.empty()) check_tokenizer_out(flags.save_tokenizer, words.force, "--save-tokenizer");
  if (flags.dump.empty()) return;
  std::vector<std::string> inputs{words.config, data.chat->chat_template};
  const std::string& tokenizer = data.tokenizer == "auto" ? config.model.init : data.tokenizer;
  for (const char* name : kTokenizerFiles)
    if (tokenizer != "bytes") inputs.push_back((tokenizer_folder(tokenizer, Verify::no) / name).string());
  for (const auto* entries : {&data.train, &data.valid})
    for (const train::DataEntry& e : *entries) inputs.push_back(e.path);
  std::error_code ignored;
  for (const std::string& input : inputs)
    check_usage(!std::filesystem::equivalent(input, flags.dump, ignored), "--dump {} is an input: writing to it would destroy it",
                flags.dump);
  check_output_file(flags.dump, words.force, "--dump");
}

// What the data comes to; no model is needed.
int dry_run(const SftFlags& flags, const TrainingWords& words) {
  train::RunConfig config = read_config(words);
  const auto data = train::open_chat_data(config.data, config.model.init);
  check_usage(data->format != nullptr, "{} holds rows of tokens already: a dry run is for conversations", config.data.train.front().path);
  check_outputs(flags, words, config);
  train::check_lora_init(config.lora.init);
  const ChatFormat& format = *data->format;
  const ExampleOptions options{.seq_len = config.data.seq_len, .mask_prompt = config.data.chat->mask_prompt};
  const auto paths = [](const std::vector<train::DataEntry>& entries) {
    std::vector<std::string> out;
    for (const train::DataEntry& e : entries)
      if (!e.path.ends_with(".safetensors")) out.push_back(e.path);  // rows that are prepared show nothing new
    return out;
  };
  tell_of_growth(format);
  const auto grown = chat_tokenizer(format);
  Threads threads;
  std::optional<Dump> dump;
  if (!flags.dump.empty()) dump.emplace(flags.dump);
  const std::vector<Preview> train = look_at(threads, paths(config.data.train), format, options, dump ? &*dump : nullptr);
  const std::vector<Preview> valid = look_at(threads, paths(config.data.valid), format, options, nullptr);
  if (dump) dump->commit();
  if (!flags.save_tokenizer.empty()) save_tokenizer(*grown, flags.save_tokenizer);
  const std::int64_t shared = count_shared(fingerprints_of(valid), fingerprints_of(train));
  if (shared > 0) log::warning("{} examples of data.valid are examples of data.train, too", shared);
  if (words.json) {
    schema::Json out{{"template", format.row().name}, {"tokens", grown->vocab_size()}, {"shared", shared}};
    for (const Preview& p : train) out["train"].push_back(summary_json(p.summary));
    for (const Preview& p : valid) out["valid"].push_back(summary_json(p.summary));
    fmt::print("{}\n", out.dump(-1, ' ', false, schema::Json::error_handler_t::replace));
    return 0;
  }
  const bool color = isatty(STDOUT_FILENO) == 1 && !std::getenv("NO_COLOR");
  for (const auto* previews : {&train, &valid})
    for (const Preview& p : *previews) fmt::print("{}\n", show_preview(p, options, *grown, color));
  return 0;
}

void print_help() {
  fmt::print(
      "usage: bhyt sft [CONFIG.yaml] [key=value ...] [--seeds LIST] [--force] [--no-verify] [--json] [--quiet]\n"
      "       bhyt sft --dry-run data.train=FILE data.tokenizer=DIR [key=value ...] [--dump OUT.jsonl] [--save-tokenizer DIR]\n"
      "       bhyt sft run.dir=RUN resume=auto      goes on with a run, by the config that it has\n\n"
      "Fine-tunes the checkpoint model.init on conversations, all of it or adapters (lora.rank), and writes a run directory.\n\n"
      "  --dry-run     show what the data comes to: counts, lengths, what is cut and dropped, three examples; needs no model\n"
      "  --dump FILE   with --dry-run: every example of data.train as a line of JSON (index, input_ids, labels)\n"
      "  --save-tokenizer DIR   with --dry-run: the tokenizer that a tuned model is saved with\n"
      "                (what is there already is replaced with --force)\n"
      "  --seeds LIST  a run for each of these seeds (0,1,2), in run.dir/seed-N; those that are done are left alone, unless\n"
      "                resume=restart\n{}\n{}"
      "Templates: {}, or a YAML file.\n\n",
      kSharedFlags, kKeyNotes, chat_template_names());
  print_keys(train::Work::fine_tuning);
}

int train_once(const TrainingWords& w, train::Json& result) {
  train::Trainer trainer(read_config(w), {.force = w.force});
  const train::Outcome out = trainer.run();
  result = outcome_json(trainer.config(), out);
  return out.signal ? 128 + out.signal : 0;
}

std::vector<std::int64_t> read_seeds(const std::string& list) {
  std::vector<std::int64_t> seeds;
  for (const std::string& word : split_names(list)) {
    std::int64_t seed = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seed);
    check_usage(error == std::errc() && end == word.data() + word.size() && seed >= 0, "--seeds expects whole numbers, got {}", word);
    check_usage(std::ranges::find(seeds, seed) == seeds.end(), "--seeds has {} twice", seed);
    seeds.push_back(seed);
  }
  check_usage(list.empty() || !seeds.empty(), "--seeds expects whole numbers, got {}", list);
  return seeds;
}

// One run after the other; at the end the mean of what was selected, and its spread.
int train_seeds(const TrainingWords& w, const std::vector<std::int64_t>& seeds) {
  const train::RunSection run = read_config(w).run;
  // Seeds that are done are left alone, unless all of them are to begin again.
  const char* resume = run.resume == train::Resume::restart ? "restart" : run.resume == train::Resume::must ? "must" : "auto";
  train::Json results = train::Json::array();
  std::vector<double> losses;
  for (const std::int64_t seed : seeds) {
    TrainingWords one = w;
    one.overrides.push_back(fmt::format("run.seed={}", seed));
    one.overrides.push_back(fmt::format("run.dir={}/seed-{}", run.dir, seed));
    one.overrides.push_back(fmt::format("run.resume={}", resume));
    log::info("seed {}", seed);
    if (const int code = train_once(one, results.emplace_back())) return code;
    results.back()["seed"] = seed;
    if (results.back().contains("best")) losses.push_back(results.back()["best"]["valid_loss"]);
  }
  if (losses.size() > 1) {
    const auto n = static_cast<double>(losses.size());
    double mean = 0, squares = 0;
    for (const double l : losses) mean += l / n;
    for (const double l : losses) squares += (l - mean) * (l - mean);
    log::info("{} seeds  lowest validation loss {:.4f} ± {:.4f} (standard deviation)", losses.size(), mean, std::sqrt(squares / (n - 1)));
  }
  if (w.json) fmt::print("{}\n", results.dump());
  return 0;
}

}  // namespace

int cmd_sft(const Args& args) {
  SftFlags f;
  TrainingWords w;
  on_ranks([&] {
    w = parse_training(args, "sft", train::Work::fine_tuning,
                       {{"--dry-run", &f.dry_run},
                        {"--dump", nullptr, &f.dump},
                        {"--save-tokenizer", nullptr, &f.save_tokenizer},
                        {"--seeds", nullptr, &f.seed_list}});
    if (w.help) return;
    check_usage((f.dump.empty() && f.save_tokenizer.empty()) || f.dry_run, "--dump and --save-tokenizer go with --dry-run");
    check_usage(f.seed_list.empty() || !f.dry_run, "--seeds does not go with --dry-run");
    f.seeds = read_seeds(f.seed_list);
  });
  if (w.help) {
    print_help();
    return 0;
  }
  log::set_quiet(w.quiet);
  if (f.dry_run) return dry_run(f, w);
  if (!f.seeds.empty()) return train_seeds(w, f.seeds);
  train::Json result;
  const int code = train_once(w, result);
  if (w.json) fmt::print("{}\n", result.dump());
  return code;
}

}  // namespace bhyt::cli
