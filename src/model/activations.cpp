#include "model/activations.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/gemm/gemm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace bhyt {

// Lays tensors one behind the other in a buffer; with a null base it only measures.
struct ActivationTensors::Layout {
  const ModelConfig& config;
  const NormPlan& norms;
  const LoraConfig& lora;
  DType type;
  Device device;
  ActivationPlan plan;  // with the shape to lay out
  char* base = nullptr;
  float* constants = nullptr;  // [L] C of every layer
  std::size_t bytes = 0;

  std::int64_t n() const { return plan.batch * plan.seq; }
  Tensor take(DType of, std::initializer_list<std::int64_t> dims) {
    Tensor t(nullptr, of, device, dims);
    t.data = base ? base + bytes : nullptr;
    bytes += (t.bytes() + 255) / 256 * 256;
    return t;
  }
  Tensor matrix(std::int64_t cols) { return take(type, {n(), cols}); }
  Tensor stats() { return take(DType::f32, {2, n()}); }
  struct Has {
    bool output_norms = false, adapters = false;
  };
  void body(Kept& k, const Has& has);
};

namespace {

bool any_output_norm(const NormPlan& plan) {
  return std::any_of(plan.blocks.begin(), plan.blocks.end(), [](const BlockPlan& b) { return b.out1.has_value(); });
}

}  // namespace

// All of a block but its input, the norms' outputs and SwiGLU's.
void ActivationTensors::Layout::body(Kept& k, const Has& has) {
  k.stats1 = stats();
  k.stats2 = stats();
  if (norms.aux_loss > 0) k.exact = take(DType::f32, {n()});
  k.qkv = matrix(config.qkv_width());
  k.att = matrix(config.q_width());
  k.lse = take(DType::f32, {plan.batch, config.heads, plan.seq});
  k.x2 = matrix(config.d);
  k.gate_up = matrix(2 * config.mlp);
  for (std::size_t i = 0; i < kProducts && has.adapters; ++i)
    if (const std::int64_t width = lora.width(static_cast<Product>(i)); width > 0) k.lora[i] = matrix(width);
  if (!has.output_norms) return;
  k.out1 = matrix(config.d);
  k.out2 = matrix(config.d);
  k.stats_out1 = stats();
  k.stats_out2 = stats();
}

void ActivationTensors::lay(Layout& at) {
  const ModelConfig& c = at.config;
  const NormPlan& norms = at.norms;
  const ActivationPlan& plan = at.plan;
  const auto lay_norms = [&](Kept& k) {
    k.z1 = at.matrix(c.d);
    k.z2 = at.matrix(c.d);
  };
  // What the backward makes again, or nobody asks for later, is one set for all blocks.
  Kept shared;
  const bool passed_by = plan.lowest > 1;  // there are blocks below the backward's end
  if (passed_by || !plan.keeps_block())
    at.body(shared, {.output_norms = any_output_norm(norms), .adapters = !plan.keeps_block() && at.lora.rank > 0});
  if (passed_by || !plan.keeps_z()) lay_norms(shared);
  if (passed_by || !plan.keeps_h()) shared.h = at.matrix(c.mlp);
  Tensor stream;  // where no backward comes the stream lives in one place
  kept.clear();
  for (std::size_t l = 0; l < norms.blocks.size(); ++l) {
    Kept k = shared;
    const bool back = plan.backward && static_cast<std::int64_t>(l) + 1 >= plan.lowest;
    if (back && plan.keeps_block())
      at.body(k, {.output_norms = norms.blocks[l].out1.has_value(), .adapters = at.lora.adapts_layer(static_cast<std::int64_t>(l))});
    if (back && plan.keeps_z()) lay_norms(k);
    if (back && plan.keeps_h()) k.h = at.matrix(c.mlp);
    if (back || l == 0) stream = at.matrix(c.d);  // not !stream: it has no place while this only measures
    k.x = stream;
    if (!back) k.x2 = stream;
    if (at.constants) k.constant = Tensor(at.constants + l, DType::f32, at.device, {1});
    kept.push_back(k);
  }
  last = plan.backward ? at.matrix(c.d) : stream;
  last_stats = at.stats();
  z = at.matrix(c.d);
  scored = plan.lists ? at.matrix(c.d) : Tensor{};
  // The blocks' scratch and the loss's workspace are never in use at the same time.
  const std::size_t common = at.bytes;
  workspace = at.take(DType::u8, {static_cast<std::int64_t>(cross_entropy_workspace(at.n(), c.d, c.vocab, at.type, at.device))});
  const std::size_t end = std::exchange(at.bytes, common);
  scratch = {};
  scratch.branch = at.matrix(c.d);
  if (plan.backward) {
    scratch.dx = at.matrix(c.d);
    if (any_output_norm(norms)) scratch.dbranch = at.matrix(c.d);
    scratch.dqkv = at.matrix(c.qkv_width());
    scratch.datt = at.matrix(c.q_width());
    scratch.dms = at.take(DType::f32, {at.n()});
    if (at.lora.rank > 0 && at.lora.dropout > 0) scratch.dropped = at.matrix(std::max({c.d, c.q_width(), c.mlp}));
  }
  at.bytes = std::max(at.bytes, end);
}

