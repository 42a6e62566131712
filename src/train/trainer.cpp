#include "train/trainer.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "core/log.h"
#include "core/signals.h"
#include "io/format.h"
#include "io/hash.h"
#include "machine/machine.h"
#include "parallel/launch.h"
#include "train/console.h"
#include "train/layer_stats.h"
#include "train/memory.h"
#include "train/merging.h"
#include "train/rank_rows.h"
#include "train/schedule.h"
#include "train/session.h"
#include "train/step_result.h"

namespace bhyt::train {

namespace {

constexpr std::int64_t kLayerLines = 16;  // in metrics.jsonl over a run with analysis.every=auto, beside the first and the last step

bool every(std::int64_t step, std::int64_t interval) { return interval > 0 && step % interval == 0; }

constexpr float kBySigterm = 65536;
constexpr std::int64_t kNoData = 1 << 20;  // what a rank says that could not read, where others say their signal

constexpr const char* kNotice = "\nstopping; the steps that are done will be saved (once more to quit at once)\n";

}  // namespace

struct Trainer::Impl {
  std::unique_ptr<Session> session;
  TrainerOptions options;
  std::vector<StepResult> results;  // of even and odd steps
  std::int64_t scored = 0;          // tokens of the step whose result is still to be read
  bool unread = false;              // whether there is one: the last step's
  double peak = 0;
  Clock total, window;  // of this call, and since the last line of metrics
  int agreed = 0;       // of several ranks: the signal that ends the run
  float grad_norm = 0;
  double lr = 0;
  double shown = 0;            // when the step line was last redrawn
  std::int64_t saved = 0;      // the step whose checkpoint is there
  std::exception_ptr no_data;  // this process could not read
  bool data_ends = false;      // some rank could not
  Outcome outcome;

  Session& s() { return *session; }
  const TrainSection& train() const { return session->config.train; }

  double tok_s(const Clock& clock) const { return clock.spent > 0 ? static_cast<double>(clock.tokens) / clock.spent : 0; }
  std::optional<double> mfu(const Clock& clock) const {
    if (peak <= 0 || clock.spent <= 0) return std::nullopt;
    const TrainingFlops flops = training_flops(session->model->config(), session->length, session->model->lora());
    return (flops.token * static_cast<double>(clock.tokens) + flops.scored * static_cast<double>(clock.scored)) / clock.spent / peak;
  }

  // Gradients and loss of one step, over all its micro-batches; every token weighs the same. False: a signal came between two of them.
  bool accumulate(std::int64_t step, const StepResult& result, const StopSignals& stop) {
    Uploader& u = *s().uploader;
    DataParallel& parallel = *s().parallel;
    const NormPlan& norms = s().model->norms();
    const std::int64_t pieces = u.pieces(), before = u.first_row() << 20;  // so that no two ranks share a mask
    const bool chat = s().data.chat != nullptr;  // then steps have other numbers of tokens, and some that only fill rows up
    WorkLine progress(step_of(step, train().steps), "micro-batches", seconds());
    say_stop(result, stop);
    for (std::int64_t i = 0; i < pieces; ++i) {
      if (i > 0 && !parallel.several() && stop.received()) return false;
      TrainPass::Step how{.gradients = parallel.gradients(),
                          .loss = result.loss(),
                          .scale_by = u.scale(),
                          .tokens_in_step = chat ? 1 : static_cast<double>(u.all_rows() * u.seq()),
                          .aux_by = chat ? u.per_token() : Tensor{},
                          .with_aux = (step - 1) % norms.aux_every == 0,
                          .accumulate = i > 0,
                          .dropout_seed = mix64(mix64(mix64(s().config.run.seed) + static_cast<std::uint64_t>(step)) +
                                                static_cast<std::uint64_t>(before + i))};
      parallel.prepare(how, i, pieces);
      s().pass->run(u.piece(i), how);
      if ((i + 1) % total.ahead(pieces) != 0 || i + 1 == pieces) continue;
      s().ctx->synchronize();
      progress.show(i + 1, pieces);
    }
    parallel.idle(pieces, u.pieces_of(rows_of(u.all_rows(), 0, s().config.ranks.size).count));
    parallel.finish(result.loss_and_stop());
    parallel.norm(*s().optimizer, result.norm());
    return true;
  }

