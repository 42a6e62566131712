#include "generate/engine.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>

#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "generate/stepper.h"
#include "machine/machine.h"

namespace bhyt {

void check_sampling(const Sampling& s) {
  const auto finite = [](double x) { return std::isfinite(static_cast<float>(x)); };  // as it is computed with
  check_usage(s.temperature >= 0 && finite(s.temperature), "temperature must be at least 0, got {}", s.temperature);
  check_usage(s.top_k >= 0, "top-k must be at least 0 (0 = all), got {}", s.top_k);
  check_usage(s.top_p > 0 && s.top_p <= 1, "top-p must be greater than 0 and at most 1, got {}", s.top_p);
  check_usage(s.min_p >= 0 && s.min_p <= 1, "min-p must be from 0 to 1, got {}", s.min_p);
  constexpr double kMost = 1e30;  // beyond it logits would be infinite
  check_usage(s.repetition_penalty >= 1 / kMost && s.repetition_penalty <= kMost,
              "repetition-penalty must be greater than 0, from {:g} to {:g} (1 = none), got {}", 1 / kMost, kMost, s.repetition_penalty);
}

std::int64_t affordable_pages(const Model& model) {
  const double share = model.device().is_cuda() ? 0.8 : 0.5, free = static_cast<double>(free_memory(model.device()));
  const auto bytes = static_cast<double>(KvPages::page_bytes(model.config(), model.type()));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(share * free / bytes), 1, INT32_MAX / kPageTokens);
}

namespace {

constexpr std::int64_t kLeastPages = 4096;  // of the default, where there is memory for them

// The options with every default filled in.
EngineOptions settle(EngineOptions o, const Model& model) {
  const bool gpu = model.device().is_cuda();
  for (const std::int64_t n : {o.pages, o.tokens, o.sequences, o.length})
    check_usage(n >= 0, "expected pages, tokens, sequences and length of at least 0 (0 = default), got {}", n);
  if (o.tokens == 0) o.tokens = gpu ? 2048 : 384;
  if (o.sequences == 0) o.sequences = gpu ? 256 : 32;
  o.sequences = std::min(o.sequences, o.tokens);
  if (o.pages == 0)
    o.pages = std::min(affordable_pages(model), std::max(kLeastPages, o.sequences * KvPages::pages_for(trained_length(model.config()))));
  const std::int64_t room = o.pages * kPageTokens;
  o.length = o.length == 0 ? room : std::min(o.length, room);
  if (!o.ahead) o.ahead = gpu;
  return o;
}

}  // namespace

// The engine's thread and what it shares with those who submit.
class Engine::Worker {
 public:
  Worker(Context& ctx, const Model& model, const EngineOptions& options)
      : model_(model),
        options_(settle(options, model)),
        scheduler_(
            {.tokens = options_.tokens, .sequences = options_.sequences, .pages = options_.pages, .copies = !model.device().is_cuda()}),
        stepper_(ctx, model,
                 {.tokens = options_.tokens, .sequences = options_.sequences, .pages = options_.pages, .length = options_.length}),
        thread_([this] { work(); }) {
    count();
  }
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  const EngineOptions& options() const { return options_; }
  const Model& model() const { return model_; }

  void submit(std::vector<std::shared_ptr<Sequence>> fresh) {
    {
      const std::lock_guard lock(mutex_);
      bhyt::check(broken_.empty(), "the engine has stopped: {}", broken_);
      for (auto& s : fresh) inbox_.push_back(std::move(s));
    }
    wake_.notify_all();
  }
  EngineCounters counters() const {
    const std::lock_guard lock(mutex_);
    EngineCounters c = counters_;
    c.waiting += std::ssize(inbox_);
    return c;
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return inbox_.empty() && !working_; });
  }

 private:
  void work();
  void break_down(const std::string& why);
  bool take_inbox();
  void step();
  void collect();
  void take(Stepper::Outcome& outcome);
  void take_token(Sequence& s, const AnswerToken& token);
  void warn_if_beyond(std::int64_t length);
  void count();

  const Model& model_;
  EngineOptions options_;
  Scheduler scheduler_;
  Stepper stepper_;
  bool warned_ = false;

  mutable std::mutex mutex_;  // for what follows
  std::condition_variable wake_, idle_;
  std::vector<std::shared_ptr<Sequence>> inbox_;
  bool closing_ = false, working_ = false;
  std::string broken_;
  EngineCounters counters_;

  std::thread thread_;  // last: it uses all the others
};

