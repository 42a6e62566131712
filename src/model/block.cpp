#include "model/block.h"

#include "core/memory.h"
#include "core/parts.h"
#include "ops/linear/fused.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt {

using profile::from_here;

NormSite make_site(const SitePlan& plan, const SiteWeights& w) {
  return {.stat = plan.stat,
          .map = plan.map,
          .factor = plan.factor,
          .eps = plan.eps,
          .out_factor = plan.out_factor,
          .gamma = w.gamma,
          .beta = w.beta,
          .scale = w.scale,
          .shift = w.shift,
          .gate = w.gate,
          .direction = w.direction};
}

NormGrads site_grads(const SiteWeights& g) {
  return {.gamma = g.gamma, .beta = g.beta, .scale = g.scale, .shift = g.shift, .gate = g.gate, .direction = g.direction};
}

Block::Block(const ModelConfig& config, const NormPlan& norms, std::int64_t layer, const LayerWeights& weights, Tensor c_attn,
             float lora_scale)
    : config_(config),
      plan_(norms.blocks[static_cast<std::size_t>(layer - 1)]),
      stop_gradient_(norms.stop_gradient),
      layer_(layer),
      lora_scale_(lora_scale),
      w_(weights),
      c_attn_(c_attn),
      site1_(make_site(plan_.site1, weights.site1)),
      site2_(make_site(plan_.site2, weights.site2)) {
  if (plan_.out1) out1_ = make_site(*plan_.out1, weights.out1);
  if (plan_.out2) out2_ = make_site(*plan_.out2, weights.out2);
}

void Block::refresh_constant(Context& ctx, std::int64_t seq_len) const {
  if (!plan_.has_constant) return;
  const Tensor wv = w_.qkv.row_slice(config_.q_width() + config_.kv_width(), config_.kv_width());
  attention_constant(ctx, wv, w_.o, config_.heads, config_.kv_heads, seq_len, c_attn_);
}

void Block::compute_constant(Context& ctx, const Tensor& to) const {
  if (!plan_.uses_constant) return;
  norm_constant(ctx, c_attn_, site1_.scale, site1_.factor * site1_.out_factor, plan_.gamma_in_constant ? site1_.gamma : Tensor{}, to);
}

void Block::repack(const Repacked& to) {
  w_ = to.weights;
  constant_ = to.constant;
  site1_ = to.site1;
  site2_ = to.site2;
}

AttentionShape Block::shape(const Positions& at) const {
  return {.batch = at.batch, .seq = at.seq, .heads = config_.heads, .kv_heads = config_.kv_heads, .head_dim = config_.head_dim};
}

Given Block::given(const Tensor& ms, const Tensor& constant) const {
  Given g;
  g.ms = ms;
  g.constant = constant_ ? constant_ : constant;
  g.ms_correction = w_.ms_correction;
  g.constant_correction = w_.constant_correction;
  g.calibration = plan_.calibration;
  return g;
}

Given Block::given_of(const Kept& keep, float aux) const {
  Given g = given(Tensor(keep.stats1.data, DType::f32, keep.stats1.device, {keep.x.rows()}), keep.constant);
  g.aux = plan_.approximated ? aux : 0;
  g.exact = keep.exact;
  return g;
}

// The statistic and the scale of a site: made only for those who look.
void Block::show_site(Context& ctx, const Observers& see, bool second, const Kept& keep) const {
  const Point statistic = second ? Point::statistic2 : Point::statistic1, scale = second ? Point::scale2 : Point::scale1;
  if (!see.want(statistic, layer_) && !see.want(scale, layer_)) return;
  const NormSite& site = second ? site2_ : site1_;
  const Given g = given_of(keep, 0);
  const OwnedTensor made(ctx, DType::f32, {2, keep.x.rows()});
  const auto row = [&](std::int64_t i) { return made.t.row_slice(i, 1).reshape({keep.x.rows()}); };
  norm_scales(ctx, site, second ? keep.stats2 : keep.stats1, site.stat == Stat::given ? &g : nullptr, row(0), row(1));
  if (site.stat != Stat::none) see.show(ctx, statistic, layer_, row(0));
  see.show(ctx, scale, layer_, row(1));
}