  // Loss 0 and, of several ranks, whether this one was asked to stop: 1 by SIGINT, kBySigterm by SIGTERM.
  void say_stop(const StepResult& result, const StopSignals& stop) {
    zero(*s().ctx, result.loss_and_stop());
    if (!s().parallel->several() || !stop.received()) return;
    const float asked = stop.received() == SIGTERM ? kBySigterm : 1;
    const Settled anyway(*s().ctx, false);
    from_host(*s().ctx, &asked, result.stop());
  }

  // Where ranks meet between steps.
  void agree_to_stop(const StopSignals& stop) {
    if (!s().parallel->several()) return;
    agreed = static_cast<int>(std::ranges::max(parallel::gather_numbers(*parallel::group(), stop.received())));
  }

  // The signal that ends the run: this process's own, or what all ranks have agreed on.
  int asked_to_stop(const StopSignals& stop) { return s().parallel->several() ? agreed : stop.received(); }

  void update(const StepResult& result) {
    s().optimizer->step({.lr = lr,
                         .number = s().progress.updates + 1,
                         .gradients = s().parallel->summed(),
                         .grad_norm = result.norm(),
                         .loss = result.loss()});
    s().parallel->publish();
  }

  void skip(std::int64_t step, float step_loss) {
    Progress& p = s().progress;
    const auto text = [](float value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); };  // fmt tells -nan from nan
    const std::string reason = std::isfinite(step_loss) ? "the gradient norm is " + text(grad_norm) : "the loss is " + text(step_loss);
    s().metrics->event(step, "skipped_step", reason);
    log::warning("step {} skipped: {}", step, reason);
    if (++p.skipped_in_row < train().max_skipped) return;
    s().metrics->sync();
    parallel::on_all_ranks();
    throw Error(
        fmt::format("stopped at step {}: {} steps in a row were skipped, {}; earlier checkpoints are untouched. A lower train.lr or a "
                    "longer train.warmup_ratio may help",
                    step, p.skipped_in_row, reason));
  }

  // Reads what the last step came to and enters it into the progress.
  void settle() {
    if (!unread) return;
    unread = false;
    Progress& p = s().progress;
    const auto [sum, asked, norm] = results[static_cast<std::size_t>(p.step % 2)].read();
    grad_norm = norm;
    if (asked > 0) agreed = asked >= kBySigterm ? SIGTERM : SIGINT;
    if (!std::isfinite(sum) || !std::isfinite(norm)) return skip(p.step, sum);
    p.loss_sum += static_cast<double>(sum) / static_cast<double>(std::max<std::int64_t>(scored, 1));
    ++p.loss_count;
    ++p.updates;
    p.skipped_in_row = 0;
  }

  // Where data cannot be read (a damaged file), the step in work is still finished and saved. Of several ranks all know at once whether one
  // of them could not: its rows are missing from the next step.
  void put_batch() {
    try {
      s().uploader->put(s().train->next());
    } catch (const Error&) {
      no_data = std::current_exception();
    }
    data_ends = s().parallel->largest(no_data ? 1 : 0) > 0;
  }
  // The same of validation data, which ranks told each other about in ranks_validate; what else went wrong there ends this one.
  template <class F>
  void reading(F&& read) {
    const bool before = std::exchange(data_ends, false);
    try {
      read();
    } catch (const Error&) {
      if (s().parallel->several() && !data_ends) throw;
      no_data = std::current_exception();
      data_ends = true;
    }
    data_ends = data_ends || before;
  }
  // What was wrong with the data, on all ranks.
  void tell_of_data() {
    const auto tell = [&] {
      if (no_data) std::rethrow_exception(no_data);
    };
    parallel::together(s().parallel->several() ? parallel::group() : nullptr, tell);
  }