// False when the engine is to end. Waits while there is nothing to do.
bool Engine::Worker::take_inbox() {
  std::unique_lock lock(mutex_);
  const bool idle = scheduler_.idle() && stepper_.in_flight() == 0;
  if (idle && inbox_.empty()) {
    working_ = false;
    idle_.notify_all();
    wake_.wait(lock, [&] { return closing_ || !inbox_.empty(); });
  }
  for (auto& s : inbox_) scheduler_.add(std::move(s));
  counters_.waiting += std::ssize(inbox_);
  inbox_.clear();
  working_ = true;
  return !closing_;
}

void Engine::Worker::work() {
  leave_signals_to_main_thread();
  try {
    while (take_inbox()) {
      if (options_.interrupted && options_.interrupted()) scheduler_.end_all("");
      step();
      count();
    }
    scheduler_.end_all("");
  } catch (const std::exception& e) {
    break_down(e.what());
  } catch (...) {
    break_down("something that is not an error was thrown");
  }
}

// Nothing can be computed any more: everybody who waits is told why.
void Engine::Worker::break_down(const std::string& why) {
  scheduler_.end_all(why);
  count();
  const std::lock_guard lock(mutex_);
  broken_ = why;
  for (const auto& s : inbox_) s->answer->fail(broken_);
  inbox_.clear();
  working_ = false;
  idle_.notify_all();
}

void Engine::Worker::step() {
  const std::vector<Scheduler::Part> plan = scheduler_.plan();
  if (!plan.empty()) {
    for (const auto& part : plan) warn_if_beyond(part.first + part.count);
    stepper_.give(plan);
    scheduler_.share_pages(plan);
  }
  bhyt::check(!plan.empty() || stepper_.in_flight() > 0 || scheduler_.idle(),
              "[generate] expected room for the oldest of {} requests, got none", scheduler_.running() + scheduler_.waiting());
  const std::int64_t may_fly = *options_.ahead && !plan.empty() ? 1 : 0;
  while (stepper_.in_flight() > may_fly) collect();
  scheduler_.remove_over();
}

void Engine::Worker::collect() {
  for (Stepper::Outcome& o : stepper_.collect())
    if (!o.sequence->answer->over()) take(o);
}

void Engine::Worker::take(Stepper::Outcome& o) {
  Sequence& s = *o.sequence;
  for (const TokenScore& score : o.scores) s.answer->push(score);
  if (o.chose)
    take_token(s, o.token);
  else if (o.last && s.request.max_tokens == 0)
    s.answer->finish(Finish::length);
}

void Engine::Worker::take_token(Sequence& s, const AnswerToken& token) {
  if (token.id < 0)
    return s.answer->fail(
        fmt::format("the logits behind token {} are not finite numbers: the weights may be damaged", std::ssize(s.tokens)));
  if (std::find(s.request.stops.begin(), s.request.stops.end(), token.id) != s.request.stops.end()) return s.answer->finish(Finish::stop);
  s.tokens.push_back(token.id);
  if (!s.answer->push(token)) return;  // cancelled meanwhile
  if (s.request.stop && s.request.stop(token.id)) return s.answer->finish(Finish::stop);
  if (std::ssize(s.tokens) == s.most()) return s.answer->finish(Finish::length);
  if (s.slot >= 0) scheduler_.learn_pages(s);
}

