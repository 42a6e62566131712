// What metrics.jsonl says about the layers every so often: the size of the residual stream, and the learned scalars of the norms.
#pragma once

#include "core/schema.h"
#include "model/model.h"

namespace bhyt::train {

using schema::Json;

// Watches a model's forward passes while it lives.
class LayerStats {
 public:
  explicit LayerStats(Model& model);
  ~LayerStats();
  LayerStats(const LayerStats&) = delete;
  LayerStats& operator=(const LayerStats&) = delete;

  // norm (mean ‖x‖₂ over the tokens seen), abs (mean |x|), variance (over features): index 0 is the embedding's output, then one per block.
  // lambda_attn, lambda_mlp, lambda_last (alpha_… for the methods with α) where the method has them, one per block.
  Json result() const;

 private:
  struct Sums {
    double tokens = 0, norm = 0, abs = 0, variance = 0;
  };
  void see(std::int64_t layer, const Tensor& x);
  Model& model_;
  OwnedTensor moments_;
  std::vector<Sums> layers_;
};

}  // namespace bhyt::train