  std::int64_t look_every() const {
    const std::int64_t every = session->config.analysis.every;
    return every > 0 ? every : (train().steps + kLayerLines - 1) / kLayerLines;
  }

  // Gives the device a step; false where a signal stopped it half-way: then it is as if it had not begun, but for gradients, which the next
  // one writes anew. A GPU is not waited for at its end: the step before is read (AdamW must know whether it counted) when this one's
  // passes are already under way, and whether this one counts is decided on the device.
  bool step(const StopSignals& stop) {
    Progress& p = s().progress;
    const std::int64_t step = p.step + 1;
    if (options.before_step) options.before_step(*s().model, step);
    const Timed timed{total, window};
    // From the third on everything a step needs is there; but conversations come in other lengths, for which only a GPU was made ready
    // (TrainPass::warm_up): scratch on a CPU grows with the longest.
    const Settled settled(*s().ctx, total.steps >= 2 && (s().ctx->device().is_cuda() || !s().data.chat));
    const StepResult& result = results[static_cast<std::size_t>(step % 2)];
    const bool look = step == 1 || step == train().steps || every(step, look_every());
    Json layers;
    if (step == s().config.parallel.trace) s().parallel->trace();
    s().uploader->advance();
    {
      std::optional<LayerStats> stats;
      LayerStats::Targets targets;
      if (s().data.chat) targets = [this](std::int64_t piece) { return s().uploader->piece(piece).targets; };
      if (look && s().dir->owned())
        stats.emplace(*s().ctx, *s().model, s().pass->observers, s().uploader->tokens(), s().uploader->seq(), targets);
      if (!accumulate(step, result, stop)) return false;
      if (stats) layers = stats->result();  // before the update: of the weights that made this step's loss
    }
    result.fetch();
    const std::int64_t tokens = s().uploader->scored(), used = s().uploader->used();
    if (step < train().steps) put_batch();
    settle();
    lr = learning_rate({.kind = train().schedule,
                        .lr = train().lr,
                        .min_lr_ratio = train().min_lr_ratio,
                        .warmup_ratio = train().warmup_ratio,
                        .decay_ratio = train().decay_ratio,
                        .steps = train().steps},
                       step);
    update(result);
    if (every(step, refresh_interval(s().config.model.config.norm, train().steps))) refresh();
    if (step == s().config.parallel.trace + 1 && step > 1) write_timeline();
    p.step = step;
    p.tokens += used;
    scored = tokens;
    unread = true;
    if (look && s().dir->owned()) s().metrics->layers(step, layers);
    if (s().parallel->several() && !s().ctx->device().is_cuda()) settle();  // what all agreed on is known at once
    for (Clock* c : {&total, &window}) {
      ++c->steps;
      c->tokens += used;
      c->scored += s().data.chat ? tokens : used;
    }
    return true;
  }

  void write_timeline() {
    s().parallel->wait_for_weights();
    const std::string text = s().parallel->timeline();
    if (s().dir->owned() && !text.empty()) replace_synced(s().dir->path() / "trace.json", text);
  }

  void refresh() {
    s().parallel->wait_for_weights();
    s().model->refresh_constants();
  }

  void write_line() {
    Progress& p = s().progress;
    if (p.loss_count == 0) return;  // all skipped
    const double mean = p.loss_sum / static_cast<double>(p.loss_count);
    s().metrics->training({.step = p.step,
                           .tokens = p.tokens,
                           .loss = mean,
                           .lr = lr,
                           .grad_norm = grad_norm,
                           .tok_s = tok_s(window),
                           .step_ms = window.per_step() * 1000,
                           .mfu = mfu(window)});
    p.log_history.push_back({{"step", p.step}, {"loss", mean}, {"grad_norm", short_decimal(grad_norm)}, {"learning_rate", lr}});
    if (!log::stderr_is_terminal()) show(mean, window);
    outcome.loss = mean;
    p.loss_sum = 0;
    p.loss_count = 0;
    window = {};
  }

