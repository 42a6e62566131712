// Generation through the engine, as users meet it: the paper's protocol, and requests of many lengths at once.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <utility>

#include "bench/products.h"
#include "bench/sequences.h"
#include "core/check.h"
#include "generate/engine.h"
#include "ops/gemm/tuning.h"
#include "ops/norm/methods.h"

namespace bhyt::bench {

namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Prompts that no other begins like: nothing of them is known before.
std::vector<std::int32_t> fresh_prompt(std::int64_t length, std::int64_t vocab, Rng& rng) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
  for (auto& id : ids) id = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab)));
  return ids;
}

// Texts of this length are no surprise to the model.
void allow(ModelConfig& model, std::int64_t length) { model.max_positions = model.norm.seq_len = length; }

double seconds_of(Engine& engine, std::vector<Request> requests) {
  const double start = seconds_now();
  for (Answer& a : engine.submit_all(std::move(requests))) (void)a.wait();
  return seconds_now() - start;
}

// Until all answers have so many tokens, for each of these lengths; the last one is all of them.
std::vector<double> seconds_until(Engine& engine, std::vector<Request> requests, const std::vector<std::int64_t>& lengths) {
  const double start = seconds_now();
  std::vector<Answer> answers = engine.submit_all(std::move(requests));
  std::vector<double> seconds;
  for (std::int64_t had = 0; const std::int64_t length : lengths) {
    for (Answer& a : answers)
      for (std::int64_t i = had; i < length; ++i)
        check(a.next().has_value(), "[bench] expected {} tokens, the answer ended after {}", length, i);
    had = length;
    seconds.push_back(seconds_now() - start);
  }
  return seconds;
}

// What the model alone takes for prompts and for the tokens behind them, each by itself.
struct OwnRates {
  double prompt = 0, decode = 0;  // tokens per second

  double tok_s(double prompt_tokens, double new_tokens) const { return new_tokens / (prompt_tokens / prompt + new_tokens / decode); }
};
OwnRates own_rates(const Settings& s, const Model& model, std::int64_t prompt, std::int64_t batch, std::int64_t context) {
  cuda::forget_products(s.ctx);  // those of an engine that is gone: their memory is, too
  Settings reading = s, writing = s;
  reading.batch = std::max<std::int64_t>(1, std::min<std::int64_t>(s.batch, kMostTokens / prompt));
  reading.seq = prompt;
  writing.batch = batch;
  writing.seq = context;
  OwnRates rates;
  {
    Sequences sequences(reading, model, prompt_rows(reading.batch, prompt));
    rates.prompt = static_cast<double>(reading.batch * prompt) / take_turns(s.ctx, {[&] { sequences.prompt(); }}, s.reps)[0];
  }
  Sequences sequences(writing, model, std::max(batch, prompt_rows(batch, context)));
  sequences.prompt();
  rates.decode = static_cast<double>(batch) / take_turns(s.ctx, {[&] { sequences.token(); }}, s.reps)[0];
  return rates;
}

// Trials of `timed` batches each, after some that nobody times. The shorter answers are how the longest begin.
std::vector<Result> generation(const Settings& s, const Model& model) {
  std::vector<std::int64_t> lengths = s.new_tokens;
  std::ranges::sort(lengths);
  lengths.erase(std::ranges::unique(lengths).begin(), lengths.end());
  std::vector<std::vector<double>> rates(lengths.size());
  {
    const std::int64_t pages = s.batch * KvPages::pages_for(s.seq + lengths.back());
    Engine engine(s.ctx, model, {.pages = pages, .sequences = s.batch});
    Rng rng(1);
    const auto batch = [&] {
      std::vector<Request> requests;
      for (std::int64_t i = 0; i < s.batch; ++i)
        requests.push_back({.prompt = fresh_prompt(s.seq, s.model.vocab, rng), .max_tokens = lengths.back()});
      return seconds_until(engine, std::move(requests), lengths);
    };
    for (int i = 0; i < s.warmup; ++i) (void)batch();
    for (int r = 0; r < s.reps; ++r) {
      std::vector<double> spent(lengths.size());
      for (int i = 0; i < s.timed; ++i) std::ranges::transform(spent, batch(), spent.begin(), std::plus<>());
      for (std::size_t n = 0; n < lengths.size(); ++n) rates[n].push_back(static_cast<double>(s.batch * lengths[n] * s.timed) / spent[n]);
    }
  }
  std::vector<Result> results;
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const auto tokens = static_cast<double>(s.batch * lengths[n]);
    const Spread spread = spread_of(rates[n]);
    const OwnRates own = own_rates(s, model, s.seq, s.batch, s.seq + lengths[n] / 2);
    results.push_back(
        {.test = fmt::format("generation {} {}×{}+{} {}{}", model_name(s), s.batch, s.seq, lengths[n], s.model.norm.method, s.rounded()),
         .tok_s = spread.mean,
         .ms = tokens / spread.mean * 1e3,
         .limit = own.tok_s(static_cast<double>(s.batch * s.seq), tokens),
         .limit_name = "prompts and tokens at their own rates"});
    results.back().rates = spread;
  }
  return results;
}

}  // namespace