LoraOptions Block::adapting(Product product, const BlockScratch& scratch, const Dropout& dropout) const {
  LoraOptions o{.scale = lora_scale_, .dropout = dropout, .dropped = scratch.dropped};
  o.dropout.stream = static_cast<std::uint64_t>(layer_) * kProducts + static_cast<std::uint64_t>(product);
  if (product == Product::qkv) o.columns = {0, config_.q_width(), config_.q_width() + config_.kv_width()};
  if (product == Product::gate_up) o.columns = {0, config_.mlp, 0};
  return o;
}

void Block::multiply(Context& ctx, Product product, const Tensor& x, const Tensor& y, const Kept& keep, const BlockScratch& scratch,
                     const ForwardOptions& how) const {
  linear(ctx, x, w_.matrix(product), y, {.by_row = how.by_row});
  const LoraWeights& adapters = w_.adapters(product);
  if (!adapters) return;
  LoraOptions options = adapting(product, scratch, how.dropout);
  options.by_row = how.by_row;
  lora(ctx, adapters, x, keep.lora[static_cast<std::size_t>(product)], y, options);
}

void Block::multiply_backward(Context& ctx, Product product, const Tensor& x, const Tensor& dy, const Tensor& dx, const Kept& keep,
                              const BlockScratch& scratch, const LayerWeights& gradients, const BackwardOptions& options) const {
  const LoraWeights &adapters = w_.adapters(product), &dadapters = gradients.adapters(product);
  const LoraOptions how = adapters ? adapting(product, scratch, options.dropout) : LoraOptions{};
  const Tensor& t = keep.lora[static_cast<std::size_t>(product)];
  if (adapters && dx) lora_backward_b(ctx, adapters, dadapters, t, dy, how, options.accumulate);
  if (adapters && x) lora_backward_a(ctx, dadapters, t, x, how, options.accumulate);
  linear_backward(ctx, x, w_.matrix(product), dy, dx, x ? gradients.matrix(product) : Tensor{}, {.dw = options.accumulate});
  if (adapters && dx) lora_backward_x(ctx, adapters, t, dx, how);
}

// Queries, keys and values, rotated; in a cache if there is one.
void Block::project_qkv(Context& ctx, const Kept& keep, const BlockScratch& scratch, const Positions& at, const ForwardOptions& how) const {
  if (at.paged && how.by_row && !w_.adapters(Product::qkv) && takes_linear_to_pages(ctx, keep.z1, w_.qkv, keep.qkv, at.pages, shape(at))) {
    from_here(ctx, {"qkv+rope+cache"}, w_.qkv);
    return linear_to_pages(ctx, keep.z1, w_.qkv, keep.qkv, at.table, at.pages, *at.paged, shape(at));
  }
  from_here(ctx, {"qkv"}, w_.qkv);
  multiply(ctx, Product::qkv, keep.z1, keep.qkv, keep, scratch, how);
  from_here(ctx, {at.paged ? "rope+cache" : "rope"});
  if (at.paged)
    rope_to_pages(ctx, keep.qkv, at.table, at.pages, *at.paged, shape(at));
  else
    rope(ctx, keep.qkv, at.table,
         {.heads = config_.heads + config_.kv_heads, .head_dim = config_.head_dim, .seq = at.seq, .positions = at.positions});
}

