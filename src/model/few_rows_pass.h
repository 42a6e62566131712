// One token of up to kFewRows sequences through a model on a GPU, by the kernels of ops/few_rows: five a layer, and one more
// for every norm on a sublayer's output or with a gate.
#pragma once

#include "model/kv_pages.h"
#include "ops/few_rows/few_rows.h"

namespace bhyt {

class FewRowsPass {
 public:
  // Whether the kernels are made for this model; for such a model with weights of this type.
  static bool takes(const Model& model);
  static bool takes(Context& ctx, const ModelConfig& config, DType weights);

  FewRowsPass(Context& ctx, const Model& model, KvPages& pages, const Tensor& rope);

  // tokens int32 [N], one of a sequence each; logits fp32 [N,V].
  void run(const Tensor& tokens, const PagedRows& at, const Tensor& logits);

 private:
  // The residual stream: where it lies now, and what the product that wrote it left of the norm that comes next: all of it, or the row's
  // moments.
  struct Now {
    Tensor x, spare, z, moments;
  };
  FewRows normed(Now& now, const NormSite& site, const WeightSums& sums, const Tensor& stats) const;
  void block(std::size_t l, Now& now, const PagedRows& at);
  // The stream's norm behind a sublayer, and the sums of the weights behind that.
  struct Next {
    const NormSite& site;
    const WeightSums& sums;
    const Given* given = nullptr;
  };
  void project(const char* name, const Tensor& in, const Tensor& w, const std::optional<NormSite>& out, Now& now, const Next& next);

  Context& ctx_;
  const Model& model_;
  KvPages& pages_;
  Tensor rope_;
  AttentionShape shape_;
  OwnedTensor constants_;                                               // [L] C of every layer
  OwnedTensor x_, spare_, branch_, z_, q_, att_, h_, stats_, moments_;  // room for kFewRows rows
  std::int64_t rows_ = 0;
};

}  // namespace bhyt