  void show(double mean, const Clock& clock) {
    log::status(step_line({.step = s().progress.step,
                           .steps = train().steps,
                           .loss = mean,
                           .grad_norm = static_cast<double>(grad_norm),
                           .lr = lr,
                           .tok_s = tok_s(clock),
                           .mfu = mfu(clock),
                           .eta_s = static_cast<double>(train().steps - s().progress.step) * total.per_step()}));
  }

  void redraw() {
    const Progress& p = s().progress;
    if (!log::stderr_is_terminal() || p.loss_count == 0 || seconds() - shown < 0.1) return;
    shown = seconds();
    show(p.loss_sum / static_cast<double>(p.loss_count), window);
  }

  // Validation and tasks. A signal stops them: then they are made again when the run goes on.
  void validate(const StopSignals& stop) {
    if (valid_due() && !validation_loss(stop)) return;
    if (tasks_due() && !ask_tasks(stop)) return;
    s().progress.unvalidated = false;
  }

  // False, with nothing left behind, where a signal came.
  bool ask_tasks(const StopSignals& stop) {
    const std::int64_t step = s().progress.step;
    s().parallel->wait_for_weights();
    WorkLine progress(fmt::format("tasks   step {}", step), "documents", seconds());
    std::optional<Results> results;
    try {
      results = s().tasks->run(
          *s().model, static_cast<int>(s().config.run.threads), parallel::group(), [&] { return stop.received() != 0; },
          [&](std::int64_t done) { progress.show(done, s().tasks->documents()); });
    } catch (const Error& e) {
      // Training is worth more than a table; but of what this rank alone met with the others know nothing.
      if (s().config.ranks.size > 1 && !parallel::ends_all()) throw;
      parallel::on_all_ranks(false);
      log::warning("no tasks at step {}: {}", step, e.what());
      s().metrics->event(step, "no_tasks", e.what());
      return true;
    }
    if (!results) {
      agree_to_stop(stop);
      return false;
    }
    s().metrics->tasks(step, *results);
    for (const ResultRow& row : results->rows)
      if (!row.metrics.empty()) log::info("tasks   step {}  {} {} {:.4f}", step, row.name, row.main().name, row.main().value);
    return true;
  }

  // Before each batch ranks tell each other that they were asked to stop, or could not read it.
  WithRanks ranks_validate(const StopSignals& stop) {
    if (!s().parallel->several()) return {};
    return {.add_up = [this](std::vector<double>& sums) { s().parallel->add_up(sums); },
            .go_on =
                [this, &stop](bool ready) {
                  const std::int64_t said = s().parallel->largest(ready ? stop.received() : kNoData);
                  if (said == kNoData)
                    data_ends = true;
                  else if (said > 0)
                    agreed = static_cast<int>(said);
                  return said == 0;
                }};
  }

  bool validation_loss(const StopSignals& stop) {
    Progress& p = s().progress;
    WorkLine progress(fmt::format("valid   step {}", p.step), "rows", seconds());
    s().parallel->wait_for_weights();
    const auto e = evaluate(
        *s().ctx, *s().pass, *s().valid, *s().valid_uploader, train().eval_batches,
        [&](auto done, auto all) {
          progress.show(done, all);
          return done == all || s().parallel->several() || !stop.received();
        },
        ranks_validate(stop));
    if (!e) return false;
    s().metrics->validation(p.step, e->loss, e->tokens, s().data.chat ? std::optional(e->loss_by_row) : std::nullopt);
    const bool again = !p.log_history.empty() && p.log_history.back().contains("eval_loss") && p.log_history.back()["step"] == p.step;
    if (again) p.log_history.erase(p.log_history.size() - 1);
    p.log_history.push_back({{"step", p.step}, {"eval_loss", e->loss}});
    if (!again) p.judge(e->loss);
    outcome.valid_loss = e->loss;
    log::info("valid   step {}  loss {:.4f}  over {} tokens", p.step, e->loss, grouped(e->tokens));
    return true;
  }