// The MLP's hidden values, from its input.
void Block::gate_and_up(Context& ctx, const Kept& keep, const BlockScratch& scratch, const ForwardOptions& how,
                        const Observers& see) const {
  if (how.by_row && !w_.adapters(Product::gate_up) && !see.want(Point::gate, layer_) && !see.want(Point::up, layer_) &&
      takes_linear_swiglu(ctx, keep.z2, w_.gate_up, keep.h)) {
    from_here(ctx, {"gate/up+swiglu"}, w_.gate_up);
    return linear_swiglu(ctx, keep.z2, w_.gate_up, keep.h);
  }
  from_here(ctx, {"gate/up"}, w_.gate_up);
  multiply(ctx, Product::gate_up, keep.z2, keep.gate_up, keep, scratch, how);
  see.show(ctx, Point::gate, layer_, keep.gate_up.col_slice(0, config_.mlp));
  see.show(ctx, Point::up, layer_, keep.gate_up.col_slice(config_.mlp, config_.mlp));
  from_here(ctx, {"swiglu"});
  swiglu(ctx, keep.gate_up, keep.h);
}

// The one exact statistic, the projections and their rotation.
void Block::before_attention(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const Positions& at,
                             const ForwardOptions& how, const Observers& see) const {
  const bool summed = static_cast<bool>(stream.pending);
  from_here(ctx, {"norm 1"});
  norm(ctx, site1_, {.x = stream.x, .add = stream.pending, .sum = keep.x, .z = keep.z1, .stats = keep.stats1});
  if (summed) see.show(ctx, Point::block_output, layer_ - 1, keep.x);
  stream = {keep.x, {}};
  see.show(ctx, Point::block_input, layer_, keep.x);
  show_site(ctx, see, false, keep);
  see.show(ctx, Point::z1, layer_, keep.z1);
  project_qkv(ctx, keep, scratch, at, how);
  const std::int64_t q = config_.q_width(), kv = config_.kv_width();
  see.show(ctx, Point::q, layer_, keep.qkv.col_slice(0, q));
  see.show(ctx, Point::k, layer_, keep.qkv.col_slice(q, kv));
  see.show(ctx, Point::v, layer_, keep.qkv.col_slice(q + kv, kv));
}

// From attention's output to the MLP's: x' = x + W_O·att and its norm leave one kernel.
void Block::after_attention(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const ForwardOptions& how,
                            const Observers& see) const {
  see.show(ctx, Point::attention, layer_, keep.att);
  const Tensor projected = out1_ ? keep.out1 : scratch.branch;
  from_here(ctx, {"o"}, w_.o);
  multiply(ctx, Product::o, keep.att, projected, keep, scratch, how);
  see.show(ctx, Point::attention_output, layer_, projected);
  if (out1_) {
    from_here(ctx, {"norm of o"});
    norm(ctx, *out1_, {.x = keep.out1, .z = scratch.branch, .stats = keep.stats_out1});
  }
  from_here(ctx, {"norm 2"});
  if (!constant_) compute_constant(ctx, keep.constant);
  const Given g = given_of(keep, how.aux);
  norm(ctx, site2_,
       {.x = stream.x,
        .add = scratch.branch,
        .sum = keep.x2,
        .z = keep.z2,
        .stats = keep.stats2,
        .given = site2_.stat == Stat::given ? &g : nullptr});
  see.show(ctx, Point::after_attention, layer_, keep.x2);
  show_site(ctx, see, true, keep);
  see.show(ctx, Point::z2, layer_, keep.z2);
  gate_and_up(ctx, keep, scratch, how, see);
  see.show(ctx, Point::hidden, layer_, keep.h);
  const Tensor output = out2_ ? keep.out2 : scratch.branch;
  from_here(ctx, {"down"}, w_.down);
  multiply(ctx, Product::down, keep.h, output, keep, scratch, how);
  see.show(ctx, Point::mlp_output, layer_, output);
  if (out2_) {
    from_here(ctx, {"norm of down"});
    norm(ctx, *out2_, {.x = keep.out2, .z = scratch.branch, .stats = keep.stats_out2});
  }
  stream = {keep.x2, scratch.branch};
}

void Block::forward(Context& ctx, Stream& stream, const Kept& keep, const BlockScratch& scratch, const Positions& at,
                    const ForwardOptions& how, const Observers& see) const {
  before_attention(ctx, stream, keep, scratch, at, how, see);
  attention(ctx, keep.qkv, keep.att, keep.lse, at.first, shape(at));
  after_attention(ctx, stream, keep, scratch, how, see);
}

