#include "model/train_pass.h"

#include <bit>
#include <limits>

#include "core/check.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/gemm/tuning.h"
#include "ops/rows/rows.h"

namespace bhyt {

namespace {

// The first layer with anything to train, 0 = embedding: below it no gradient is asked for.
std::int64_t lowest_trained(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters)  // layer by layer
    if (!p.frozen) return p.layer;
  return std::numeric_limits<std::int64_t>::max();
}

ActivationPlan plan_of(const TrainPass::Shape& s, const std::vector<Parameter>& parameters) {
  return {
      .batch = s.batch, .seq = s.seq, .backward = true, .lowest = lowest_trained(parameters), .recompute = s.recompute, .lists = s.lists};
}

float dropout_of(const Model& m) { return m.lora().rank > 0 ? static_cast<float>(m.lora().dropout) : 0; }

// Whether the gradients of matrices are written, whatever they held.
bool anew(const TrainPass::Step& step) { return !step.accumulate || step.matrices_anew; }

}  // namespace

Gradients::Gradients(Context& ctx, const Parameters& parameters) : arena(ctx, DType::f32, {parameters.arena_size()}) {
  zero(ctx, arena);
  vectors = Tensor(arena.t.data, DType::f32, ctx.device(), {parameters.vectors_size()});
  weights = parameters.bind(arena);
}

TrainPass::TrainPass(Context& ctx, const Model& model, const Shape& shape)
    : ctx_(ctx), model_(model), act_(ctx, model, plan_of(shape, model.parameters().list())) {
  check(!model.repacked(), "[train] expected a model as it was loaded, got one that is repacked for generating");
}

std::size_t TrainPass::planned_bytes(const ModelConfig& config, DType type, Device device, const Shape& shape, const LoraConfig& lora) {
  return Activations::bytes(config, type, device, plan_of(shape, parameter_list(config, lora)), lora);
}

MemoryUse TrainPass::memory() const {
  const std::size_t workspace = std::min(act_.workspace_bytes(), act_.total_bytes());
  return {.weights = model_.parameters().value_bytes(), .activations = act_.total_bytes() - workspace, .workspace = workspace};
}

// What a backward adds to: vectors, and an embedding that is not the head too, which a product writes whole.
void TrainPass::zero_added(const Step& step) {
  const Gradients& g = step.gradients;
  if (!step.accumulate && g.vectors.size() > 0) zero(ctx_, g.vectors);
  if (anew(step) && g.weights.embedding && !model_.config().tied) zero(ctx_, g.weights.embedding);
}

// The weight of the auxiliary loss per token; 0: it does not apply.
float TrainPass::aux_of(const Step& step) const {
  const NormPlan& norms = model_.norms();
  if (!step.with_aux || norms.approximated == 0 || step.tokens_in_step <= 0) return 0;
  return static_cast<float>(norms.aux_loss / (step.tokens_in_step * norms.approximated));
}

void TrainPass::forward_backward(const Batch& b, const Step& step) {
  const ForwardOptions how{.aux = aux_of(step), .dropout = {.p = dropout_of(model_), .seed = step.dropout_seed}};
  act_.forward(b, how, observers, step.layer_needed);
  zero_added(step);
  const bool few = b.scored && act_.scored;
  const Tensor rows = few ? act_.scored.row_slice(0, b.scored.size()) : act_.z;
  if (few) gather_rows(ctx_, act_.z, b.scored, rows);
  cross_entropy(ctx_, {.x = rows,
                       .w = model_.weights().head,
                       .targets = few ? b.scored_targets : b.targets,
                       .weights = few ? Tensor{} : b.weights,
                       .scale = step.scale,
                       .scale_by = step.scale_by,
                       .loss = step.loss,
                       .losses = {},
                       .greedy = {},
                       .dx = rows,
                       .dw = step.gradients.weights.head,
                       .accumulate = !anew(step),
                       .workspace = act_.workspace});
  if (few) scatter_rows(ctx_, rows, b.scored, act_.z);
  backward(b, step, how);
}

