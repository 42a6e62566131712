// A small model under any method, rows of tokens for it, and one training step as often as a test wants it.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "model/train_pass.h"
#include "ops/norm/methods.h"

namespace bhyt::testing {

constexpr int kSeq = 9;
using Rows = std::vector<std::vector<int>>;  // kSeq + 1 tokens each

// Head and embedding are one where the number of layers is even.
inline ModelConfig small_config(const std::string& method, std::int64_t layers) {
  ModelConfig c;
  c.d = 12, c.layers = layers, c.heads = 4, c.kv_heads = 2, c.head_dim = 6, c.mlp = 10, c.vocab = 23;
  c.tied = layers % 2 == 0;
  c.rope_theta = 100;
  c.init_std = 0.3;
  c.norm.method = method;
  c.norm.seq_len = kSeq;
  return c;
}

inline Rows draw_rows(std::int64_t vocab, int rows, std::uint64_t seed = 3) {
  Rng rng(seed);
  Rows out(static_cast<std::size_t>(rows), std::vector<int>(kSeq + 1));
  for (auto& r : out)
    for (int& t : r) t = static_cast<int>(rng.below(static_cast<std::uint64_t>(vocab)));
  return out;
}

// Tokens and targets of some rows on a context's device.
struct Tokens {
  OwnedTensor tokens, targets;
  Batch batch;
  Tokens(Context& ctx, const Rows& rows)
      : tokens(ctx, DType::i32, {std::ssize(rows), kSeq}), targets(ctx, DType::i32, {std::ssize(rows), kSeq}) {
    std::vector<std::int32_t> in, out;
    for (const auto& r : rows) in.insert(in.end(), r.begin(), r.end() - 1), out.insert(out.end(), r.begin() + 1, r.end());
    from_host(ctx, in.data(), tokens);
    from_host(ctx, out.data(), targets);
    batch.batch = std::ssize(rows), batch.seq = kSeq, batch.tokens = tokens, batch.targets = targets;
  }
};

// Initial values, then everything that starts at a constant is moved off it, so that no gradient is tested at a special point.
inline std::unique_ptr<Model> make_model(Context& ctx, const ModelConfig& c, DType type = DType::f32, const Frozen& frozen = {},
                                         const LoraConfig& lora = {}) {
  auto m = std::make_unique<Model>(ctx, c, type, frozen, lora);
  m->parameters().initialize(1);
  Rng own(9), of_adapters(10);  // the model's own values are the same with adapters and without
  for (const Parameter& p : m->parameters().list()) {
    if (p.init_std > 0) continue;
    auto v = m->parameters().read_value(p);
    for (float& e : v) e += static_cast<float>(p.adapter() ? 0.3 * of_adapters.normal() : 0.1 * own.normal());
    m->parameters().write_value(p, v.data());
  }
  m->refresh_constants();
  return m;
}

// One column of a LayerNorm, of the second layer's first site.
inline void set_layernorm(Model& m, std::size_t column, float gain, float bias) {
  for (const auto& [name, value] : {std::pair{"weight", gain}, {"bias", bias}}) {
    const Parameter& p = m.parameters().at(std::string("model.layers.1.input_layernorm.") + name);
    auto values = m.parameters().read_value(p);
    values[column] = value;
    m.parameters().write_value(p, values.data());
  }
}

// Every parameter's values by name, as the reference model takes them.
inline std::map<std::string, std::vector<double>> weights_of(const Model& m) {
  std::map<std::string, std::vector<double>> w;
  for (const Parameter& p : m.parameters().list()) {
    const auto v = m.parameters().read_value(p);
    w[p.name].assign(v.begin(), v.end());
  }
  return w;
}

inline std::vector<float> on_host(Context& ctx, const Tensor& t) {
  std::vector<float> v(static_cast<std::size_t>(t.size()));
  to_host(ctx, t, v.data());
  return v;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Result {
  double loss = 0;               // mean over the tokens
  std::vector<float> gradients;  // the whole arena
  std::vector<float> of(const Parameter& p) const { return {gradients.begin() + p.offset, gradients.begin() + p.offset + p.size}; }
};

inline bool same_bits(const Result& a, const Result& b) { return a.loss == b.loss && same_bits(a.gradients, b.gradients); }

// Forward and backward over the same rows, again and again on the same memory.
class TrainingStep {
 public:
  TrainingStep(Context& ctx, const Model& model, const Rows& rows, TrainPass::Shape shape = {})
      : gradients(ctx, model.parameters()),
        pass(ctx, model, {std::max(shape.batch, std::ssize(rows)), kSeq, shape.recompute}),
        ctx_(ctx),
        tokens_(ctx, rows),
        loss_(ctx, DType::f32, {1}),
        count_(static_cast<double>(rows.size() * kSeq)) {}

  // What the gradients hold before is overwritten, unless `accumulate`.
  Result run(bool accumulate = false, std::function<void(std::int64_t)> layer_done = {}) {
    zero(ctx_, loss_);
    pass.run(tokens_.batch, {.gradients = gradients,
                             .loss = loss_,
                             .scale = static_cast<float>(1 / count_),
                             .tokens_in_step = count_,
                             .with_aux = true,
                             .accumulate = accumulate,
                             .dropout_seed = dropout_seed,
                             .layer_done = std::move(layer_done)});
    return {on_host(ctx_, loss_)[0] / count_, on_host(ctx_, gradients.arena)};
  }
  void fill_gradients(float value) {
    const std::vector<float> all(static_cast<std::size_t>(gradients.arena.t.size()), value);
    from_host(ctx_, all.data(), gradients.arena);
  }

  Gradients gradients;
  TrainPass pass;
  std::uint64_t dropout_seed = 0;

 private:
  Context& ctx_;
  Tokens tokens_;
  OwnedTensor loss_;
  double count_;
};

// Gradients of one step, added to zeros.
inline Result gradients_of(Context& ctx, const Model& m, const Rows& rows, TrainPass::Shape shape = {}) {
  return TrainingStep(ctx, m, rows, shape).run(true);
}

}  // namespace bhyt::testing