void Block::recompute_norms(Context& ctx, const Kept& keep) const {
  norm(ctx, site1_, {.x = keep.x, .z = keep.z1});
  const Given g = given_of(keep, 0);
  norm(ctx, site2_, {.x = keep.x2, .z = keep.z2, .given = site2_.stat == Stat::given ? &g : nullptr});
}

// From the gradient of the block's output, which is the branch's too, to that of the MLP's input, in keep.z2.
void Block::mlp_backward(Context& ctx, const Kept& keep, const BlockScratch& s, const LayerWeights& gradients,
                         const BackwardOptions& options) const {
  Tensor dbranch = s.dx;
  if (out2_) {
    norm_backward(ctx, *out2_, site_grads(gradients.out2),
                  {.x = keep.out2, .stats = keep.stats_out2, .dz = s.dx, .dx = s.dbranch, .accumulate = false});
    dbranch = s.dbranch;
  }
  if (options.h_was_kept) {
    multiply_backward(ctx, Product::down, keep.h, dbranch, keep.h, keep, s, gradients, options);
    swiglu_backward(ctx, keep.gate_up, keep.h, keep.gate_up);
  } else {
    multiply_backward(ctx, Product::down, {}, dbranch, keep.h, keep, s, gradients, options);
    swiglu_backward(ctx, keep.gate_up, keep.h, keep.gate_up, keep.h);
    multiply_backward(ctx, Product::down, keep.h, dbranch, {}, keep, s, gradients, options);
  }
  multiply_backward(ctx, Product::gate_up, keep.z2, keep.gate_up, keep.z2, keep, s, gradients, options);
}

// From the gradient of x' to that of site 1's output, in keep.z1.
void Block::attention_backward_pass(Context& ctx, const Kept& keep, const BlockScratch& s, const Positions& at,
                                    const LayerWeights& gradients, const BackwardOptions& options) const {
  Tensor dbranch = s.dx;
  if (out1_) {
    norm_backward(ctx, *out1_, site_grads(gradients.out1),
                  {.x = keep.out1, .stats = keep.stats_out1, .dz = s.dx, .dx = s.dbranch, .accumulate = false});
    dbranch = s.dbranch;
  }
  multiply_backward(ctx, Product::o, keep.att, dbranch, s.datt, keep, s, gradients, options);
  attention_backward(ctx, keep.qkv, keep.att, keep.lse, at.first, s.datt, s.dqkv, shape(at));
  rope(
      ctx, s.dqkv, at.table,
      {.heads = config_.heads + config_.kv_heads, .head_dim = config_.head_dim, .seq = at.seq, .positions = at.positions, .inverse = true});
  multiply_backward(ctx, Product::qkv, keep.z1, s.dqkv, keep.z1, keep, s, gradients, options);
}

void Block::backward(Context& ctx, const Kept& keep, const BlockScratch& s, const Positions& at, const LayerWeights& gradients,
                     const BackwardOptions& options) const {
  mlp_backward(ctx, keep, s, gradients, options);
  const bool is_given = site2_.stat == Stat::given;
  Given g = given_of(keep, options.aux);
  if (is_given) {
    g.aux_by = options.aux_by;
    g.targets = options.targets;
    if (!stop_gradient_) g.dms = s.dms;
    g.dms_correction = gradients.ms_correction;
    g.dconstant_correction = gradients.constant_correction;
  }
  norm_backward(ctx, site2_, site_grads(gradients.site2),
                {.x = keep.x2, .stats = keep.stats2, .dz = keep.z2, .dx = s.dx, .given = is_given ? &g : nullptr});
  attention_backward_pass(ctx, keep, s, at, gradients, options);
  norm_backward(ctx, site1_, site_grads(gradients.site1), {.x = keep.x, .stats = keep.stats1, .dz = keep.z1, .dx = s.dx, .dms = g.dms});
}

}  // namespace bhyt
