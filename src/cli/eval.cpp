// bhyt eval: benchmark tasks, as lm-evaluation-harness gives them.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/eval_output.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "data/files.h"
#include "eval/evaluate.h"
#include "eval/request_file.h"
#include "io/hash.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/kv_pages.h"
#include "text/chat_jinja.h"

namespace bhyt::cli {

namespace {

using EvalJson = nlohmann::ordered_json;

struct EvalFlags {
  std::vector<std::string> models, tasks;
  std::string data, samples, requests, tokenizer, chat_template, html;
  std::int64_t shots = 0, limit = 0, max_length = 0;
  std::vector<std::int64_t> seeds;
  bool no_verify = false, no_bos = false, chat = false, json = false, dry_run = false, force = false;
  RepackOption repack;
  std::vector<std::string> words;

  Verify verify() const { return no_verify ? Verify::no : Verify::yes; }
};

void add_options(CLI::App& app, EvalFlags& f) {
  app.add_option("--model", f.models, "checkpoint folder or run directory; several are compared, document by document, with the first")
      ->expected(1)
      ->take_all();
  app.add_option("--tasks", f.tasks,
                 "names, separated by commas: " + task_names() +
                     ", subjects and groups of mmlu (mmlu_anatomy, mmlu_stem), all,\npaper (its eight tasks with 3 shots and five seeds), "
                     "or a YAML file with a task of your own")
      ->delimiter(',');
  app.add_option("--data", f.data, "folder with the data sets: TASK/SPLIT.jsonl[.gz|.zst]");
  app.add_option("--shots", f.shots, "solved examples before each question")->capture_default_str()->check(between(0, 1000));
  app.add_option("--seed", f.seeds, "of the draw of examples; several, separated by commas, give mean and spread (default: 1234)")
      ->delimiter(',');
  app.add_option("--limit", f.limit, "the first N documents of each task (of each subject) only")->transform(count())->check(between(1));
  app.add_option("--samples", f.samples,
                 "JSONL file with a line for each document; one that is there is continued if it was made the same way");
  app.add_flag("--force", f.force, "start the file of --samples anew");
  app.add_option("--requests", f.requests, "score the pairs of a JSONL file instead of tasks: {\"context\": TEXT, \"continuation\": TEXT}");
  app.add_flag("--no-bos", f.no_bos, "put nothing before a text (otherwise what the tokenizer adds)");
  app.add_option("--max-length", f.max_length, "tokens that the model reads at most (default: its config's max_position_embeddings)")
      ->transform(count())
      ->check(between(1));
  app.add_flag("--chat", f.chat, "ask as a user in the tokenizer's chat template");
  app.add_option("--template", f.chat_template, "with --chat, the template where the tokenizer has none: " + chat_template_names());
  app.add_flag("--json", f.json, "print the results as JSON, in the harness's words");
  app.add_option("--html", f.html, "write the results as a page, too");
  app.add_flag("--dry-run", f.dry_run, "only say how much there is to do, and show three questions");
  app.add_option("--tokenizer", f.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_flag("--no-verify", f.no_verify, kNoVerifyHelp);
  f.repack.add_to(app);
  app.add_option("key=value", f.words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
}

// `paper` brings its own number of examples and seeds.
void settle(EvalFlags& f, const CLI::App& app) {
  const bool paper = std::find(f.tasks.begin(), f.tasks.end(), "paper") != f.tasks.end();
  if (paper && !app.count("--shots")) f.shots = kPaperShots;
  if (f.seeds.empty()) {
    if (paper)
      f.seeds.assign(std::begin(kPaperSeeds), std::end(kPaperSeeds));
    else
      f.seeds = {1234};
  }
  for (std::size_t i = 0; i < f.seeds.size(); ++i)
    check_usage(std::find(f.seeds.begin(), f.seeds.begin() + static_cast<std::ptrdiff_t>(i), f.seeds[i]) ==
                    f.seeds.begin() + static_cast<std::ptrdiff_t>(i),
                "--seed has {} twice", f.seeds[i]);
  f.repack.how();
  check_usage(f.requests.empty() != f.tasks.empty(), "expected --tasks NAMES or --requests FILE{}",
              f.tasks.empty() ? "" : ", and got both; see bhyt eval --help");
  check_usage(!f.models.empty() || f.dry_run, "--model is required: a checkpoint folder or a run directory");
  check_usage(f.chat || f.chat_template.empty(), "--template goes with --chat");
  check_usage(f.requests.empty() || (!f.chat && !f.dry_run && f.html.empty() && f.models.size() == 1),
              "--requests goes with one --model and without --chat, --dry-run and --html");
  if (!f.html.empty()) check_output_file(f.html, f.force);
}

// Changes when the weights of a checkpoint do.
std::string identity_of(const std::filesystem::path& checkpoint) {
  Hash64 hash;
  if (const auto manifest = checkpoint / kManifest; std::filesystem::exists(manifest)) {
    hash.update(read_text(manifest));
  } else {
    const WeightFiles files(checkpoint);
    hash.update(read_text(checkpoint / "config.json"));
    for (const auto& file : files.files()) {
      hash.update(file->path().filename().string());
      hash.add(hash_file(file->path()));
    }
  }
  return fmt::format("{:016x}", hash.digest());
}

// A checkpoint that is ready to be asked.
class Subject {
 public:
  Subject(const EvalFlags& f, const std::string& named) : flags_(f), checkpoint_(named_checkpoint(named, f.verify())) {
    config_ = read_model_config(checkpoint_ / "config.json");
    tokenizer_ = open_tokenizer(checkpoint_.string(), f.tokenizer, config_.vocab, f.verify());
    if (!f.chat) return;
    const std::string at = f.tokenizer.empty() ? checkpoint_.string() : f.tokenizer;
    std::optional<ChatTemplate> row;
    if (!f.chat_template.empty())
      row = find_chat_template(f.chat_template);
    else
      row = own_chat_template(at, *tokenizer_);
    check_usage(row.has_value(), "--chat: the tokenizer of {} has no chat template; --template NAME chooses one of {}", named,
                chat_template_names());
    chat_.emplace(*row, *tokenizer_);
  }

  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  const ModelConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatFormat* chat() const { return chat_ ? &*chat_ : nullptr; }
  Reading reading() const { return {.length = flags_.max_length > 0 ? flags_.max_length : config_.max_positions, .bos = !flags_.no_bos}; }

 private:
  const EvalFlags& flags_;
  std::filesystem::path checkpoint_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_;
};

// What a file of samples was made with.
EvalJson settings_of(const EvalFlags& f, const Subject& subject, const Placement& where) {
  return {{"model", subject.checkpoint().lexically_normal().string()},
          {"weights", identity_of(subject.checkpoint())},
          {"tokenizer", fmt::format("{:016x}", subject.tokenizer().fingerprint())},
          {"tasks", f.tasks},
          {"requests", f.requests},
          {"shots", f.shots},
          {"seeds", f.seeds},
          {"limit", f.limit},
          {"bos", !f.no_bos},
          {"max_length", subject.reading().length},
          {"chat", subject.chat() ? subject.chat()->row().name : ""},
          {"dtype", name_of(where.dtype)},
          {"repack", f.repack.weights}};
}

// The engine for a subject, its model and its memory.
struct Running {
  Running(const EvalFlags& f, const Subject& subject, const Placement& where)
      : context(where.device, where.threads),
        model(load_model(context, subject.checkpoint(), where.dtype, f.repack.how())),
        engine(context, *model, {.length = subject.reading().length + 1, .interrupted = [] { return StopSignals::received() != 0; }}) {}

  Context context;
  std::unique_ptr<Model> model;
  Engine engine;
};

struct Outcome {
  std::vector<ScoredModel> models;
  bool whole = true;  // not interrupted
};

// The last part of a model's path where that tells it from the others.
std::string short_name(const EvalFlags& f, const std::string& model) {
  const auto last = [](const std::string& path) {
    const std::filesystem::path p = std::filesystem::path(path + "/").lexically_normal().parent_path();
    return p.filename().string();
  };
  const auto same = std::count_if(f.models.begin(), f.models.end(), [&](const std::string& m) { return last(m) == last(model); });
  return same == 1 && !last(model).empty() ? last(model) : model;
}

std::string samples_file(const EvalFlags& f, const std::string& model) {
  if (f.models.size() == 1) return f.samples;
  std::string name = short_name(f, model);
  std::replace(name.begin(), name.end(), '/', '_');
  return samples_of_model(f.samples, name).string();
}

// One model through all tasks. What --samples holds already needs no model: it is loaded when the first question is open.
bool evaluate_model(const EvalFlags& f, const std::string& named, const Evaluation& evaluation, const Placement& where, Outcome& out) {
  const Subject subject(f, named);
  std::unique_ptr<SampleFile> samples;
  if (!f.samples.empty())
    samples = std::make_unique<SampleFile>(samples_file(f, named), settings_of(f, subject, where), evaluation.documents(),
                                           f.seeds.size() > 1, f.force);
  std::optional<Running> running;
  const auto engine = [&]() -> Engine& {
    if (!running) running.emplace(f, subject, where);
    return running->engine;
  };
  log::Progress progress(short_name(f, named), static_cast<double>(evaluation.documents()), "documents");
  double count = 0;
  ScoredModel result{.name = short_name(f, named), .documents = {}};
  const bool whole = evaluation.run(
      {engine, subject.tokenizer(), subject.reading(), subject.chat()}, samples.get(),
      [&](const std::string& task) { progress.update(++count, task); }, result.documents);
  if (!whole) return false;
  const EngineCounters c = running ? running->engine.counters() : EngineCounters{};
  progress.finish(fmt::format("{} tokens computed, {} shared", log::human_count(static_cast<double>(c.computed_tokens)),
                              log::human_count(static_cast<double>(c.shared_tokens))));
  out.models.push_back(std::move(result));
  return true;
}

int stopped(const EvalFlags& f) {
  log::info("stopped{}", f.samples.empty() ? ": --samples FILE would let the next run go on from here"
                                           : fmt::format("; the same command goes on from {}", f.samples));
  return 128 + StopSignals::received();
}

int evaluate(const EvalFlags& f, const Placement& where) {
  const Evaluation evaluation({.selection = resolve_tasks(f.tasks), .data = f.data, .shots = f.shots, .seeds = f.seeds, .limit = f.limit});
  if (f.dry_run) {
    std::optional<Subject> subject;
    if (!f.models.empty()) subject.emplace(f, f.models.front());
    show_plan(evaluation, subject ? &subject->tokenizer() : nullptr, subject ? subject->reading() : Reading{},
              subject ? subject->chat() : nullptr);
    return 0;
  }
  const StopSignals signals("\n", StopSignals::Second::quits);
  Outcome out;
  for (const std::string& model : f.models)
    if (!evaluate_model(f, model, evaluation, where, out)) return stopped(f);
  print_results(evaluation, out.models, f.json, f.html);
  return 0;
}

int score_requests(const EvalFlags& f, const Placement& where) {
  const std::vector<Question> requests = read_requests(f.requests);
  const Subject subject(f, f.models.front());
  std::unique_ptr<SampleFile> samples;
  if (!f.samples.empty())
    samples = std::make_unique<SampleFile>(f.samples, settings_of(f, subject, where), std::ssize(requests), false, f.force);
  std::vector<Likelihood> all;
  while (samples && all.size() < requests.size()) {
    const std::optional<Likelihood> known = samples->next_request();
    if (!known) break;
    all.push_back(*known);
  }
  const StopSignals signals("\n", StopSignals::Second::quits);
  std::optional<Running> running;
  const auto engine = [&]() -> Engine& { return running.emplace(f, subject, where).engine; };
  log::Progress progress(f.requests, static_cast<double>(requests.size()), "requests");
  const bool whole = score_questions({engine, subject.tokenizer(), subject.reading(), nullptr}, std::span(requests).subspan(all.size()),
                                     [&](std::size_t, std::vector<Likelihood> likelihoods) {
                                       all.push_back(likelihoods.front());
                                       if (samples) samples->add_request(all.back());
                                       progress.update(static_cast<double>(all.size()));
                                     });
  if (!whole) return stopped(f);
  progress.finish();
  print_requests(all, f.json, !f.samples.empty());
  return 0;
}

}  // namespace

int cmd_eval(const Args& args) {
  CLI::App app("Benchmark tasks, document by document as lm-evaluation-harness gives them", "bhyt eval");
  EvalFlags f;
  add_options(app, f);
  parse(app, args);
  settle(f, app);
  const Placement where = take_placement(f.words, "auto");
  return f.requests.empty() ? evaluate(f, where) : score_requests(f, where);
}

}  // namespace bhyt::cli
