#include "model/few_rows_pass.h"

#include "core/check.h"

namespace bhyt {

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
      stats_(ctx, DType::f32, {2 * kFewRows}) {
  check(takes(model), "[generate] expected a model that the kernels for few rows take");
  zero(ctx, constants_);
  for (std::size_t l = 0; l < model.blocks().size(); ++l)
    model.blocks()[l].compute_constant(ctx, Tensor(constants_.t.as<float>() + l, DType::f32, ctx.device(), {1}));
}

// What a product takes whose norm comes first; the stream goes on with the sum.
FewRows FewRowsPass::behind(Now& now, const NormSite& site, const Tensor& stats) const {
  FewRows in{.x = now.x, .site = &site, .add = now.add, .sum = {}, .stats = stats};
  if (!now.add) return in;
  in.sum = now.spare;
  std::swap(now.x, now.spare);
  now.add = {};
  return in;
}

// A sublayer's last product: onto the stream at once, unless a norm of its own comes between.
void FewRowsPass::project(const Tensor& in, const Tensor& w, const std::optional<NormSite>& out, Now& now, const NormSite* then,
                          const Given* given) {
  if (out) {
    few_rows_linear(ctx_, {.x = in}, w, {.residual = {}, .y = branch_.t.row_slice(0, rows_)});
    norm(ctx_, *out, {.x = branch_.t.row_slice(0, rows_), .z = branch_.t.row_slice(0, rows_)});
    now.add = branch_.t.row_slice(0, rows_);
    return;
  }
  few_rows_linear(ctx_, {.x = in}, w,
                  {.residual = now.x, .y = now.spare, .site = then, .given = given, .z = then ? z_.t.row_slice(0, rows_) : Tensor{}});
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
  few_rows_qkv(ctx_, behind(now, b.site1(), stats), w.qkv, {.q = q, .pages = pages, .rope = rope_, .at = at, .shape = shape_});
  attention_paged(ctx_, q, pages, att, at, shape_);
  // A given statistic is known before the product: its norm leaves the product's kernel.
  const bool is_given = b.site2().stat == Stat::given;
  check(!is_given || !b.out1(), "[generate] expected no norm on the output of attention before a given statistic");
  project(att, w.o, b.out1(), now, is_given ? &b.site2() : nullptr, is_given ? &given : nullptr);
  const FewRows mlp_in = is_given ? FewRows{.x = z_.t.row_slice(0, rows_)} : behind(now, b.site2(), {});
  few_rows_swiglu(ctx_, mlp_in, w.gate_up, h);
  project(h, w.down, b.out2(), now, nullptr, nullptr);
}

void FewRowsPass::run(const Tensor& tokens, const PagedRows& at, const Tensor& logits) {
  rows_ = tokens.size();
  Now now{.x = x_.t.row_slice(0, rows_), .add = {}, .spare = spare_.t.row_slice(0, rows_)};
  embedding(ctx_, tokens, model_.weights().embedding, now.x, model_.embedding_scale());
  for (std::size_t l = 0; l < model_.blocks().size(); ++l) block(l, now, at);
  few_rows_logits(ctx_, behind(now, model_.last(), {}), model_.few_rows_weights().head, logits);
}

}  // namespace bhyt
