#include "train/checkpointing.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/check.h"
#include "core/log.h"
#include "io/json.h"
#include "model/adapter.h"
#include "model/checkpoint.h"

namespace bhyt::train {

namespace {

// Hugging Face's keys, and ours under "bhyt".
Json state_json(const CheckpointContext& context, const Model& model, const Progress& p, bool interrupted) {
  const TrainSection& t = context.config.train;
  const double rows = static_cast<double>(p.step) * static_cast<double>(t.batch), epochs = rows / context.rows_per_epoch;
  // Conversations are shorter than data.seq_len: what attention costs goes by their mean length.
  const std::int64_t seq = context.config.data.chat
                               ? std::max<std::int64_t>(1, std::llround(static_cast<double>(p.tokens) / std::max(rows, 1.0)))
                               : context.config.data.seq_len;
  Json own = {{"version", 1}, {"progress", to_json(p)}, {"mathematics", context.mathematics}};
  if (interrupted) own["interrupt"] = true;
  return {{"best_global_step", p.best_step ? Json(p.best_step) : Json()},
          {"best_metric", p.best_step ? Json(p.best_metric) : Json()},
          {"epoch", epochs},
          {"eval_steps", t.eval_every},
          {"global_step", p.step},
          {"log_history", p.log_history},
          {"logging_steps", t.log_every},
          {"max_steps", t.steps},
          {"num_input_tokens_seen", p.tokens},
          {"num_train_epochs", static_cast<double>(t.steps * t.batch) / context.rows_per_epoch},
          {"save_steps", t.save_every},
          {"total_flos", training_flops(model.config(), seq, model.lora()).sum() * static_cast<double>(p.tokens)},
          {"train_batch_size", t.batch},
          {"bhyt", own}};
}

bool was_interrupt(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kTrainerState;
  if (!fs::is_regular_file(file)) return false;
  const Json state = json_or_discarded(read_text(file));
  return state.is_object() && state.contains("bhyt") && state["bhyt"].contains("interrupt");
}

void prune(RunDir& dir, const TrainSection& train, const Progress& progress, bool interrupted) {
  std::int64_t kept = interrupted ? 0 : 1;
  for (const std::int64_t step : dir.checkpoints()) {
    if (step >= progress.step || (train.select == Select::best && step == progress.best_step)) continue;
    // An interrupt's checkpoint is only there to go on from: the next one makes it superfluous.
    if (was_interrupt(dir.checkpoint(step)) || ++kept > train.keep)
      dir.remove_checkpoint(step);
    else if (train.save == Save::weights)
      remove_listed(dir.checkpoint(step), optimizer_files(dir.checkpoint(step)));
  }
}

}  // namespace

void tidy_checkpoints(RunDir& dir, const TrainSection& train, const Progress& progress) {
  prune(dir, train, progress, was_interrupt(dir.checkpoint(progress.step)));
}

void save_checkpoint(RunDir& dir, const CheckpointContext& context, const Model& model, const Optimizer& optimizer,
                     const Progress& progress, bool interrupted) {
  const bool adapters = context.config.lora.config.active();
  std::map<const Parameter*, std::vector<float>> masters;
  for (const Parameter& p : model.parameters().list())
    if (adapters && !p.frozen) masters[&p] = context.master(p);
  dir.write_checkpoint(progress.step, [&](const fs::path& to) {
    if (dir.owned() || optimizer.shard().ranks() > 1) save_optimizer(to, model, optimizer);
    if (!dir.owned()) return;
    if (adapters)
      save_adapter(to, model, context.config.model.init, [&](const Parameter& p) { return masters.at(&p); });
    else
      save_model(to, model);
    if (context.tokenizer) context.tokenizer->save(to);
    write_synced(to / kTrainerState, state_json(context, model, progress, interrupted).dump(2) + "\n");
  });
  if (dir.owned()) prune(dir, context.config.train, progress, interrupted);
}

namespace {

// What keeps a run from going on from a checkpoint, "" if nothing does; then `state` is its training state.
std::string unfit(const fs::path& at, Json& state) {
  if (const std::string wrong = verify_manifest(at); !wrong.empty()) return wrong;
  if (optimizer_files(at).empty()) return fmt::format("it holds weights only (model.init={} starts a new run from them)", at.string());
  if (const std::string wrong = incomplete_optimizer(at); !wrong.empty()) return wrong;
  if (!fs::exists(at / kTrainerState)) return "it has no trainer_state.json";
  state = json_or_discarded(read_text(at / kTrainerState));
  return state.is_object() ? "" : "trainer_state.json is damaged";
}

}  // namespace

namespace {

// Whether metrics tell of a step that was made; a validation before the first is none.
bool has_steps(const fs::path& metrics) {
  if (!fs::exists(metrics)) return false;
  const std::string text = read_text(metrics);
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Json line = json_or_discarded(std::string_view(text).substr(at, end - at));
    if (!line.is_object() || !line.contains("step") || line["step"] != 0) return true;
  }
  return false;
}

}  // namespace

std::optional<Found> find_checkpoint(const RunDir& dir) {
  std::string wrong;
  for (const std::int64_t step : dir.checkpoints()) {
    const fs::path at = dir.checkpoint(step);
    Json state;
    const std::string problem = unfit(at, state);
    if (problem.empty()) return Found{at, std::move(state)};
    log::warning("passing over {}: {}", at.string(), problem);
    wrong += fmt::format("\n  {}: {}", at.filename().string(), problem);
  }
  if (wrong.empty() && has_steps(dir.path() / "metrics.jsonl")) wrong = "\n  there are metrics of earlier steps, but no checkpoint";
  check(wrong.empty(),
        "{} holds a run that cannot go on:{}\nresume=restart starts it afresh and keeps what is there aside; another run.dir starts a new "
        "one",
        dir.path().string(), wrong);
  return std::nullopt;
}

bool check_mathematics(const Found& found, const Json& mathematics, bool force) {
  const auto own = found.state.find("bhyt");
  const bool known = own != found.state.end() && own->contains("mathematics") && own->at("mathematics").is_object();
  check(known, "{}: not a training state of this program", (found.dir / kTrainerState).string());
  // A key that this checkpoint's program did not have yet: the run was made with what is its default now.
  Json before = own->at("mathematics");
  const Json defaults = train::mathematics(resolved_tree({}));
  for (const auto& [key, value] : defaults.items())
    if (!before.contains(key) && mathematics.contains(key)) before[key] = value;
  const auto changed = differences(before, mathematics);
  if (changed.empty()) return false;
  const std::string what = fmt::format("{}", fmt::join(changed, "; "));
  check_usage(force, "this would change the mathematics of the run: {} (--force goes on all the same)", what);
  log::warning("going on with changed mathematics: {}", what);
  return true;
}

Progress load_checkpoint(const Found& found, const RunConfig& config, Model& model, Optimizer& optimizer) {
  const Progress progress = progress_from(found.state, (found.dir / kTrainerState).string());
  const ValueSink masters = optimizer.masters().sink();
  if (config.lora.config.active()) {  // the weights below the adapters are where they were taken from
    load_weights(config.model.init, model.parameters(), masters);
    load_adapter(Adapter(found.dir), model, masters);
  } else {
    load_weights(found.dir, model.parameters(), masters);
  }
  load_optimizer(found.dir, model, optimizer);
  return progress;
}

}  // namespace bhyt::train