// Said once, at the first text that goes beyond the length the model was trained at.
void Engine::Worker::warn_if_beyond(std::int64_t length) {
  const std::int64_t trained = trained_length(model_.config());
  if (warned_ || trained <= 0 || length <= trained) return;
  warned_ = true;
  log::warning("the text has gone beyond the {} tokens that the model was trained at: what follows may be worse", trained);
}

void Engine::Worker::count() {
  const PagePool& pool = scheduler_.pool();
  const EngineCounters now{.pages_used = pool.used(),
                           .pages_cached = pool.cached(),
                           .pages_free = pool.free(),
                           .running = scheduler_.running(),
                           .waiting = scheduler_.waiting(),
                           .steps = stepper_.steps,
                           .computed_tokens = stepper_.tokens,
                           .shared_tokens = scheduler_.shared_tokens(),
                           .evictions = scheduler_.evictions()};
  const std::lock_guard lock(mutex_);
  counters_ = now;
}

Engine::Engine(Context& ctx, const Model& model, const EngineOptions& options) : worker_(std::make_unique<Worker>(ctx, model, options)) {}
Engine::~Engine() = default;

std::int64_t Engine::longest() const { return worker_->options().length; }
EngineCounters Engine::counters() const { return worker_->counters(); }
void Engine::wait_until_idle() { worker_->wait_until_idle(); }

namespace {

void check_targets(const Request& r, std::int64_t vocab) {
  std::int64_t together = 0;  // behind one token
  for (std::size_t i = 0; i < r.targets.size(); ++i) {
    const auto [behind, id] = r.targets[i];
    const std::int32_t last = i > 0 ? r.targets[i - 1].behind : 0;
    check_usage(id >= 0 && id < vocab, "target {} is not below the model's vocabulary of {}", id, vocab);
    check_usage(behind >= last && behind < std::ssize(r.prompt),
                "expected targets in the order of the {} tokens of the prompt, got one behind token {} after one behind token {}",
                r.prompt.size(), behind, last);
    together = i > 0 && behind == last ? together + 1 : 1;
    check_usage(together <= kTargetsOfAToken, "expected at most {} targets behind one token, got more behind token {}", kTargetsOfAToken,
                behind);
  }
}

}  // namespace

void Engine::check(const Request& r) const {
  const std::int64_t vocab = worker_->model().config().vocab, length = std::ssize(r.prompt);
  check_usage(length > 0, "the prompt is empty: give at least one token");
  check_usage(r.max_tokens >= 0, "max-tokens must be at least 0, got {}", r.max_tokens);
  check_sampling(r.sampling);
  for (const std::int32_t id : r.prompt)
    check_usage(id >= 0 && id < vocab, "token id {} of the prompt is not below the model's vocabulary of {}", id, vocab);
  check_targets(r, vocab);
  const EngineOptions& o = worker_->options();
  check_usage(r.max_tokens <= o.length - length, "a prompt of {} tokens and {} new ones are too long: {} {} tokens", length, r.max_tokens,
              o.length < o.pages * kPageTokens ? "the limit is" : "the memory for keys and values holds", o.length);
}

Answer Engine::submit(Request request) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return std::move(submit_all(std::move(one)).front());
}

std::vector<Answer> Engine::submit_all(std::vector<Request> requests) {
  for (const Request& r : requests) check(r);
  std::vector<Answer> answers;
  std::vector<std::shared_ptr<Sequence>> sequences;
  for (Request& r : requests) {
    const auto state = std::make_shared<AnswerState>();
    answers.emplace_back(state);
    if (r.max_tokens == 0 && r.targets.empty())
      state->finish(Finish::length);  // nothing was asked for
    else
      sequences.push_back(std::make_shared<Sequence>(std::move(r), state));
  }
  worker_->submit(std::move(sequences));
  return answers;
}

}  // namespace bhyt
