#include "model/block.h"

#include "core/check.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt {

NormSite make_site(const SitePlan& plan, const Parameters& parameters, const std::string& name) {
  const auto view = [&](const char* part) {
    const Parameter* p = parameters.find(name + part);
    return p ? p->value : Tensor{};
  };
  return {.stat = plan.stat,
          .map = plan.map,
          .factor = plan.factor,
          .eps = plan.eps,
          .out_factor = plan.out_factor,
          .gamma = view(".weight"),
          .beta = view(".bias"),
          .scale = plan.scale == ScaleKind::alpha ? view(".alpha") : view(".lam"),
          .shift = view(".shift"),
          .gate = view(".gate"),
          .direction = view(".direction")};
}

NormGrads site_grads(const Parameters& parameters, const Tensor& gradients, const std::string& name) {
  const auto view = [&](const char* part) {
    const Parameter* p = parameters.find(name + part);
    return p && !p->frozen ? parameters.in_arena(gradients, *p) : Tensor{};
  };
  return {.gamma = view(".weight"),
          .beta = view(".bias"),
          .scale = parameters.find(name + ".alpha") ? view(".alpha") : view(".lam"),
          .shift = view(".shift"),
          .gate = view(".gate"),
          .direction = view(".direction")};
}

Block::Block(const ModelConfig& config, const BlockPlan& plan, const NormPlan& norms, const Parameters& parameters, std::int64_t layer,
             Tensor c_attn, Tensor constant)
    : config_(config),
      plan_(plan),
      stop_gradient_(norms.stop_gradient),
      parameters_(&parameters),
      layer_(layer),
      name_(fmt::format("model.layers.{}.", layer)),
      c_attn_(c_attn),
      constant_(constant),
      qkv_(parameters.qkv(layer)),
      o_(parameters.at(name_ + "self_attn.o_proj.weight").value),
      gate_up_(parameters.gate_up(layer)),
      down_(parameters.at(name_ + "mlp.down_proj.weight").value),
      site1_(make_site(plan.site1, parameters, name_ + "input_layernorm")),
      site2_(make_site(plan.site2, parameters, name_ + "post_attention_layernorm")) {
  if (plan.out1) out1_ = make_site(*plan.out1, parameters, name_ + "attn_out_norm");
  if (plan.out2) out2_ = make_site(*plan.out2, parameters, name_ + "mlp_out_norm");
  const auto view = [&](const char* part) { return parameters.at(name_ + part).value; };
  switch (plan.correction) {
    case Correction::none: break;
    case Correction::beta: constant_correction_ = view("var_beta"); break;
    case Correction::eta: ms_correction_ = view("var_eta"); break;
    case Correction::residual_aware:
      ms_correction_ = view("var_cross_beta");
      constant_correction_ = view("var_alpha");
      break;
  }
}

void Block::refresh_constant(std::int64_t seq_len) const {
  if (!plan_.has_constant) return;
  attention_constant(parameters_->at(name_ + "self_attn.v_proj.weight").value, o_, config_.heads, config_.kv_heads, seq_len, c_attn_);
}

Given Block::given(const Kept& keep, float aux) const {
  Given g;
  g.ms = Tensor(keep.stats1.data, DType::f32, keep.stats1.device, {keep.x.rows()});
  g.constant = constant_;
  g.ms_correction = ms_correction_;
  g.constant_correction = constant_correction_;
  g.calibration = plan_.calibration;
  g.aux = plan_.approximated ? aux : 0;
  g.exact = keep.exact;
  return g;
}

// The one exact statistic, the projections and their turn.
void Block::first_half(Stream& stream, const Kept& keep, const Positions& at) const {
  norm(site1_, {.x = stream.x, .add = stream.pending, .sum = keep.x, .z = keep.z1, .stats = keep.stats1});
  stream = {keep.x, {}};
  linear(keep.z1, qkv_, keep.qkv);
  rope(keep.qkv, at.table,
       {.heads = config_.heads + config_.kv_heads,
        .head_dim = config_.head_dim,
        .seq = at.seq,
        .start = at.start,
        .positions = at.positions});
}

// From attention's output to the MLP's: x' = x + W_O·att and its norm leave one kernel.
void Block::second_half(Stream& stream, const Kept& keep, const Scratch& scratch, float aux) const {
  linear(keep.att, o_, out1_ ? keep.out1 : scratch.branch);
  if (out1_) norm(*out1_, {.x = keep.out1, .z = scratch.branch, .stats = keep.stats_out1});
  if (plan_.uses_constant)
    norm_constant(c_attn_, site1_.scale, site1_.factor * site1_.out_factor, plan_.gamma_in_constant ? site1_.gamma : Tensor{}, constant_);
  const Given g = given(keep, aux);
  norm(site2_, {.x = stream.x,
                .add = scratch.branch,
                .sum = keep.x2,
                .z = keep.z2,
                .stats = keep.stats2,
                .given = site2_.stat == Stat::given ? &g : nullptr});
  linear(keep.z2, gate_up_, keep.gate_up);
  swiglu(keep.gate_up, keep.h);
  linear(keep.h, down_, out2_ ? keep.out2 : scratch.branch);
  if (out2_) norm(*out2_, {.x = keep.out2, .z = scratch.branch, .stats = keep.stats_out2});
  stream = {keep.x2, scratch.branch};
}

