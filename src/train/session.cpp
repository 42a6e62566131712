#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/log.h"
#include "data/token_file.h"
#include "io/format.h"
#include "io/json.h"
#include "machine/machine.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "ops/norm/config.h"
#include "parallel/launch.h"
#include "train/agreement.h"
#include "train/calibrate.h"
#include "train/chat_data.h"
#include "train/console.h"
#include "train/memory.h"
#include "train/rank_rows.h"
#include "train/token_rows.h"

namespace bhyt::train {

namespace {

constexpr const char* kResolved = "resolved.yaml";

// Runs work on all ranks; where it fails on one, it fails on all.
using Stage = std::function<void(const std::function<void()>&)>;

// Whether a model's vocabulary may be larger than that of the weights it starts from.
bool grows(const RunConfig& config) { return config.work == Work::fine_tuning; }

// The weights that model.init names must serve the model that the other keys make of it.
void check_init(const RunConfig& config) {
  if (config.model.init.empty() || calibrates(config)) return;
  // A run that goes on has weights of its own.
  if (goes_on(config.run.resume) && !checkpoint_steps(config.run.dir).empty()) return;
  RunConfig stored = config;
  stored.model.config = read_model_config(fs::path(config.model.init) / "config.json");
  stored.model.config.max_positions = config.model.config.max_positions;
  if (weight_mismatches(config.model.init, config.model.config, grows(config)).empty()) {
    const std::string &before = stored.model.config.norm.method, &now = config.model.config.norm.method;
    if (before != now)
      log::warning("model.init: the weights were trained under {} and go on under {} as they are; norm.from=calibrate fits them to it",
                   before, now);
    return;
  }
  const auto changed = differences(mathematics(resolved_tree(stored)), mathematics(resolved_tree(config)));
  // Nothing changed: the checkpoint does not fit itself, and loading it will say how.
  const bool norms = std::ranges::all_of(changed, [](const std::string& key) { return key.starts_with("norm."); });
  check_usage(changed.empty(), "model.init: the weights of {} do not fit these keys: {}{}", config.model.init, fmt::join(changed, "; "),
              norms ? "; norm.from=calibrate fits the new norm to the old one" : "");
}

// Where the run is made: of several ranks on a host each has its share of it.
void choose_device(RunConfig& config, parallel::Group* group, const Stage& stage) {
  if (!group || group->size() == 1) return stage([&] { config.device = parse_device(config.run.device); });
  config.run.threads = parallel::own_threads(*group, static_cast<int>(config.run.threads));
  config.device = parallel::own_device(*group, config.run.device, "run.device", config.parallel.share_gpu,
                                       ", or say parallel.share_gpu=true, which is slow");
}

// Fails on whatever is wrong with config and data before anything is written.
RunData check_config(RunConfig& config) {
  RunData data = config.work == Work::fine_tuning ? choose_chat_data(config) : choose_data(config);
  const ModelConfig& model = config.model.config;
  validate(model);
  plan_norms(model.norm, model.layers, model.d, model.eps);
  check_calibration(config);
  check_init(config);
  if (calibrates(config)) choose_calibration(config, data);
  return data;
}

// What run.resume makes of the directory: refused, or the checkpoint to go on from. From here on messages go to its log, too.
std::optional<Found> enter(const RunSection& run, const RunDir& dir) {
  const std::string path = dir.path().string();
  check_usage(run.resume != Resume::never || !dir.holds_run(),
              "{} already holds a run; resume=auto goes on with it, resume=restart puts it aside, another run.dir starts a new one", path);
  log::open_file((dir.path() / "log.txt").string());
  std::optional<Found> found;
  if (goes_on(run.resume)) found = find_checkpoint(dir);
  check_usage(found || run.resume != Resume::must, "resume=must, but {} holds no checkpoint", path);
  return found;
}

// resume=restart, once everything else is known to work.
void restart(RunSection& run, RunDir& dir) {
  run.resume = Resume::never;  // once: resolved.yaml, given back, puts nothing aside
  if (!dir.holds_run()) return;
  log::close_file();
  const fs::path aside = dir.set_aside();
  log::open_file((dir.path() / "log.txt").string());
  log::info("starting afresh; what {} held is in {}", dir.path().string(), aside.string());
}

// What auto meant when the run began, so that a resumed run computes the same bits.
void inherit_auto(RunConfig& config, const RunDir& dir) {
  const fs::path file = dir.path() / kResolved;
  if (!fs::exists(file)) return;
  const Json old = parse_yaml(read_text(file), file.string());
  const auto value = [&](const char* section, const char* key) {
    if (!old.is_object() || !old.contains(section) || !old[section].is_object()) return Json();
    return old[section].value(key, Json());
  };
  if (const Json type = value("run", "dtype"); !config.run.dtype && type.is_string() && type != "auto")
    config.run.dtype = parse_float_type(type.get<std::string>(), file.string() + ": run.dtype");
  if (config.train.micro_batch != 0 || value("train", "batch") != config.train.batch) return;
  if (const Json micro = value("train", "micro_batch"); micro.is_number_integer())
    config.train.micro_batch = std::clamp<std::int64_t>(micro, 1, config.train.batch);
}

// Everything that takes memory. The weights come after it, so that a person first reads what is being made.
void open_model(Session& s) {
  Context& ctx = *s.ctx;
  s.model = std::make_unique<Model>(ctx, s.config.model.config, *s.config.run.dtype, Frozen{}, s.config.lora.config, Borrowed{},
                                    s.config.ranks.size);
  s.parallel = std::make_unique<DataParallel>(ctx, *s.model, s.config, parallel::group());
  s.optimizer = make_optimizer(s.config.train, s.model->parameters(), s.parallel->shard_rank(), s.parallel->shard_ranks());
  const TrainSection& t = s.config.train;
  s.pass = std::make_unique<TrainPass>(
      ctx, *s.model,
      TrainPass::Shape{
          .batch = t.micro_batch, .seq = s.config.data.seq_len, .recompute = t.recompute, .lists = s.config.data.chat.has_value()});
  const Uploader::Shape shape{.batch = rows_of_a_rank(s.config),
                              .micro_batch = t.micro_batch,
                              .seq = s.config.data.seq_len,
                              .documents = tells_documents(s.config.data),
                              .lists = s.config.data.chat.has_value()};
  s.uploader = std::make_unique<Uploader>(ctx, shape);
  if (s.valid) s.valid_uploader = std::make_unique<Uploader>(ctx, shape);
}

// 1,000 conversations, 608,911 tokens, 547,541 scored | template llama3
std::string chat_line(const ChatData& data, const DataSection& config) {
  std::int64_t examples = 0, tokens = 0, scored = 0;
  for (const ExampleSummary& s : data.train_files) {
    examples += s.kept;
    tokens += s.tokens;
    scored += s.scored;
  }
  const std::string format = data.format ? " | template " + data.format->row().name : "";
  return fmt::format("{} conversations, {} tokens, {} scored, at most {} each{}", grouped(examples), grouped(tokens), grouped(scored),
                     config.seq_len, format);
}

void introduce(const Session& s) {
  const RunConfig& c = s.config;
  const auto rows = static_cast<double>(c.train.steps) * static_cast<double>(c.train.batch);
  const std::int64_t rows_here = rows_of_a_rank(c), pieces = (rows_here + c.train.micro_batch - 1) / c.train.micro_batch;
  log::info("{}", headline(*s.model));
  log::info("{}", memory_line(*s.pass, *s.model, *s.optimizer, s.parallel->gradient_bytes()));
  const std::string batch = fmt::format("batch {}{}", c.train.batch, pieces > 1 ? fmt::format(" in {} pieces", pieces) : "");
  if (s.data.chat)
    log::info("data    {} | {} | {} steps, {:.3g} epochs | {}", chat_line(*s.data.chat, c.data), batch, grouped(c.train.steps),
              static_cast<double>(c.train.steps) / static_cast<double>(s.train->batches()), c.run.dir);
  else
    log::info("data    {} rows of {} tokens | {} | {} steps = {} tokens, {:.3g} epochs | {}", grouped(s.train->rows()), c.data.seq_len,
              batch, grouped(c.train.steps), log::human_count(rows * static_cast<double>(c.data.seq_len)),
              rows / static_cast<double>(s.train->rows()), c.run.dir);
  if (const std::string often = s.data.chat ? "" : repetition(c.train, s.train->rows()); !often.empty()) log::warning("{}", often);
  if (const auto unused = unused_keys(c.model.config.norm); !unused.empty())
    log::warning("{}: of no use to the method {}", fmt::join(unused, ", "), c.model.config.norm.method);
}

enum class Use { training, validation };

// Fine-tuning's batches. On a GPU rows come in few lengths: each is recorded as a graph once.
std::unique_ptr<BatchSource> chat_batches(const RunConfig& c, const ChatData& chat, Use use) {
  const bool training = use == Use::training;
  const std::vector<WeightedExamples>& sets = training ? chat.train : chat.valid;
  const std::int64_t multiple = (c.data.seq_len / 16 + 7) / 8 * 8;
  return example_batches(sets, {.batch = c.train.batch,
                                .seq_len = c.data.seq_len,
                                .multiple = std::max<std::int64_t>(multiple, c.device.is_cuda() ? 128 : 8),
                                .seed = c.run.seed,
                                .packing = training ? c.data.chat->packing : Packing::none,
                                .shuffle = training && !chat.prepared ? c.data.chat->shuffle : Shuffle::none,
                                .rounds = training && chat.prepared});
}

// The model of model.init under another norm, fitted to data.calibrate, or to the run's own data.
void convert_norms(Session& s, std::optional<std::uint64_t> grow) {
  const auto source = load_source(s.config, *s.model, s.optimizer->masters(), grow);
  s.model->refresh_constants();
  pack_calibration(s.config.data, s.data, (s.dir->path() / "data").string());
  const auto open = [&](std::int64_t batch) {
    RunConfig c = s.config;
    c.train.batch = batch;
    if (!s.data.calibrate.empty()) return training_rows(s.data.calibrate, c);
    return s.data.chat ? chat_batches(c, *s.data.chat, Use::training) : training_rows(s.data.train, c);
  };
  const auto data = open(calibration_batch(open(1)->rows(), s.config.data.seq_len));
  const Calibration done = calibrate(*s.ctx, *source, *s.model, *data);
  for (const std::string& line : describe(done, source->config().norm.method, s.model->config().norm.method)) log::info("{}", line);
}

void make_weights(Session& s) {
  const ValueSink masters = s.optimizer->masters().sink();
  const LoraSection& lora = s.config.lora;
  const auto grow = grows(s.config) ? std::optional(s.config.run.seed) : std::nullopt;
  if (s.config.model.init.empty())
    s.model->parameters().initialize(s.config.run.seed, masters);
  else if (s.config.norm_from == NormFrom::calibrate)
    convert_norms(s, grow);
  else
    load_weights(s.config.model.init, s.model->parameters(), masters, grow);
  check_lora_init(lora.init);
  if (!lora.init.empty())
    load_adapter(Adapter(named_adapter(lora.init, Verify::yes)), *s.model, masters);
  else if (lora.config.rank > 0)
    s.model->parameters().initialize_adapters(s.config.run.seed, masters);
  s.model->refresh_constants();
}

// Every shape that a step brings goes through once: whole micro-batches, and what is left of a batch.
void warm_up(Session& s) {
  const TrainSection& t = s.config.train;
  const std::int64_t rows = rows_of(t.batch, s.config.ranks.rank, s.config.ranks.size).count, whole = std::min(t.micro_batch, rows);
  const Gradients& gradients = s.parallel->gradients();
  if (whole > 0) s.pass->warm_up(gradients, whole, rows > whole);
  if (whole > 0 && rows % whole > 0) s.pass->warm_up(gradients, rows % whole, true);
  // A refresh of the constants, too: a resumed run keeps those of its checkpoint and meets its first one in mid-run.
  const Tensor constants = s.model->constants();
  const OwnedTensor kept(*s.ctx, constants.dtype, {constants.size()});
  copy(*s.ctx, constants, kept);
  s.model->refresh_constants();
  copy(*s.ctx, kept, constants);
  s.tuning->update();
}

// Of the weights that adapters stand beside: they are read again when the run goes on.
std::string fingerprint_of_weights(const fs::path& folder) {
  check_usage(fs::is_directory(folder), "model.init: {} is gone, and adapters go on beside its weights alone", folder.string());
  Hash64 hash;
  if (fs::exists(folder / "manifest.json")) {
    hash.update(read_text(folder / "manifest.json"));
  } else {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::ranges::sort(files);
    for (const fs::path& file : files) hash.add(hash_file(file));
  }
  return fmt::format("{:016x}", hash.digest());
}

// What a resumed run may not change: the keys, the tokenizer, and how much of a mixture comes from where (the paths may change).
Json mathematics_of(const Session& s) {
  Json math = mathematics(resolved_tree(s.config));
  math["data.tokenizer"] = fmt::format("{:016x}", s.data.fingerprint);
  if (s.config.lora.config.active()) math["model.init"] = fingerprint_of_weights(s.config.model.init);
  if (s.data.chat) math["data.examples"] = fmt::format("{:016x}", fingerprint(s.data.chat->train));
  double weights = 0;
  for (const DataEntry& e : s.config.data.train) weights += e.weight;
  for (const DataEntry& e : s.config.data.train)
    if (weights > 0) math["data.train[].weight"].push_back(std::round(e.weight / weights * 1e9) / 1e9);
  return math;
}

// Of the tokens in these files, wherever they lie; "" without files, or where one holds no checksum (llm.c's).
std::string fingerprint(const std::vector<DataPart>& parts) {
  Hash64 hash;
  for (const DataPart& part : parts) {
    const TokenFileInfo info = TokenFile(part.path).info();
    if (info.checksum == 0) return "";
    hash.add(info.checksum);
    hash.add(info.tokens);
    hash.update(&part.weight, sizeof part.weight);
  }
  return parts.empty() ? "" : fmt::format("{:016x}", hash.digest());
}

std::string validation_fingerprint(const RunData& data) {
  if (!data.chat) return fingerprint(data.valid);
  return data.chat->valid.empty() ? "" : fmt::format("{:016x}", fingerprint(data.chat->valid));
}

std::string data_fingerprint(const RunData& data) {
  return data.chat ? fmt::format("{:016x}", fingerprint(data.chat->train)) : fingerprint(data.train);
}

// run.json: where and with what the run is made. A resumed run keeps when it was first started, if that was written.
void write_run_json(const Session& s, bool resumed) {
  const fs::path file = s.dir->path() / "run.json";
  Json facts = machine_facts(*s.ctx, *s.config.run.dtype);
  facts["model"] = model_line(*s.model);
  facts["norm"] = norm_line(s.config.model.config.norm);
  facts["optimizer"] = s.config.train.optimizer;
  if (s.data.fingerprint) facts["tokenizer"] = fmt::format("{:016x}", s.data.fingerprint);
  if (const std::string print = validation_fingerprint(s.data); !print.empty()) facts["validation_data"] = print;
  if (s.data.chat) facts["examples"] = about_examples(*s.data.chat, s.train->batches());
  if (resumed) {
    const Json before = fs::exists(file) ? json_or_discarded(read_text(file)) : Json();
    if (before.is_object() && before.contains("started")) facts["started"] = before["started"];
    facts["resumed"] = utc_time();
  } else {
    facts["started"] = utc_time();
  }
  replace_synced(file, facts.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");  // a file's name may be no UTF-8
}

}  // namespace

namespace {

void open_data(Session& s) {
  const RunConfig& c = s.config;
  const auto own = [&](std::unique_ptr<BatchSource> all) { return rank_rows(std::move(all), c.ranks.rank, c.ranks.size); };
  if (!s.data.chat) {
    pack_data(c.data, s.data, (s.dir->path() / "data").string());
    s.train = own(training_rows(s.data.train, c));
    if (!s.data.valid.empty()) s.valid = own(validation_rows(s.data.valid, c));
    return;
  }
  ChatData& chat = *s.data.chat;
  read_chat_data(s.ctx->threads(), c.data, chat);
  check_vocabulary(chat, c.model.config);
  s.train = own(chat_batches(c, chat, Use::training));
  if (!chat.valid.empty()) s.valid = own(chat_batches(c, chat, Use::validation));
}

// Rows that steps count as an epoch: of conversations whole batches, for the last one may be short.
double rows_per_epoch(const Session& s) {
  return static_cast<double>(s.data.chat ? s.train->batches() * s.config.train.batch : s.train->rows());
}

std::int64_t mean_length(const Session& s) {
  if (!s.data.chat) return s.config.data.seq_len;
  std::int64_t tokens = 0, examples = 0;
  for (const WeightedExamples& set : s.data.chat->train)
    for (const Example& e : *set.examples) {
      tokens += computed_tokens(e);
      ++examples;
    }
  return std::max<std::int64_t>(tokens / std::max<std::int64_t>(examples, 1), 1);
}

void open_tasks(Session& s) {
  const EvalSection& eval = s.config.eval;
  if (eval.tasks.empty()) return;
  check_usage(s.data.tokenizer != nullptr, "eval.tasks: there is no tokenizer to ask with: {}", s.data.why_no_tokenizer);
  s.tasks = std::make_unique<TaskEval>(eval, *s.data.tokenizer);
}

}  // namespace

namespace {

// The checkpoint to go on from: found by the owner of the directory, and read by all ranks.
std::optional<Found> find_together(Session& s, parallel::Group* group, const Stage& stage) {
  std::optional<Found> found;
  stage([&] {
    if (s.dir->owned()) found = enter(s.config.run, *s.dir);
  });
  if (!group) return found;
  const std::string folder = parallel::gather_texts(*group, found ? found->dir.string() : "").front();
  stage([&] {
    if (s.dir->owned() || folder.empty()) return;
    const fs::path state = fs::path(folder) / kTrainerState;
    found = Found{folder, parse_json(read_text(state), state.string())};
  });
  return found;
}

// Everything about config and data that is known before memory is taken.
Json settle_config(Session& s, const std::optional<Found>& found, parallel::Group* group, const Stage& stage) {
  bool automatic = false;
  stage([&] {
    if (found) inherit_auto(s.config, *s.dir);
    s.config.run.device = name_of(s.config.device);
    if (!s.config.run.dtype) s.config.run.dtype = s.config.device.is_cuda() ? DType::bf16 : DType::f32;
    automatic = s.config.train.micro_batch == 0;
    settle_memory(s.config, free_memory_for(s.config));
    if (s.dir->owned()) open_data(s);
  });
  if (automatic && group) s.config.train.micro_batch = least_of_ranks(*group, s.config.train.micro_batch);
  Json math;
  stage([&] {
    if (!s.dir->owned()) open_data(s);  // texts are packed by now
    if (!s.data.tokenizer) log::info("checkpoints will hold no tokenizer: {}", s.data.why_no_tokenizer);
    open_tasks(s);
    settle_epochs(s.config, s.train->batches());
    s.length = mean_length(s);
    check_usage(s.valid || s.config.train.patience == 0, "train.patience={} waits for a lower validation loss, and there is no data.valid",
                s.config.train.patience);
    math = mathematics_of(s);
  });
  return math;
}

void take_up(Session& s, const Found& found, bool changed) {
  s.progress = load_checkpoint(found, s.config, *s.model, *s.optimizer);
  if (s.progress.tokens == 0 && !s.data.chat)
    s.progress.tokens = s.progress.step * s.config.train.batch * s.config.data.seq_len;  // of an older program
  if (s.config.train.select == Select::best && !fs::exists(s.dir->checkpoint(s.progress.best_step))) s.progress.best_step = 0;
  if (changed) s.model->refresh_constants();  // those of the checkpoint may be another method's
  check_usage(s.progress.step <= s.config.train.steps, "train.steps must be at least {}, the step of {}, got {}", s.progress.step,
              found.dir.string(), s.config.train.steps);
}

// What a run directory says of the run, by its owner.
void write_down(Session& s, bool resumed) {
  if (s.config.run.resume == Resume::restart) restart(s.config.run, *s.dir);
  replace_synced(s.dir->path() / kResolved, write_yaml(resolved_tree(s.config)));
  write_run_json(s, resumed);
  s.metrics = std::make_unique<Metrics>(s.dir->path(), s.progress);
}

// What ranks must have come to alike.
Json settled_facts(const Session& s) {
  const TrainSection& t = s.config.train;
  return {{"run.dtype", name_of(*s.config.run.dtype)},
          {"kind of device", s.config.device.is_cuda() ? "cuda" : "cpu"},
          {"train.micro_batch", t.micro_batch},
          {"train.steps", t.steps},
          {"train.eval_every", t.eval_every},
          {"train.save_every", t.save_every},
          {"data.train (checksum of its tokens)", data_fingerprint(s.data)},
          {"data.train (batches)", s.train->batches()},
          {"data.valid (checksum of its tokens)", validation_fingerprint(s.data)},
          {"data.valid (batches)", s.valid ? s.valid->batches() : 0}};
}

void agree(parallel::Group* group, const Json& facts) {
  if (group && group->size() > 1) check_agreement(*group, facts);
}

}  // namespace

std::unique_ptr<Session> open_session(const RunConfig& config, bool force) {
  parallel::Group* const group = parallel::group();
  const Stage stage = [&](const std::function<void()>& work) { parallel::together(group, work); };
  auto session = std::make_unique<Session>();
  Session& s = *session;
  s.config = config;
  if (group) {
    group->set_timeout(std::max(parallel::kSetupTimeout, config.parallel.timeout));
    s.config.ranks = {.rank = group->rank(), .size = group->size(), .on_host = group->local_size(), .launched = true};
    log::set_silent(group->rank() > 0);
  }
  agree(group, facts_of(s.config));
  choose_device(s.config, group, stage);
  stage([&] {
    s.data = check_config(s.config);
    s.ctx = std::make_unique<Context>(s.config.device, static_cast<int>(s.config.run.threads));
  });
  s.dir = std::make_unique<RunDir>(s.config.run.dir, group);
  const std::optional<Found> found = find_together(s, group, stage);
  const Json math = settle_config(s, found, group, stage);
  agree(group, settled_facts(s));
  bool changed = false;
  stage([&] {
    changed = found && check_mathematics(*found, math, force);
    s.tuning = std::make_unique<TuningFile>(s.dir->path() / "tuning.json", *s.ctx, s.dir->owned());
  });
  open_model(s);
  stage([&] {
    introduce(s);
    if (found)
      take_up(s, *found, changed);
    else
      make_weights(s);
    warm_up(s);
    s.metrics = std::make_unique<Metrics>();
    if (s.dir->owned()) write_down(s, found.has_value());
  });
  s.checkpoints = std::make_unique<CheckpointContext>(
      CheckpointContext{.config = s.config,
                        .tokenizer = s.data.tokenizer.get(),
                        .mathematics = math,
                        .rows_per_epoch = rows_per_epoch(s),
                        .master = [&s](const Parameter& p) { return s.parallel->master(*s.optimizer, p); }});
  if (found) log::info("going on after step {} from {}", s.progress.step, found->dir.string());
  s.dir->keep();
  return session;
}

}  // namespace bhyt::train