Activations::Activations(Context& ctx, const Model& model, const ActivationPlan& plan)
    : ctx_(ctx), model_(model), plan_(plan), constants_(ctx, DType::f32, {model.config().layers}) {
  check(plan.batch > 0 && plan.seq > 0, "[model] expected at least one token, got {} × {}", plan.batch, plan.seq);
  check(ctx.device() == model.device(), "[model] expected a context on {}, where the model is, got {}", model.device(), ctx.device());
  zero(ctx, constants_);
  fit(plan.batch, plan.seq);
}

std::size_t Activations::bytes(const ModelConfig& config, DType type, Device device, const ActivationPlan& plan, const LoraConfig& lora) {
  const NormPlan norms = plan_norms(config.norm, config.layers, config.d, config.eps);
  Layout measure{.config = config, .norms = norms, .lora = lora, .type = type, .device = device, .plan = plan};
  ActivationTensors().lay(measure);
  return measure.bytes;
}

void Activations::fit(std::int64_t batch, std::int64_t seq) {
  if (batch == fitted_batch_ && seq == fitted_seq_) return;
  fitted_batch_ = 0;  // nothing, should memory run out below
  Layout measure{.config = model_.config(),
                 .norms = model_.norms(),
                 .lora = model_.lora(),
                 .type = model_.type(),
                 .device = model_.device(),
                 .plan = plan_};
  measure.plan.batch = batch;
  measure.plan.seq = seq;
  measure.constants = constants_.t.as<float>();
  Layout at = measure;
  lay(measure);
  if (measure.bytes > memory_.bytes()) {
    memory_ = Buffer();
    memory_ = Buffer(ctx_, measure.bytes);
  }
  at.base = static_cast<char*>(memory_.data());
  lay(at);
  tokens = batch * seq;
  fitted_batch_ = batch;
  fitted_seq_ = seq;
  if (rope_.t && rope_.t.rows() >= seq) return;
  const ModelConfig& c = model_.config();
  rope_ = rope_table(ctx_, seq, c.head_dim, c.rope_theta, c.rope_scaling);
}

std::size_t Activations::workspace_bytes() const {
  const ModelConfig& c = model_.config();
  return cross_entropy_workspace(plan_.batch * plan_.seq, c.d, c.vocab, model_.type(), model_.device());
}

Positions Activations::positions(const Batch& b) const {
  return {.batch = b.batch, .seq = b.seq, .table = rope_.t, .positions = b.positions, .first = b.first};
}

void Activations::forward(const Batch& b, const ForwardOptions& how, const Observers& see,
                          const std::function<void(std::int64_t layer)>& needed) {
  const auto need = [&](std::int64_t layer) {
    if (needed) needed(layer);
  };
  const Positions at = positions(b);
  const std::int64_t layers = model_.config().layers;
  need(0);
  embedding(ctx_, b.tokens, model_.weights().embedding, kept[0].x, model_.embedding_scale());
  see.show(ctx_, Point::embedding, 0, kept[0].x);
  Stream stream{kept[0].x, {}};
  check(how.left_out == 0 || !plan_.backward, "[model] expected a pass without a backward to leave out a block, got one with it");
  for (std::size_t l = 0; l < kept.size(); ++l) {
    need(static_cast<std::int64_t>(l) + 1);
    if (static_cast<std::int64_t>(l) + 1 != how.left_out) model_.blocks()[l].forward(ctx_, stream, kept[l], scratch, at, how, see);
  }
  need(layers + 1);
  norm(ctx_, model_.last(), {.x = stream.x, .add = stream.pending, .sum = last, .z = z, .stats = last_stats});
  see.show(ctx_, Point::block_output, layers, last);
  see.show(ctx_, Point::last, layers + 1, z);
  show_logits(see);
}

void Activations::logits(std::int64_t first, std::int64_t rows, const Tensor& out) const {
  check(first >= 0 && first + rows <= tokens, "[model] expected rows within the last forward's {}, got {} + {}", tokens, first, rows);
  gemm(ctx_, z.row_slice(first, rows), model_.weights().head, out, {.trans_b = true});
}

void Activations::show_logits(const Observers& see) const {
  const std::int64_t behind = model_.config().layers + 1;
  if (!see.want(Point::logits, behind)) return;
  const OwnedTensor all(ctx_, DType::f32, {tokens, model_.config().vocab});
  logits(0, tokens, all);
  see.show(ctx_, Point::logits, behind, all);
}

void Activations::score(const Batch& b, const Score& out, const Observers& see) {
  forward(b, {.left_out = out.left_out}, see);
  const bool few = b.scored && scored && !out.losses && !out.greedy;
  const Tensor rows = few ? scored.row_slice(0, b.scored.size()) : z;
  if (few) gather_rows(ctx_, z, b.scored, rows);
  cross_entropy(ctx_, {.x = rows,
                       .w = model_.weights().head,
                       .targets = few ? b.scored_targets : b.targets,
                       .weights = few ? Tensor{} : b.weights,
                       .scale = 1,
                       .loss = out.loss,
                       .losses = out.losses,
                       .greedy = out.greedy,
                       .dx = {},
                       .dw = {},
                       .workspace = workspace});
}

}  // namespace bhyt
