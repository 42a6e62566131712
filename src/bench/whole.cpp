// The whole model: training steps, prompts, single tokens.
#include <fmt/format.h>
#include <sys/resource.h>

#include "bench/measure.h"
#include "core/profile.h"
#include "core/rng.h"
#include "model/decode_pass.h"
#include "model/train_pass.h"
#include "ops/adamw/adamw.h"
#include "train/optimizer.h"

namespace bhyt::bench {

namespace {

std::string model_name(const Settings& s) {
  return s.model.preset.empty() ? fmt::format("d{}×{}", s.model.d, s.model.layers) : s.model.preset;
}

OwnedTensor random_tokens(const Settings& s, std::uint64_t seed) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(s.batch * s.seq));
  Rng rng(seed);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(s.model.vocab)));
  OwnedTensor t(s.ctx, DType::i32, {s.batch, s.seq});
  from_host(s.ctx, ids.data(), t);
  return t;
}

std::unique_ptr<Model> make_model(const Settings& s) {
  auto model = std::make_unique<Model>(s.ctx, s.model, s.dtype);
  model->parameters().initialize(0);
  model->refresh_constants();
  return model;
}

// The matrix products of a pass and nothing else, in its order and sizes. The head's rows are cut as a large vocabulary forces any
// implementation to.
class Products {
 public:
  Products(const Settings& s, std::int64_t tokens, std::int64_t head_tokens, bool backward) : backward_(backward) {
    for (Product p : products(s.model, tokens)) {
      pieces_.push_back(1);
      if (p.name == "head") {
        const std::int64_t fits = std::max<std::int64_t>(1, (std::int64_t{256} << 20) / (p.n * 4));
        pieces_.back() = (head_tokens + fits - 1) / fits;
        p.m = (head_tokens + pieces_.back() - 1) / pieces_.back();
      }
      list_.push_back(p);
      operands_.push_back(std::make_unique<Operands>(s.ctx, p, s.dtype, backward));
    }
  }
  void run() const {
    for (std::int64_t l = 0; l < list_[0].count; ++l)
      for (std::size_t i = 0; i + 1 < list_.size(); ++i) operands_[i]->forward();
    for (std::int64_t i = 0; i < pieces_.back(); ++i) {
      operands_.back()->forward();
      if (backward_) back(*operands_.back());
    }
    if (!backward_) return;
    for (std::int64_t l = 0; l < list_[0].count; ++l)
      for (std::size_t i = list_.size() - 1; i-- > 0;) back(*operands_[i]);
  }

 private:
  static void back(const Operands& o) {
    o.backward_x();
    o.backward_w();
  }
  bool backward_;
  std::vector<Product> list_;
  std::vector<std::int64_t> pieces_;
  std::vector<std::unique_ptr<Operands>> operands_;
};

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

// One sequence, fed piece by piece, its logits brought to the host.
struct Decoder {
  Context& ctx;
  KvCache cache;
  DecodePass pass;
  std::vector<float> logits;
  Decoder(const Settings& s, const Model& model, std::int64_t capacity)
      : ctx(s.ctx),
        cache(ctx, model, 1, capacity),
        pass(ctx, model, cache, s.seq),
        logits(static_cast<std::size_t>(model.config().vocab)) {}
  void feed(std::span<const std::int32_t> tokens) {
    const DecodePass::Piece piece{.sequence = 0, .tokens = tokens};
    to_host(ctx, pass.run({&piece, 1}), logits.data());
  }
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
    r.parts.emplace_back(fmt::format("{} ms", profile::name_of(kind)), spent[static_cast<std::size_t>(kind)] * 1e3 / profiled);
  }
  r.parts.emplace_back("parameters", static_cast<double>(step.model->parameters().count()));
  r.parts.emplace_back("tflops", flops_per_token(s.model, s.seq) * tokens / t[0] * 1e-12);
  if (!gpu) r.parts.emplace_back("peak_rss_bytes", rss);
  return {r};
}

std::vector<Result> bench_prompt(const Settings& s) {
  const auto model = make_model(s);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(s.seq), 1);
  Decoder decoder(s, *model, s.seq);
  const Products alone(s, s.seq, 1, false);
  const auto prompt = [&] {
    decoder.cache.forget(0);
    decoder.feed(ids);
  };
  const std::vector<double> t = take_turns(s.ctx, {prompt, [&] { alone.run(); }}, s.reps);
  return {{.test = fmt::format("prompt {} {} {}", model_name(s), s.seq, s.model.norm.method),
           .tok_s = static_cast<double>(s.seq) / t[0],
           .ms = t[0] * 1e3,
           .limit = static_cast<double>(s.seq) / t[1],
           .limit_name = "its matrix products"}};
}

std::vector<Result> bench_decode(const Settings& s) {
  const auto model = make_model(s);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(s.seq), 1);
  // A token has to read every weight once; the embedding is the head's (tied) or one row.
  const auto weights = static_cast<double>(model->parameters().value_bytes());
  const OwnedTensor from = filled(s.ctx, s.dtype, {model->parameters().count()}), to(s.ctx, s.dtype, {model->parameters().count()});
  Decoder decoder(s, *model, s.seq + kDecoded);
  decoder.feed(ids);
  const std::vector<double> t = take_turns(s.ctx, {[&] { decoder.feed({ids.data(), 1}); }, [&] { copy_all(s.ctx, from, to); }}, s.reps);
  const double bandwidth = 2 * static_cast<double>(from.t.bytes()) / t[1];
  return {{.test = fmt::format("decode {} after {} {}", model_name(s), s.seq, s.model.norm.method),
           .tok_s = 1 / t[0],
           .ms = t[0] * 1e3,
           .limit = bandwidth / weights,
           .limit_name = "reading the weights at copy speed",
           .parts = {{"weight_bytes", weights}}}};
}

}  // namespace bhyt::bench
