// What metrics.jsonl says about the layers every so often: the size of the residual stream, and the learned scalars of the norms.
#pragma once

#include "core/schema.h"
#include "model/model.h"
#include "model/observer.h"

namespace bhyt::train {

using schema::Json;

// Watches a pass while it lives.
class LayerStats {
 public:
  LayerStats(Context& ctx, const Model& model, Observers& observers);
  LayerStats(const LayerStats&) = delete;
  LayerStats& operator=(const LayerStats&) = delete;

  // norm (mean ‖x‖₂ over the tokens seen), abs (mean |x|), variance (over features): index 0 is the embedding's output, then one per block.
  // lambda_attn, lambda_mlp, lambda_last (alpha_… for the methods with α) where the method has them, one per block.
  Json result() const;

 private:
  struct Sums {
    double tokens = 0, norm = 0, abs = 0, variance = 0;
  };
  void see(Context& ctx, std::int64_t layer, const Tensor& x);
  const Model& model_;
  OwnedTensor moments_;
  std::vector<Sums> layers_;
  Observers::Subscription subscription_;
};

}  // namespace bhyt::train