  void save(bool interrupted) {
    s().metrics->sync();  // a checkpoint never runs ahead of its metrics, nor of the algorithms that made it
    s().tuning->update();
    s().parallel->wait_for_weights();
    save_checkpoint(*s().dir, *s().checkpoints, *s().model, *s().optimizer, s().progress, interrupted);
    saved = s().progress.step;
    log::info("saved   {}", s().dir->checkpoint(saved).string());
    if (train().select == Select::best && s().dir->owned()) s().dir->link_best(s().progress.best_step);
  }

  // Everything that may follow a step. True: the run is at its end.
  bool after_step(const StopSignals& stop) {
    const Progress& p = s().progress;
    const bool line = finished() || every(p.step, train().log_every);
    if (total.steps == 1) s().tuning->update();
    if (line || valid_due() || tasks_due() || save_due()) {
      const Timed timed{total, window};
      settle();
    }
    redraw();
    if (line) write_line();
    return conclude(stop);
  }
  // All steps are done, or validation has not become better for too long.
  bool finished() { return s().progress.step == train().steps || out_of_patience(); }
  bool out_of_patience() { return train().patience > 0 && s().progress.stale >= train().patience; }
  bool valid_due() { return s().valid && (s().progress.step == train().steps || every(s().progress.step, train().eval_every)); }
  bool tasks_due() { return s().tasks && (finished() || every(s().progress.step, s().config.eval.every)); }
  bool save_due() {
    const Progress& p = s().progress;
    return finished() || every(p.step, train().save_every) || (train().select == Select::best && p.best_step == p.step);
  }

  // What a step may still owe when its numbers are written: its validation and its checkpoint. True: the run is at its end.
  bool conclude(const StopSignals& stop) {
    Progress& p = s().progress;
    p.unvalidated = valid_due() || tasks_due();
    if (p.unvalidated) reading([&] { validate(stop); });
    const bool last = finished() && p.step > 0;
    if (last && !p.unvalidated && p.step < train().steps)
      log::info("ending at step {}: {} validations in a row without a lower loss than {:.4f} at step {}", p.step, p.stale, p.best_metric,
                p.best_step);
    // While steps are being skipped the weights are in doubt: no checkpoint of them pushes out a good one.
    if (!p.unvalidated && save_due() && (last || p.skipped_in_row == 0)) save(false);
    if (!data_ends && !p.unvalidated && (last || !asked_to_stop(stop))) return last;
    stop_here(stop, p.unvalidated ? " (its validation is still to be made)" : "");
    return true;
  }

  // Ends the run at the last step that is done.
  void stop_here(const StopSignals& stop, const std::string& note) {
    const Progress& p = s().progress;
    settle();
    if (saved != p.step) save(true);
    if (data_ends) tell_of_data();
    outcome.signal = asked_to_stop(stop);
    const char* name = outcome.signal == SIGINT ? "SIGINT" : "SIGTERM";
    if (p.step == 0)
      log::info("stopped by {} in the first step: there is nothing to save yet, and the run begins again with resume=auto", name);
    else
      log::info("stopped by {} after step {}{}; resume=auto goes on from here", name, p.step, note);
  }

  void tell_done() {
    const Progress& p = s().progress;
    log::info("done    {} steps  {}{}  {} tok/s", p.step,
              outcome.loss ? fmt::format("loss {:.4f}", *outcome.loss) : "no loss: all were skipped",
              outcome.valid_loss ? fmt::format("  valid {:.4f}", *outcome.valid_loss) : "", log::human_count(tok_s(total)));
    if (train().select == Select::best && p.best_step > 0)
      log::info("best    step {}  valid {:.4f}  {}", p.best_step, p.best_metric, (s().dir->path() / kBest).string());
  }

