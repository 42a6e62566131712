// Generation: prompts, and single tokens of several sequences at a time.
#include <map>

#include "bench/products.h"
#include "bench/sequences.h"
#include "core/parts.h"

namespace bhyt::bench {

namespace {

// Where the time of a job goes, the quickest of some. cache: bytes that attention reads; speed: bytes a second to compare with, 0 where
// bytes bound nothing.
std::vector<Share> breakdown(Context& ctx, const std::function<void()>& job, int times, double cache = 0, double speed = 0) {
  std::vector<Share> quickest;
  double least = 0;
  for (int i = 0; i < times; ++i) {
    double sum = 0;
    std::vector<Share> shares;
    for (const profile::Part& p : profile::parts_of(ctx, job)) {
      const double bytes = p.name == "attention" ? cache : p.bytes;
      shares.push_back({.name = p.name, .ms = p.seconds * 1e3, .bandwidth = speed > 0 ? bytes / p.seconds / speed : 0});
      sum += p.seconds;
    }
    if (i > 0 && sum >= least) continue;
    least = sum;
    quickest = std::move(shares);
  }
  return quickest;
}

// Tokens per second of each repetition.
Spread rates_of(std::vector<double> seconds, double tokens) {
  for (double& t : seconds) t = tokens / t;
  return spread_of(seconds);
}

// What a step has to read of the weights: those of its products once, as products of so many rows read them.
double product_bytes(const Model& model, std::int64_t rows) {
  const bool few = rows <= kFewRows && FewRowsPass::takes(model);
  const Weights& w = few ? model.few_rows_weights() : model.weights();
  const auto bytes = [](const Tensor& t) { return static_cast<double>(t.rows() * t.ld) * static_cast<double>(size_of(t.dtype)); };
  double sum = bytes(w.head);
  for (const LayerWeights& l : w.layers) sum += bytes(l.qkv) + bytes(l.o) + bytes(l.gate_up) + bytes(l.down);
  return sum;
}

// Weights in memory, each once: few rows may read others than many do.
double held_bytes(const Model& model) {
  std::map<const void*, std::size_t> held;
  const auto hold = [&](const Tensor& t) { held[t.data] = static_cast<std::size_t>(t.rows() * t.ld) * size_of(t.dtype); };
  for (const Weights* w : {&model.weights(), &model.few_rows_weights()}) {
    hold(w->embedding);
    hold(w->head);
    for (const LayerWeights& l : w->layers)
      for (const Tensor& t : {l.qkv, l.o, l.gate_up, l.down}) hold(t);
  }
  for (const Parameter& p : model.parameters().list())
    if (p.shape.size() < 2) hold(p.value);
  double sum = 0;
  for (const auto& [place, bytes] : held) sum += static_cast<double>(bytes);
  return sum;
}

// What a table says of the model.
void add_size(Result& r, const Model& model) {
  r.parts.emplace_back("parameters", static_cast<double>(model.parameters().count()));
  r.parts.emplace_back("held_bytes", held_bytes(model));
}

}  // namespace

std::vector<Result> bench_prompt(const Settings& s) {
  const auto model = make_model(s);
  model->repack(s.repack);
  const std::int64_t tokens = s.batch * s.seq, rows = prompt_rows(s.batch, s.seq);
  Sequences sequences(s, *model, rows);
  const Products alone(s, rows, std::max<std::int64_t>(1, rows / s.seq), false);
  std::vector<std::function<void()>> jobs{[&] { sequences.prompt(); }, [&] { alone.run(); }};
  // A prompt on the CPU has its products by row, which may be quicker than the library's.
  if (!s.ctx.device().is_cuda()) jobs.push_back([&] { alone.run(true); });
  const auto taken = take_all_turns(s.ctx, jobs, s.reps);
  const std::vector<double> t{median_of(taken[0]), std::min(median_of(taken[1]), median_of(taken.back()))};
  const auto n = static_cast<double>(tokens);
  Result r{.test = fmt::format("prompt {} {}×{} {}{}", model_name(s), s.batch, s.seq, s.model.norm.method, s.rounded()),
           .tok_s = n / t[0],
           .ms = t[0] * 1e3,
           .limit = static_cast<double>(rows) / t[1],
           .limit_name = "its matrix products",
           .shares = breakdown(
               s.ctx, [&] { sequences.prompt(); }, s.reps)};
  // A third of a training step, less the head, of which only last positions are counted.
  const double head = 2.0 * static_cast<double>(s.model.vocab * s.model.d);
  const double flops = (flops_per_token(s.model, s.seq) / 3 - head) * n + head * static_cast<double>(s.batch);
  add_size(r, *model);
  r.parts.emplace_back("tflops", flops / t[0] * 1e-12);
  r.rates = rates_of(taken[0], n);
  return {r};
}

std::vector<Result> bench_decode(const Settings& s) {
  const auto model = make_model(s);
  model->repack(s.repack);
  Sequences sequences(s, *model, std::max(s.batch, prompt_rows(s.batch, s.seq)));
  sequences.prompt();
  const double weights = product_bytes(*model, s.batch);
  const double cache = static_cast<double>(s.batch * s.seq) * static_cast<double>(KvPages::page_bytes(s.model, s.dtype)) / kPageTokens;
  const bool on_cpu = !s.ctx.device().is_cuda();
  const OwnedTensor from = filled(s.ctx, s.dtype, {model->parameters().count()}), to(s.ctx, s.dtype, {model->parameters().count()});
  std::vector<std::function<void()>> jobs{[&] { sequences.token(); }, [&] { copy_all(s.ctx, from, to); }};
  if (on_cpu)
    for (const int places : {1, 4}) jobs.push_back([&, places] { read_all(s.ctx, from, places); });
  const auto taken = take_all_turns(s.ctx, jobs, s.reps);
  const double seconds = median_of(taken[0]), n = static_cast<double>(s.batch), bytes = static_cast<double>(from.t.bytes());
  const double copying = 2 * bytes / median_of(taken[1]);
  // Two cores of some machines copy more bytes than they can read alone; a step reads.
  const double reading = on_cpu ? bytes / std::min(median_of(taken[2]), median_of(taken[3])) : copying;
  Result r{.test = fmt::format("decode {} {} after {} {}{}", model_name(s), s.batch, s.seq, s.model.norm.method, s.rounded()),
           .tok_s = n / seconds,
           .ms = seconds * 1e3,
           .limit = n * reading / (weights + cache),
           .limit_name = on_cpu ? "reading weights and cache" : "reading weights and cache at copy speed",
           .shares = breakdown(
               s.ctx, [&] { sequences.token(); }, s.reps, cache, reading)};
  add_size(r, *model);
  r.parts.emplace_back("weight_bytes", weights);
  r.parts.emplace_back("cache_bytes", cache);
  r.parts.emplace_back("copy_gb_s", copying * 1e-9);
  if (on_cpu) r.parts.emplace_back("read_gb_s", reading * 1e-9);
  r.rates = rates_of(taken[0], n);
  return {r};
}

}  // namespace bhyt::bench
