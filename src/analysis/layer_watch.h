// The layers of a model, seen by an observer of any pass over whole sequences: what is in the stream, and what the norms do with it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "analysis/statistics.h"
#include "model/model.h"
#include "model/observer.h"

namespace bhyt::analysis {

struct WatchOptions {
  std::vector<std::int64_t> layers;  // from 1; empty: all
  std::int64_t seq = 1;              // positions of a row
  Sample sample;                     // of the tokens
  // Without: the stream, saturation and the approximation alone, which cost little beside a training step.
  bool whole = true;  // gains, similarity and attention, too
  // Which tokens of each pass count, asked for at its beginning; empty, or an empty answer: all of them. Attention is seen as it is.
  std::function<std::vector<bool>(Context&)> counts = {};
};

// Watches a pass while it lives.
class LayerWatch {
 public:
  LayerWatch(const Model& model, Observers& observers, const WatchOptions& options);
  LayerWatch(const LayerWatch&) = delete;
  LayerWatch& operator=(const LayerWatch&) = delete;

  struct Layer {
    StreamStats output;
    CosineStats cosine;  // of the block's input and output
    SiteStats attention, mlp;
    std::optional<ApproximationStats> approximation;  // where site 2 is given its statistic
    EntropyStats entropy;
  };
  const StreamStats& embedding() const { return embedding_; }
  const std::map<std::int64_t, Layer>& layers() const { return layers_; }

 private:
  void see(Context& ctx, const Seen& seen);
  void see_site(Context& ctx, const Seen& seen, Layer& layer);
  HostRows rows(Context& ctx, const Tensor& x) const;               // of the sample, those that count
  std::vector<float> numbers(Context& ctx, const Tensor& x) const;  // the same

  const Model& model_;
  WatchOptions options_;       // its sample is that of the pass that is running
  Sample next_;                // that of the pass behind it: micro-batches are pieces of a step
  std::vector<bool> counted_;  // of the pass that is running; empty: all
  StreamStats embedding_;
  std::map<std::int64_t, Layer> layers_;
  // Of the block that is running: its input, what the site at hand sees, its scales, and q.
  HostRows input_, x_, q_;
  std::vector<float> scales_;
  Observers::Subscription subscription_;
};

// A site as it stands in a model: layer from 1.
SiteFacts facts_of(const Model& model, std::int64_t layer, bool second);

}  // namespace bhyt::analysis