  // The loss of the model that is started from. False where a signal came.
  bool validate_start(const StopSignals& stop) {
    reading([&] { validation_loss(stop); });
    if (data_ends) tell_of_data();
    if (!asked_to_stop(stop)) return true;
    stop_here(stop, "");
    return false;
  }

  void go_on() {
    const StopSignals stop(s().dir->owned() ? kNotice : "",
                           s().parallel->several() ? StopSignals::Second::waits : StopSignals::Second::quits);
    const Progress& p = s().progress;
    peak = peak_flops(*s().ctx, s().model->type()) * static_cast<double>(s().config.ranks.size);
    if (const std::string slow = slow_micro_batch(s().config, peak); !slow.empty()) log::warning("{}", slow);
    std::error_code ignored;
    if (s().dir->owned()) fs::remove_all(s().dir->path() / kMerged, ignored);  // of an earlier end
    if (train().select == Select::best && s().dir->owned())
      s().dir->link_best(p.best_step);  // a process that was killed may have left another
    if (p.unvalidated && conclude(stop)) return;
    if (p.step == 0 && s().data.chat && s().valid && !validate_start(stop)) return;
    s().train->start(p.step);
    put_batch();
    if (data_ends) tell_of_data();
    do
      if (!step(stop)) return stop_here(stop, fmt::format(" (step {} was under way and is done again)", p.step + 1));
    while (!after_step(stop));
  }
};

Trainer::Trainer(const RunConfig& config, TrainerOptions options) : impl_(std::make_unique<Impl>()) {
  ::signal(SIGPIPE, SIG_IGN);  // whoever reads the messages may go
  if (config.parallel.trace > 0 && !works_as_ranks(config, parallel::group())) {
    const std::string why =
        fmt::format("parallel.trace={} draws how several processes work together, and this run has one", config.parallel.trace);
    check_usage(goes_on(config.run.resume), "{}; leave it out", why);
    log::warning("{}", why);  // which goes on, and may have been begun by several
  }
  impl_->session = open_session(config, options.force);
  impl_->options = std::move(options);
  for (int i = 0; i < 2; ++i) impl_->results.emplace_back(*impl_->session->ctx);
}

Trainer::~Trainer() {
  if (!std::uncaught_exceptions()) log::close_file();  // an error that ends the run belongs in its log
}

const RunConfig& Trainer::config() const { return impl_->session->config; }
Model& Trainer::model() { return *impl_->session->model; }

Outcome Trainer::run() {
  Impl& t = *impl_;
  const Progress& p = t.s().progress;
  const std::int64_t steps = t.train().steps;
  t.saved = p.step;
  t.outcome.loss = p.last("loss");
  if (t.s().valid) t.outcome.valid_loss = p.last("eval_loss");
  if (!t.finished() || p.unvalidated) {
    t.go_on();
  } else {
    if (t.s().dir->owned()) {
      tidy_checkpoints(*t.s().dir, t.train(), p);
      if (t.train().select == Select::best) t.s().dir->link_best(p.best_step);
    }
    log::info("nothing left to do: {}",
              p.step == steps ? fmt::format("all {} steps are done", steps)
                              : fmt::format("the run ended at step {}, as train.patience={} asks", p.step, t.train().patience));
  }
  t.outcome.step = p.step;
  if (t.total.steps > 0) t.outcome.tok_s = t.tok_s(t.total);
  if (t.saved > 0) t.outcome.checkpoint = t.s().dir->checkpoint(t.saved).string();
  if (t.finished() && !t.outcome.signal) merge_adapters(t.s());
  if (p.best_step > 0) t.outcome.best = {p.best_step, p.best_metric};
  if (t.finished() && t.total.steps > 0 && !t.outcome.signal) t.tell_done();
  return t.outcome;
}

}  // namespace bhyt::train
