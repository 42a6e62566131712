#include "model/few_rows_pass.h"

#include <utility>

#include "core/check.h"
#include "core/parts.h"

namespace bhyt {

using profile::from_here;

namespace {

AttentionShape shape_of(const ModelConfig& c) { return {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}; }

}  // namespace

bool FewRowsPass::takes(Context& ctx, const ModelConfig& c, DType weights) {
  return c.vocab >= kTileRows && few_rows_take(ctx, weights, c.d, c.mlp, shape_of(c));
}
bool FewRowsPass::takes(const Model& m) {
  return m.device().is_cuda() && m.lora().rank == 0 && m.type() == DType::bf16 &&
         takes(m.context(), m.config(), m.few_rows_weights().head.dtype);
}

FewRowsPass::FewRowsPass(Context& ctx, const Model& model, KvPages& pages, const Tensor& rope)
    : ctx_(ctx),
      model_(model),
      pages_(pages),
      rope_(rope),
      shape_(shape_of(model.config())),
      constants_(ctx, DType::f32, {model.config().layers}),
      x_(ctx, DType::bf16, {kFewRows, model.config().d}),
      spare_(ctx, DType::bf16, {kFewRows, model.config().d}),
      branch_(ctx, DType::bf16, {kFewRows, model.config().d}),
      z_(ctx, DType::bf16, {kFewRows, model.config().d}),
      q_(ctx, DType::bf16, {kFewRows, model.config().q_width()}),
      att_(ctx, DType::bf16, {kFewRows, model.config().q_width()}),
      h_(ctx, DType::bf16, {kFewRows, model.config().mlp}),
      stats_(ctx, DType::f32, {2 * kFewRows}),
      moments_(ctx, DType::f32, {few_rows_moments_size(model.config().d)}) {
  check(takes(model), "[generate] expected a model that the kernels for few rows take");
  zero(ctx, constants_);
  for (std::size_t l = 0; l < model.blocks().size(); ++l)
    model.blocks()[l].compute_constant(ctx, Tensor(constants_.t.as<float>() + l, DType::f32, ctx.device(), {1}));
}

// What a product takes whose norm comes first.
FewRows FewRowsPass::normed(Now& now, const NormSite& site, const WeightSums& sums, const Tensor& stats) const {
  if (now.z) return {.x = std::exchange(now.z, {})};
  if (site.gate) {  // its vectors would cost every block of the product more than a kernel of their own
    const Tensor z = z_.t.row_slice(0, rows_);
    from_here(ctx_, {"norm"});
    few_rows_norm(ctx_, site, now.x, {.residual = {}, .y = z});
    return {.x = z};
  }
  return {.x = now.x, .site = &site, .stats = stats, .moments = std::exchange(now.moments, {}), .sums = &sums};
}

// A sublayer's last product: onto the stream at once, unless a norm of its own comes between.
void FewRowsPass::project(const char* name, const Tensor& in, const Tensor& w, const std::optional<NormSite>& out, Now& now,
                          const Next& next) {
  if (few_rows_want_moments(next.site, next.sums, rows_)) now.moments = moments_.t;
  FewResidual to{.residual = now.x, .y = now.spare, .site = &next.site, .given = next.given, .moments = now.moments};
  if (out) {
    const Tensor branch = branch_.t.row_slice(0, rows_);
    from_here(ctx_, {name}, w);
    few_rows_linear(ctx_, {.x = in}, w, {.residual = {}, .y = branch});
    from_here(ctx_, {"norm of ", name, "+residual"});
    few_rows_norm(ctx_, *out, branch, to);
  } else {
    // A norm that needs no sum over the row leaves the product with it.
    if (next.site.stat == Stat::given || next.site.stat == Stat::none) to.z = now.z = z_.t.row_slice(0, rows_);
    from_here(ctx_, {name, "+residual", to.z ? "+norm" : ""}, w);
    few_rows_linear(ctx_, {.x = in}, w, to);
  }
  std::swap(now.x, now.spare);
}

void FewRowsPass::block(std::size_t l, Now& now, const PagedRows& at) {
  const Block& b = model_.blocks()[l];
  const LayerWeights& w = model_.few_rows_weights().layers[l];
  const Tensor pages = pages_.layer(static_cast<std::int64_t>(l));
  const Tensor q = q_.t.row_slice(0, rows_), att = att_.t.row_slice(0, rows_), h = h_.t.row_slice(0, rows_);
  const Tensor stats(stats_.t.data, DType::f32, ctx_.device(), {2, rows_});
  const Given given =
      b.given(Tensor(stats.data, DType::f32, ctx_.device(), {rows_}), Tensor(constants_.t.as<float>() + l, DType::f32, ctx_.device(), {1}));
  const Model::Sums& sums = model_.few_rows_sums();
  const FewRows first = normed(now, b.site1(), sums.site1[l], stats);
  from_here(ctx_, {first.site ? "norm+" : "", "qkv+rope+cache"}, w.qkv);
  few_rows_qkv(ctx_, first, w.qkv, {.q = q, .pages = pages, .rope = rope_, .at = at, .shape = shape_});
  from_here(ctx_, {"attention"});
  attention_paged(ctx_, q, pages, att, at, shape_);
  const bool is_given = b.site2().stat == Stat::given;
  check(!is_given || !b.out1(), "[generate] expected no norm on the output of attention before a given statistic");
  project("o", att, w.o, b.out1(), now, {b.site2(), sums.site2[l], is_given ? &given : nullptr});
  const FewRows second = normed(now, b.site2(), sums.site2[l], {});
  from_here(ctx_, {second.site ? "norm+" : "", "gate/up+swiglu"}, w.gate_up);
  few_rows_swiglu(ctx_, second, w.gate_up, h);
  const bool last = l + 1 == model_.blocks().size();
  project("down", h, w.down, b.out2(), now,
          last ? Next{model_.last(), sums.last} : Next{model_.blocks()[l + 1].site1(), sums.site1[l + 1]});
}

void FewRowsPass::run(const Tensor& tokens, const PagedRows& at, const Tensor& logits) {
  rows_ = tokens.size();
  Now now{.x = x_.t.row_slice(0, rows_), .spare = spare_.t.row_slice(0, rows_), .z = {}, .moments = {}};
  embedding(ctx_, tokens, model_.weights().embedding, now.x, model_.embedding_scale());
  for (std::size_t l = 0; l < model_.blocks().size(); ++l) block(l, now, at);
  const FewRows last = normed(now, model_.last(), model_.few_rows_sums().last, {});
  const Tensor& head = model_.few_rows_weights().head;
  from_here(ctx_, {last.site ? "norm+" : "", "head"}, head);
  few_rows_logits(ctx_, last, head, logits);
}

}  // namespace bhyt
