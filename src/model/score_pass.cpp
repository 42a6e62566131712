#include "model/score_pass.h"

namespace bhyt {

ScorePass::ScorePass(Context& ctx, const Model& model, std::int64_t batch, std::int64_t seq)
    : act_(ctx, model, {.batch = batch, .seq = seq}) {}

void ScorePass::forward(const Batch& b) {
  act_.fit(b.batch, b.seq);
  act_.forward(b, {}, observers);
}

void ScorePass::score(const Batch& b, const Score& out) {
  act_.fit(b.batch, b.seq);
  act_.score(b, out, observers);
}

void ScorePass::logits(std::int64_t first, std::int64_t rows, const Tensor& out) { act_.logits(first, rows, out); }

}  // namespace bhyt
