// One token of up to kFewRows sequences through a model on a GPU, by the kernels of ops/few_rows: five a layer.
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
  // The residual stream: where it lies now, and what the next norm is still to add to it.
  struct Now {
    Tensor x, add, spare;
  };
  FewRows behind(Now& now, const NormSite& site, const Tensor& stats) const;
  void block(std::size_t l, Now& now, const PagedRows& at);
  void project(const Tensor& in, const Tensor& w, const std::optional<NormSite>& out, Now& now, const NormSite* then, const Given* given);

  Context& ctx_;
  const Model& model_;
  KvPages& pages_;
  Tensor rope_;
  AttentionShape shape_;
  OwnedTensor constants_;                                     // [L] C of every layer
  OwnedTensor x_, spare_, branch_, z_, q_, att_, h_, stats_;  // room for kFewRows rows
  std::int64_t rows_ = 0;
};

}  // namespace bhyt