void TrainPass::backward(const Batch& b, const Step& step, const ForwardOptions& forward) {
  const Positions at = act_.positions(b);
  const Weights& g = step.gradients.weights;
  const auto done = [&](std::int64_t layer) {
    if (step.layer_done) step.layer_done(layer);
  };
  const ActivationPlan& plan = act_.plan();
  norm_backward(ctx_, model_.last(), site_grads(g.last),
                {.x = act_.last, .stats = act_.last_stats, .dz = act_.z, .dx = act_.scratch.dx, .accumulate = false});
  done(model_.config().layers + 1);
  const Observers nobody;  // what is made again was seen before
  for (std::size_t l = model_.blocks().size(); l-- > 0;) {
    if (static_cast<std::int64_t>(l) + 1 < plan.lowest) {
      done(static_cast<std::int64_t>(l) + 1);
      continue;
    }
    const Block& block = model_.blocks()[l];
    const Kept& k = act_.kept[l];
    if (plan.recompute == Recompute::block) {
      Stream stream{k.x, {}};
      block.forward(ctx_, stream, k, act_.scratch, at, forward, nobody);
    } else if (!plan.keeps_z()) {
      block.recompute_norms(ctx_, k);
    }
    block.backward(ctx_, k, act_.scratch, at, g.layers[l],
                   {.aux = forward.aux,
                    .aux_by = step.aux_by,
                    .targets = b.targets.reshape({b.batch * b.seq}),
                    .accumulate = !anew(step),
                    .h_was_kept = plan.keeps_h() || plan.recompute == Recompute::block,
                    .dropout = forward.dropout});
    done(static_cast<std::int64_t>(l) + 1);
  }
  EmbeddingScale scale = model_.embedding_scale();
  scale.dlearned = g.embedding_scale;
  if (g.embedding || g.embedding_scale) embedding_backward(ctx_, b.tokens, model_.weights().embedding, act_.scratch.dx, g.embedding, scale);
  done(0);
}

void TrainPass::score(const Batch& b, const Score& out) {
  act_.fit(b.batch, b.seq);
  act_.score(b, out, observers);
}

void TrainPass::warm_up(const Gradients& gradients, std::int64_t batch, bool several) {
  if (!ctx_.device().is_cuda()) return;
  cuda::forget_products(ctx_);
  const std::int64_t seq = act_.plan().seq;
  // Tokens that differ: products of zeros would take less power, and another algorithm would be the fastest.
  std::vector<std::int32_t> ids(static_cast<std::size_t>(batch * seq));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % model_.config().vocab);
  const OwnedTensor tokens(ctx_, DType::i32, {batch, seq}), loss(ctx_, DType::f32, {1});
  from_host(ctx_, ids.data(), tokens);
  zero(ctx_, loss);
  const float scale = 1.0f / static_cast<float>(batch * seq);
  Batch b{.batch = batch, .seq = seq, .tokens = tokens, .targets = tokens, .weights = {}, .positions = {}, .first = {}};
  // Conversations side by side are attended to by other kernels, with scratch of their own: one document a row asks for it all.
  OwnedTensor beginnings;
  if (act_.plan().lists) {
    beginnings = OwnedTensor(ctx_, DType::i32, {batch, seq});
    zero(ctx_, beginnings);
    b.first = beginnings;
  }
  for (const bool accumulate : {false, true})
    if (!accumulate || several) run(b, {.gradients = gradients, .loss = loss, .scale = scale, .accumulate = accumulate});
  cuda::tune_products(ctx_);
}

void TrainPass::run(const Batch& b, const Step& step) {
  act_.fit(b.batch, b.seq);
  // A mask is another one in every micro-batch; a recording would repeat its own.
  if (observers.any() || step.layer_done || step.layer_needed || dropout_of(model_) > 0) return forward_backward(b, step);
  const auto bits = [](double x) { return std::bit_cast<std::uint64_t>(x); };
  GraphCache::Key key{static_cast<std::uint64_t>(b.batch),
                      static_cast<std::uint64_t>(b.seq),
                      bits(static_cast<double>(step.scale)),
                      bits(static_cast<double>(aux_of(step))),
                      step.accumulate,
                      static_cast<std::uint64_t>(b.scored ? b.scored.size() : 0),
                      ctx_.scratch_version()};
  for (const void* p :
       {b.tokens.data, b.targets.data, b.weights.data, b.positions.data, b.first.data, b.scored.data, step.gradients.arena.t.data,
        step.loss.data, step.scale_by.data, step.aux_by.data, act_.z.data, act_.positions(b).table.data})
    key.push_back(reinterpret_cast<std::uintptr_t>(p));
  graphs_.run(ctx_, key, [&] { forward_backward(b, step); });
}

}  // namespace bhyt
