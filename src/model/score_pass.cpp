#include "model/score_pass.h"

#include "core/check.h"
#include "ops/gemm/gemm.h"

namespace bhyt {

ScorePass::ScorePass(Context& ctx, const Model& model, std::int64_t batch, std::int64_t seq)
    : ctx_(ctx), model_(model), act_(ctx, model, {.batch = batch, .seq = seq}) {}

void ScorePass::forward(const Batch& b) {
  act_.fit(b.batch, b.seq);
  act_.forward(b, 0, observers);
  show_logits();
}

void ScorePass::show_logits() {
  const std::int64_t behind = model_.config().layers + 1;
  if (!observers.want(Point::logits, behind)) return;
  const OwnedTensor all(ctx_, DType::f32, {act_.tokens, model_.config().vocab});
  logits(0, act_.tokens, all);
  observers.show(ctx_, Point::logits, behind, all);
}

void ScorePass::score(const Batch& b, const Score& out) {
  act_.fit(b.batch, b.seq);
  act_.score(b, out, observers);
  show_logits();
}

void ScorePass::logits(std::int64_t first, std::int64_t rows, const Tensor& out) {
  check(first >= 0 && first + rows <= act_.tokens, "[model] expected rows within the last forward's {}, got {} + {}", act_.tokens, first,
        rows);
  gemm(ctx_, act_.z.row_slice(first, rows), model_.weights().head, out, {.trans_b = true});
}

}  // namespace bhyt
