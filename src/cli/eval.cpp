// bhyt eval: benchmark tasks, as lm-evaluation-harness gives them.
#include <CLI/CLI.hpp>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/eval_output.h"
#include "cli/ranks.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "data/files.h"
#include "eval/evaluate.h"
#include "eval/request_file.h"
#include "io/hash.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/kv_pages.h"
#include "text/chat_jinja.h"
#include "text/chat_template_yaml.h"

namespace bhyt::cli {

namespace {

using EvalJson = nlohmann::ordered_json;

struct EvalFlags {
  std::vector<std::string> models, adapters, tasks;
  std::string task_list, seed_list, data, samples, requests, tokenizer, chat_template, html;
  std::int64_t shots = 0, limit = 0, max_length = 0;
  std::vector<std::int64_t> seeds;
  bool no_verify = false, no_bos = false, chat = false, json = false, dry_run = false, force = false;
  RepackOption repack;
  std::vector<std::string> words;

  Verify verify() const { return no_verify ? Verify::no : Verify::yes; }
  std::string adapter_of(std::size_t i) const { return adapters.empty() || adapters[i] == "-" ? "" : adapters[i]; }
};

void add_options(CLI::App& app, EvalFlags& f) {
  app.add_option("--model", f.models, "checkpoint folder or run directory; several are compared, document by document, with the first")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--adapter", f.adapters,
                 "adapter folder as PEFT has them, or a run directory: merged into the weights; of several models one for each, - for none")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--tasks", f.task_list,
                 "names, separated by commas: " + task_names() +
                     ", subjects and groups of mmlu (mmlu_anatomy, mmlu_stem), all,\npaper (its eight tasks with 3 shots and five seeds), "
                     "or a YAML file with a task of your own");
  app.add_option("--data", f.data, "folder with the data sets: TASK/SPLIT.jsonl[.gz|.zst]");
  app.add_option("--shots", f.shots, "solved examples before each question")->capture_default_str()->check(between(0, 1000));
  app.add_option("--seed", f.seed_list, "of the draw of examples; several, separated by commas, give mean and spread (default: 1234)");
  app.add_option("--limit", f.limit, "the first N documents of each task (of each subject) only")->transform(count())->check(between(1));
  app.add_option("--samples", f.samples,
                 "JSONL file with a line for each document; one that is there is continued if it was made the same way");
  app.add_flag("--force", f.force, "start the file of --samples anew");
  app.add_option("--requests", f.requests, "score the pairs of a JSONL file instead of tasks: {\"context\": TEXT, \"continuation\": TEXT}");
  app.add_flag("--no-bos", f.no_bos, "put nothing before a text (otherwise what the tokenizer adds)");
  app.add_option("--max-length", f.max_length, "tokens that the model reads at most (default: its config's max_position_embeddings)")
      ->transform(count())
      ->check(between(1, 1 << 30));
  app.add_flag("--chat", f.chat, "ask as a user in the tokenizer's chat template");
  app.add_option("--template", f.chat_template,
                 "with --chat, the template where the tokenizer has none: " + chat_template_names() + " or a FILE.yaml");
  app.add_flag("--json", f.json, "print the results as JSON, in the harness's words");
  app.add_option("--html", f.html, "write the results as a page, too");
  app.add_flag("--dry-run", f.dry_run, "only say how much there is to do, and show three questions");
  app.add_option("--tokenizer", f.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_flag("--no-verify", f.no_verify, kNoVerifyHelp);
  f.repack.add_to(app);
  f.repack.add_load_to(app);
  app.add_option("key=value", f.words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
}

std::int64_t parse_seed(const std::string& text) {
  std::int64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  check_usage(error == std::errc() && end == text.data() + text.size(), "--seed: expected whole numbers, got {}", text);
  return seed;
}

// What is written must not be what is read, nor twice the same.
void check_files(const EvalFlags& f) {
  std::error_code ignored;
  const auto same = [&](const std::string& a, const std::string& b) {
    if (a.empty() || b.empty()) return false;
    return std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
  };
  check_usage(!same(f.samples, f.requests), "--samples {} is the file of --requests: writing to it would destroy it", f.samples);
  check_usage(!same(f.samples, f.html), "--samples and --html name the same file, {}", f.html);
  if (f.html.empty()) return;
  check_output_file(f.html, f.force, "--html");
}

// `paper` brings its own number of examples and seeds.
void settle(EvalFlags& f, const CLI::App& app) {
  f.tasks = split_names(f.task_list);
  for (const std::string& seed : split_names(f.seed_list)) f.seeds.push_back(parse_seed(seed));
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
  f.repack.loading();
  check_usage(f.requests.empty() != f.tasks.empty(), "expected --tasks NAMES or --requests FILE{}",
              f.tasks.empty() ? "" : ", and got both; see bhyt eval --help");
  check_usage(!f.models.empty() || f.dry_run, "--model is required: a checkpoint folder or a run directory");
  check_usage(f.adapters.empty() || f.adapters.size() == f.models.size(),
              "--adapter is given {} times for {} models: one for each, - for none", f.adapters.size(), f.models.size());
  check_usage(f.chat || f.chat_template.empty(), "--template goes with --chat");
  for (const char* flag : {"--chat", "--dry-run", "--html", "--limit", "--shots", "--seed", "--data"})
    check_usage(f.requests.empty() || !app.count(flag), "{} does not go with --requests", flag);
  for (const char* flag : {"--samples", "--json", "--html"})
    check_usage(!f.dry_run || !app.count(flag), "{} does not go with --dry-run, which scores nothing", flag);
  check_usage(f.requests.empty() || f.models.size() == 1, "--requests takes one --model");
  check_usage(!f.chat || !f.models.empty(), "--chat takes its template from a model: --model is missing");
  check_files(f);
}

// A checkpoint that is ready to be asked.
class Subject {
 public:
  Subject(const EvalFlags& f, std::size_t i) : flags_(f), checkpoint_(named_checkpoint(f.models[i], f.verify())) {
    if (const std::string adapter = f.adapter_of(i); !adapter.empty()) adapter_ = named_adapter(adapter, f.verify());
    config_ = read_model_config(checkpoint_ / "config.json");
    const std::string home = tokenizer_home(checkpoint_, adapter_);
    tokenizer_ = open_tokenizer(home, f.tokenizer, config_.vocab, f.verify());
    if (!f.chat) return;
    const std::string at = f.tokenizer.empty() ? home : f.tokenizer;
    std::optional<ChatTemplate> row;
    if (!f.chat_template.empty())
      row = load_chat_template(f.chat_template);
    else
      row = own_chat_template(at, *tokenizer_, f.verify());
    check_usage(row.has_value(), "--chat: the tokenizer of {} has no chat template; --template NAME chooses one of {}", f.models[i],
                chat_template_names());
    chat_.emplace(*row, *tokenizer_);
  }

  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  const std::filesystem::path& adapter() const { return adapter_; }  // "" where there is none
  const ModelConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatFormat* chat() const { return chat_ ? &*chat_ : nullptr; }
  Reading reading() const { return {.length = flags_.max_length > 0 ? flags_.max_length : config_.max_positions, .bos = !flags_.no_bos}; }

 private:
  const EvalFlags& flags_;
  std::filesystem::path checkpoint_, adapter_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_;
};

// Of the files that say what is asked.
std::string contents_of(const EvalFlags& f) {
  Hash64 hash;
  for (const std::string& task : f.tasks)
    if (is_there(task)) hash.add(hash_file(task));
  if (!f.requests.empty()) hash.add(hash_file(f.requests));
  return fmt::format("{:016x}", hash.digest());
}

// What a file of samples was made with, and what all ranks must have alike.
EvalJson settings_of(const EvalFlags& f, const Subject& subject, const Placement& where) {
  return {{"model", subject.checkpoint().lexically_normal().string()},
          {"weights", identity_of(subject.checkpoint(), subject.adapter())},
          {"tokenizer", fmt::format("{:016x}", subject.tokenizer().fingerprint())},
          {"tasks", f.tasks},
          {"task_files", contents_of(f)},
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

// Documents come and go in order, and what they share is asked for again at once: on a CPU, whose memory others need as well, the engine
// takes no more than that.
std::int64_t pages_for(const Model& model, std::int64_t length) {
  constexpr std::int64_t kEnough = 1024;  // for 32 questions of 1,024 tokens at a time
  return model.device().is_cuda() ? 0 : std::min(affordable_pages(model), std::max(kEnough, 4 * KvPages::pages_for(length)));
}

// The engine for a subject, its model and its memory.
struct Running {
  Running(const EvalFlags& f, const Subject& subject, const Placement& where)
      : context(where.device, where.threads),
        model(load_with_adapter(context, subject.checkpoint(), subject.adapter(), where.dtype, f.repack.how(), f.repack.loading())),
        engine(context, *model,
               {.pages = pages_for(*model, subject.reading().length + 1), .length = subject.reading().length + 1, .interrupted = [] {
                  return StopSignals::received() != 0;
                }}) {}

  Context context;
  std::unique_ptr<Model> model;
  Engine engine;
};

// Asks a subject: its engine is made when there is something to score.
Reader reader_of(std::optional<Running>& running, const EvalFlags& f, const Subject& subject, const Placement& where, const Ranks& ranks) {
  const auto engine = [&]() -> Engine& {
    if (running) return running->engine;
    running.emplace(f, subject, where);
    check_usage(running->engine.longest() > subject.reading().length,
                "{} tokens are more than the memory for keys and values holds, {}: --max-length N lets the model read less",
                subject.reading().length, running->engine.longest() - 1);
    return running->engine;
  };
  return {engine, subject.tokenizer(), subject.reading(), subject.chat(), where.threads, Sharing::over(ranks.group, where.device)};
}

// The last part of a model's path where that tells it from the others, with that of its adapter.
std::string short_name(const EvalFlags& f, std::size_t i) {
  const std::string& model = f.models[i];
  const auto last = [](const std::string& path) {
    const std::filesystem::path p = std::filesystem::path(path + "/").lexically_normal().parent_path();
    return p.filename().string();
  };
  const auto same = std::count_if(f.models.begin(), f.models.end(), [&](const std::string& m) { return last(m) == last(model); });
  const std::string adapter = f.adapter_of(i), name = same == 1 && !last(model).empty() ? last(model) : model;
  return adapter.empty() ? name : name + "+" + (last(adapter).empty() ? adapter : last(adapter));
}

std::string samples_file(const EvalFlags& f, std::size_t i) {
  if (f.models.size() == 1) return f.samples;
  std::string name = short_name(f, i);
  std::replace(name.begin(), name.end(), '/', '_');
  return samples_of_model(f.samples, name).string();
}

// A model and the file of its samples, checked before any work.
struct Candidate {
  std::string name;
  Subject subject;
  std::string file;
  std::unique_ptr<SampleFile> samples;  // of several ranks the first has it
};

std::vector<std::unique_ptr<Candidate>> name_candidates(const EvalFlags& f) {
  std::vector<std::unique_ptr<Candidate>> all;
  for (std::size_t m = 0; m < f.models.size(); ++m) {
    all.push_back(std::make_unique<Candidate>(Candidate{short_name(f, m), Subject(f, m), "", nullptr}));
    if (f.samples.empty()) continue;
    all.back()->file = samples_file(f, m);
    for (std::size_t i = 0; i + 1 < all.size(); ++i)
      check_usage(all[i]->file != all.back()->file, "{} and {} would write their samples to the same file, {}", all[i]->name,
                  all.back()->name, all.back()->file);
  }
  return all;
}

// Of everything that is asked.
std::string fingerprint_of(const Evaluation& evaluation) {
  Hash64 hash;
  const auto add = [&](const Question& q) {
    for (std::size_t i = 0; i < q.continuations.size(); ++i) {
      hash.update(q.context(i));
      hash.update(q.continuations[i]);
    }
  };
  for (const std::int64_t seed : evaluation.settings().seeds) evaluation.for_each_question(seed, nullptr, add);
  for (const auto& [task, texts] : evaluation.texts())
    for (const std::string& text : texts) hash.update(text);
  return fmt::format("{:016x}", hash.digest());
}

std::vector<std::unique_ptr<Candidate>> open_candidates(const EvalFlags& f, const Evaluation& evaluation, const Placement& where,
                                                        const Ranks& ranks) {
  std::vector<std::unique_ptr<Candidate>> all;
  EvalJson facts = {{"kind of device", where.device.is_cuda() ? "cuda" : "cpu"}};
  ranks.together([&] {
    all = name_candidates(f);
    if (!ranks.group) return;
    facts["documents (checksum)"] = fingerprint_of(evaluation);
    for (const auto& c : all) {
      const EvalJson settings = settings_of(f, c->subject, where);
      for (const auto& [key, value] : settings.items()) facts[fmt::format("{} ({})", key, c->name)] = value;
    }
  });
  ranks.agree(facts);
  ranks.together([&] {
    for (auto& c : all)
      if (!c->file.empty() && ranks.first())
        c->samples = std::make_unique<SampleFile>(
            c->file, settings_of(f, c->subject, where),
            SampleOptions{.documents = evaluation.documents(), .with_seeds = f.seeds.size() > 1, .force = f.force});
  });
  return all;
}

// False when it was stopped.
bool evaluate_model(const EvalFlags& f, const Candidate& c, const Evaluation& evaluation, const Placement& where, const Ranks& ranks,
                    std::vector<ScoredModel>& out) {
  std::optional<Running> running;
  log::Progress progress(c.name, static_cast<double>(evaluation.documents()), "documents");
  double count = 0;
  ScoredModel result{.name = c.name, .documents = {}};
  const Reader reader = reader_of(running, f, c.subject, where, ranks);
  const bool whole = evaluation.run(
      reader, c.samples.get(), [&](const std::string& task) { progress.update(++count, task); }, result.documents);
  if (!whole) return false;
  const EngineCounters n = running ? running->engine.counters() : EngineCounters{};
  const auto of_all = [&](std::int64_t own) { return log::human_count(static_cast<double>(ranks.sum(own))); };
  const std::string computed = of_all(n.computed_tokens), shared = of_all(n.shared_tokens);
  progress.finish(fmt::format("{} tokens computed, {} shared", computed, shared));
  out.push_back(std::move(result));
  return true;
}

int stopped(const EvalFlags& f, const Ranks& ranks) {
  log::info("stopped{}", f.samples.empty() ? ": --samples FILE would let the next run go on from here"
                                           : fmt::format("; the same command{} goes on from here", f.force ? " without --force" : ""));
  return 128 + ranks.signal();
}

int show_questions(const EvalFlags& f, const Evaluation& evaluation) {
  std::optional<Subject> subject;
  if (!f.models.empty()) subject.emplace(f, 0);
  show_plan(evaluation, subject ? &subject->tokenizer() : nullptr, subject ? subject->reading() : Reading{},
            subject ? subject->chat() : nullptr);
  return 0;
}

int evaluate(const EvalFlags& f, const Placement& where, const Ranks& ranks) {
  std::optional<Evaluation> evaluation;
  ranks.together([&] {
    evaluation.emplace(
        EvaluationSettings{.selection = resolve_tasks(f.tasks), .data = f.data, .shots = f.shots, .seeds = f.seeds, .limit = f.limit});
  });
  if (f.dry_run) return ranks.first() ? show_questions(f, *evaluation) : 0;
  const auto candidates = open_candidates(f, *evaluation, where, ranks);
  const StopSignals signals("\n", StopSignals::Second::quits);
  std::vector<ScoredModel> models;
  for (const auto& c : candidates) try {
      if (!evaluate_model(f, *c, *evaluation, where, ranks, models)) return stopped(f, ranks);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& e) {
      throw Error(f.models.size() > 1 ? fmt::format("{}: {}", c->name, e.what()) : e.what());
    }
  if (ranks.first()) print_results(*evaluation, models, f.json, f.html);
  return 0;
}

int score_requests(const EvalFlags& f, const Placement& where, const Ranks& ranks) {
  std::vector<Question> requests;
  std::optional<Subject> subject;
  EvalJson settings;
  ranks.together([&] {
    requests = read_requests(f.requests);
    subject.emplace(f, 0);
    if (ranks.group || !f.samples.empty()) settings = settings_of(f, *subject, where);
  });
  ranks.agree(settings);
  std::unique_ptr<SampleFile> samples;
  std::vector<Likelihood> all;
  const std::size_t known = Sharing{ranks.group}.first_counts([&] {
    if (!f.samples.empty() && ranks.first())
      samples = std::make_unique<SampleFile>(f.samples, settings, SampleOptions{.documents = std::ssize(requests), .force = f.force});
    while (samples && all.size() < requests.size()) {
      const std::optional<Likelihood> one = samples->next_request();
      if (!one) break;
      all.push_back(*one);
    }
    return all.size();
  });
  const StopSignals signals("\n", StopSignals::Second::quits);
  std::optional<Running> running;
  log::Progress progress(f.requests, static_cast<double>(requests.size()), "requests");
  const bool whole = score_questions(reader_of(running, f, *subject, where, ranks), std::span(requests).subspan(known),
                                     [&](std::size_t, std::vector<Likelihood> likelihoods) {
                                       all.push_back(likelihoods.front());
                                       if (samples) samples->add_request(all.back());
                                       progress.update(static_cast<double>(all.size()));
                                     });
  if (!whole) return stopped(f, ranks);
  progress.finish();
  if (ranks.first()) print_requests(all, {.json = f.json, .each = f.samples.empty()});
  return 0;
}

}  // namespace

int cmd_eval(const Args& args) {
  CLI::App app("Benchmark tasks, document by document as lm-evaluation-harness gives them", "bhyt eval");
  app.footer("Several processes share the documents out: mpirun -n 8 bhyt eval ..., one for each GPU of a machine (docs/scaling.md).");
  EvalFlags f;
  add_options(app, f);
  parse(app, args);
  const Ranks ranks;
  Placement where;
  ranks.together([&] {
    settle(f, app);
    where = take_placement(f.words, "auto");
  });
  ranks.share(where);
  return f.requests.empty() ? evaluate(f, where, ranks) : score_requests(f, where, ranks);
}

}  // namespace bhyt::cli
