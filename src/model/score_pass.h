// Forward only: losses, greedy tokens, logits of whole sequences.
#pragma once

#include "model/activations.h"

namespace bhyt {

class ScorePass {
 public:
  // batch × seq: the most that a call brings; more is possible, and takes more memory.
  ScorePass(Context& ctx, const Model& model, std::int64_t batch, std::int64_t seq);
  ScorePass(const ScorePass&) = delete;
  ScorePass& operator=(const ScorePass&) = delete;

  void score(const Batch& batch, const Score& out);

  void forward(const Batch& batch);
  // Logits fp32 [rows, V] of the rows [first, first+rows) of the last forward's N tokens.
  void logits(std::int64_t first, std::int64_t rows, const Tensor& out);

  Observers observers;

 private:
  Activations act_;
};

}  // namespace bhyt