std::vector<Result> bench_generation(const Settings& s) {
  std::vector<Result> results;
  const auto measure = [&](const std::string& name) {
    Settings one = s;
    one.model.norm.method = name;
    allow(one.model, s.seq + *std::ranges::max_element(s.new_tokens));
    const auto model = make_model(one);
    model->repack(s.repack);
    std::ranges::move(generation(one, *model), std::back_inserter(results));
  };
  if (s.all_methods)
    for (const Method& m : methods()) measure(std::string(m.name));
  else
    measure(s.model.norm.method);
  return results;
}

std::vector<Result> bench_requests(const Settings& given) {
  Settings s = given;
  allow(s.model, 2 * s.seq);
  const auto model = make_model(s);
  model->repack(s.repack);
  Rng rng(1);
  std::vector<Request> requests;
  double read = 0, written = 0, contexts = 0;
  for (std::int64_t i = 0; i < s.requests; ++i) {
    const auto between = [&](std::int64_t from, std::int64_t to) {
      return from + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(to - from + 1)));
    };
    const std::int64_t prompt = between(std::max<std::int64_t>(1, s.seq / 32), s.seq),
                       answer = between(std::max<std::int64_t>(1, s.seq / 64), std::max<std::int64_t>(1, s.seq / 2));
    requests.push_back({.prompt = fresh_prompt(prompt, s.model.vocab, rng), .max_tokens = answer});
    read += static_cast<double>(prompt);
    written += static_cast<double>(answer);
    contexts += static_cast<double>(answer) * (static_cast<double>(prompt) + static_cast<double>(answer) / 2);
  }
  double spent = 0, steps = 0;
  {
    Engine engine(s.ctx, *model, {});
    (void)seconds_of(engine, {{.prompt = fresh_prompt(s.seq, s.model.vocab, rng), .max_tokens = 8}});
    const std::int64_t before = engine.counters().steps;
    spent = seconds_of(engine, std::move(requests));
    engine.wait_until_idle();
    steps = static_cast<double>(engine.counters().steps - before);
  }
  const auto batch = std::max<std::int64_t>(1, std::llround(written / steps)),
             context = std::max<std::int64_t>(1, std::llround(contexts / written));
  const OwnRates own = own_rates(s, *model, std::min<std::int64_t>(s.seq, 512), batch, context);
  Result r{.test = fmt::format("requests {} {} of up to {}+{} {}{}", model_name(s), s.requests, s.seq, s.seq / 2, s.model.norm.method,
                               s.rounded()),
           .tok_s = written / spent,
           .ms = spent * 1e3,
           .limit = own.tok_s(read, written),
           .limit_name = "prompts and tokens at their own rates"};
  r.parts = {{"prompt_tokens", read},
             {"new_tokens", written},
             {"steps", steps},
             {"mean_batch", static_cast<double>(batch)},
             {"mean_context", static_cast<double>(context)},
             {"prompt_tok_s", own.prompt},
             {"decode_tok_s", own.decode}};
  return {r};
}

}  // namespace bhyt::bench
