// What metrics.jsonl says about the layers every so often (analysis.every): the size of the residual stream, what the norms do with it, and
// their learned scalars.
#pragma once

#include <functional>
#include <vector>

#include "analysis/layer_watch.h"
#include "core/schema.h"
#include "model/model.h"
#include "model/observer.h"

namespace bhyt::train {

using schema::Json;

// Watches a pass while it lives.
class LayerStats {
 public:
  using Targets = std::function<Tensor(std::int64_t pass)>;

  // tokens: of all passes that will be seen, in rows of seq. targets: each pass's, for tokens that only fill rows up (kFilling) do not
  // count; none where there are no such tokens.
  LayerStats(Context& ctx, const Model& model, Observers& observers, std::int64_t tokens, std::int64_t seq, const Targets& targets = {});
  LayerStats(const LayerStats&) = delete;
  LayerStats& operator=(const LayerStats&) = delete;

  // norm (mean ‖x‖₂ over the tokens seen), abs (mean |x|), variance (over features): index 0 is the embedding's output, then one per block.
  // lambda_attn, lambda_mlp, lambda_last (alpha_… for the methods with α) where the method has them, one per block.
  // Of a sample of the tokens: kurtosis, as norm has it; saturated_attn, saturated_mlp (share of |f| > 0.95), approximation_ratio and
  // approximation_r (of s̃² and s²), one per block, null where a block has none, left out where none has (docs/analysis.md).
  Json result() const;

 private:
  struct Sums {
    double tokens = 0, norm = 0, abs = 0, variance = 0;
  };
  struct Run {
    std::int64_t first, count;
  };
  std::vector<bool> counts(Context& ctx);
  void see(Context& ctx, std::int64_t layer, const Tensor& x);
  const Model& model_;
  Targets targets_;
  std::int64_t pass_ = 0;
  std::vector<Run> text_;  // tokens of the running pass that count, where there are others
  OwnedTensor moments_;
  std::vector<Sums> layers_;
  analysis::LayerWatch watch_;
  Observers::Subscription subscription_;
};

}  // namespace bhyt::train