void Block::forward(Stream& stream, const Kept& keep, const Scratch& scratch, const Positions& at, float aux) const {
  first_half(stream, keep, at);
  attention(keep.qkv, keep.att, keep.lse, at.first,
            {.batch = at.batch, .seq = at.seq, .heads = config_.heads, .kv_heads = config_.kv_heads, .head_dim = config_.head_dim});
  second_half(stream, keep, scratch, aux);
}

void Block::decode(Stream& stream, const Kept& keep, const Scratch& scratch, const Positions& at, const Tensor& keys_values) const {
  first_half(stream, keep, at);
  const std::int64_t n = keep.x.rows(), q = config_.q_width(), kv = config_.kv_width();
  copy_rows(keep.qkv.col_slice(q, 2 * kv), keys_values.row_slice(at.start, n));
  const Tensor so_far = keys_values.row_slice(0, at.start + n);
  attention_cached(keep.qkv.col_slice(0, q), so_far.col_slice(0, kv), so_far.col_slice(kv, kv), keep.att, at.start,
                   {.batch = 1, .seq = n, .heads = config_.heads, .kv_heads = config_.kv_heads, .head_dim = config_.head_dim});
  second_half(stream, keep, scratch, 0);
}

void Block::recompute_norms(const Kept& keep) const {
  norm(site1_, {.x = keep.x, .z = keep.z1});
  const Given g = given(keep, 0);
  norm(site2_, {.x = keep.x2, .z = keep.z2, .given = site2_.stat == Stat::given ? &g : nullptr});
}

// From the gradient of the block's output, which is the branch's too, to that of the MLP's input, in keep.z2.
void Block::mlp_backward(const Kept& keep, const Scratch& s, const Tensor& gradients, const BackwardOptions& options) const {
  Tensor dbranch = s.dx;
  if (out2_) {
    norm_backward(*out2_, site_grads(*parameters_, gradients, name_ + "mlp_out_norm"),
                  {.x = keep.out2, .stats = keep.stats_out2, .dz = s.dx, .dx = s.dbranch, .accumulate = false});
    dbranch = s.dbranch;
  }
  const Tensor ddown = parameters_->in_arena(gradients, parameters_->at(name_ + "mlp.down_proj.weight"));
  const Adds adds{.dw = options.accumulate};
  if (options.h_was_kept) {
    linear_backward(keep.h, down_, dbranch, keep.h, ddown, adds);
    swiglu_backward(keep.gate_up, keep.h, keep.gate_up);
  } else {
    linear_backward({}, down_, dbranch, keep.h, {});
    swiglu_backward(keep.gate_up, keep.h, keep.gate_up, keep.h);
    linear_backward(keep.h, down_, dbranch, {}, ddown, adds);
  }
  linear_backward(keep.z2, gate_up_, keep.gate_up, keep.z2, parameters_->gate_up_in(gradients, layer_), adds);
}

void Block::backward(const Kept& keep, const Scratch& s, const Positions& at, const Tensor& gradients,
                     const BackwardOptions& options) const {
  const auto grad = [&](const std::string& part) { return parameters_->in_arena(gradients, parameters_->at(name_ + part)); };
  const Adds adds{.dw = options.accumulate};
  mlp_backward(keep, s, gradients, options);

  const bool is_given = site2_.stat == Stat::given;
  Given g = given(keep, options.aux);
  if (is_given) {
    if (!stop_gradient_) g.dms = s.dms;
    const auto correction = [&](const char* part) { return parameters_->find(name_ + part) ? grad(part) : Tensor{}; };
    g.dms_correction = plan_.correction == Correction::eta ? correction("var_eta") : correction("var_cross_beta");
    g.dconstant_correction = plan_.correction == Correction::beta ? correction("var_beta") : correction("var_alpha");
  }
  norm_backward(site2_, site_grads(*parameters_, gradients, name_ + "post_attention_layernorm"),
                {.x = keep.x2, .stats = keep.stats2, .dz = keep.z2, .dx = s.dx, .given = is_given ? &g : nullptr});

  // Attention.
  Tensor dbranch = s.dx;
  if (out1_) {
    norm_backward(*out1_, site_grads(*parameters_, gradients, name_ + "attn_out_norm"),
                  {.x = keep.out1, .stats = keep.stats_out1, .dz = s.dx, .dx = s.dbranch, .accumulate = false});
    dbranch = s.dbranch;
  }
  linear_backward(keep.att, o_, dbranch, s.datt, grad("self_attn.o_proj.weight"), adds);
  attention_backward(
      keep.qkv, keep.att, keep.lse, at.first, s.datt, s.dqkv,
      {.batch = at.batch, .seq = at.seq, .heads = config_.heads, .kv_heads = config_.kv_heads, .head_dim = config_.head_dim});
  rope(
      s.dqkv, at.table,
      {.heads = config_.heads + config_.kv_heads, .head_dim = config_.head_dim, .seq = at.seq, .positions = at.positions, .inverse = true});
  linear_backward(keep.z1, qkv_, s.dqkv, keep.z1, parameters_->qkv_in(gradients, layer_), adds);
  norm_backward(site1_, site_grads(*parameters_, gradients, name_ + "input_layernorm"),
                {.x = keep.x, .stats = keep.stats1, .dz = keep.z1, .dx = s.dx, .dms = g.dms});
}

}  // namespace bhyt
