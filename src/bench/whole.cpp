// The whole model: training steps.
#include <fmt/format.h>
#include <sys/resource.h>

#include "bench/measure.h"
#include "bench/products.h"
#include "core/profile.h"
#include "core/rng.h"
#include "model/train_pass.h"
#include "ops/adamw/adamw.h"
#include "train/optimizer.h"

namespace bhyt::bench {

namespace {

OwnedTensor random_tokens(const Settings& s, std::uint64_t seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(s.batch * s.seq));
  Rng rng(seed);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(s.model.vocab)));
  OwnedTensor t(s.ctx, DType::i32, {s.batch, s.seq});
  from_host(s.ctx, ids.data(), t);
  return t;
}

double peak_rss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

// A training step as the trainer does it.
class Step {
 public:
  explicit Step(const Settings& s)
      : model(make_model(s)),
        ctx_(s.ctx),
        gradients_(ctx_, model->parameters()),
        optimizer_(train::make_optimizer({}, model->parameters())),
        pass_(ctx_, *model, {.batch = s.batch, .seq = s.seq}),
        loss_(ctx_, DType::f32, {1}),
        norm_(ctx_, DType::f32, {1}),
        tokens_(random_tokens(s, 1)),
        targets_(random_tokens(s, 2)),
        batch_{.batch = s.batch, .seq = s.seq, .tokens = tokens_, .targets = targets_} {
    pass_.warm_up(gradients_, s.batch, false);
  }
  void operator()() {
    const auto n = static_cast<double>(batch_.batch * batch_.seq);
    const Settled settled(ctx_, step_ >= 2);
    zero(ctx_, loss_);
    pass_.run(batch_,
              {.gradients = gradients_, .loss = loss_, .scale = static_cast<float>(1 / n), .tokens_in_step = n, .accumulate = false});
    optimizer_->gradient_norm(gradients_.arena, norm_);
    optimizer_->step({.lr = 1e-4, .number = ++step_, .gradients = gradients_.arena, .grad_norm = norm_, .loss = {}});
  }
  std::unique_ptr<Model> model;

 private:
  Context& ctx_;
  Gradients gradients_;
  std::unique_ptr<train::Optimizer> optimizer_;
  TrainPass pass_;
  OwnedTensor loss_, norm_, tokens_, targets_;
  Batch batch_;
  std::int64_t step_ = 0;
};

}  // namespace

std::vector<Result> bench_train(const Settings& s) {
  Step step(s);
  step();
  const double rss = peak_rss();  // before the products below take memory of their own
  const auto tokens = static_cast<double>(s.batch * s.seq);
  const Products alone(s, s.batch * s.seq, s.batch * s.seq, true);
  // Profiling waits for a GPU at every boundary: there it has a step of its own, on a CPU every measured step is profiled.
  profile::Seconds spent{};
  int profiled = 0;
  const auto profiled_step = [&] {
    s.ctx.profile().start();
    step();
    const profile::Seconds seconds = s.ctx.profile().stop();
    for (std::size_t i = 0; i < seconds.size(); ++i) spent[i] += seconds[i];
    ++profiled;
  };
  const bool gpu = s.ctx.device().is_cuda();
  const std::function<void()> job = gpu ? std::function<void()>([&] { step(); }) : profiled_step;
  const std::vector<double> t = take_turns(s.ctx, {job, [&] { alone.run(); }}, s.reps);
  if (gpu) profiled_step();
  Result r{.test = fmt::format("train {} {}×{} {}", model_name(s), s.batch, s.seq, s.model.norm.method),
           .tok_s = tokens / t[0],
           .ms = t[0] * 1e3,
           .limit = tokens / t[1],
           .limit_name = "its matrix products"};
  for (std::size_t i = 1; i <= profile::kKinds; ++i) {
    const auto kind = static_cast<profile::Kind>(i % profile::kKinds);  // "other" last
    r.shares.push_back({.name = profile::name_of(kind), .ms = spent[static_cast<std::size_t>(kind)] * 1e3 / profiled});
  }
  r.parts.emplace_back("parameters", static_cast<double>(step.model->parameters().count()));
  r.parts.emplace_back("tflops", flops_per_token(s.model, s.seq) * tokens / t[0] * 1e-12);
  if (!gpu) r.parts.emplace_back("peak_rss_bytes", rss);
  return {r};
}

}  // namespace bhyt::bench
