// A Llama-style model: its description and its weights. It does not change while passes run over it (train_pass.h, score_pass.h,
// decode_pass.h); several may at once. On a GPU every context has a stream of its own: a pass in another context than the model's is not
// ordered against what is done to the weights in that one (loading, an optimizer's step, refresh_constants). Whoever does both waits in
// between (Context::synchronize).
#pragma once

#include <memory>
#include <vector>

#include "model/block.h"
#include "model/config.h"
#include "model/parameters.h"

namespace bhyt {

class Model {
 public:
  // frozen: parameters that are not to be trained (parameters.h). lora: adapters beside the weights, which are frozen then; they count
  // until values are given to them (Parameters::initialize_adapters, load_adapter) as zeros.
  Model(Context& context, const ModelConfig& config, DType type, const Frozen& frozen = {}, const LoraConfig& lora = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const LoraConfig& lora() const { return lora_; }
  const NormPlan& norms() const { return plan_; }
  const Parameters& parameters() const { return parameters_; }
  const Weights& weights() const { return weights_; }
  Context& context() const { return parameters_.context(); }  // that its memory belongs to
  Device device() const { return parameters_.device(); }
  DType type() const { return parameters_.type(); }

  // c_attn of every block, from the current weights (docs/method.md). Call after initialising or loading, and every refresh.
  void refresh_constants();
  Tensor constants() const { return c_attn_.t; }  // fp32 [L]; saved with the training state

  // For generating alone, once: what every step would do again is done now. The constants of the second sites stay what they are.
  struct Repack {
    bool fold = true;   // γ and constant factors of sites go into the products behind them, wherever the method allows it
    bool int8 = false;  // the weights of products become int8 (ops/gemm/int8.h); on the CPU
  };
  void repack(const Repack& how);
  bool repacked() const { return static_cast<bool>(constants_.t); }  // it cannot be trained or saved any more

  const std::vector<Block>& blocks() const { return blocks_; }
  const NormSite& last() const { return last_; }
  EmbeddingScale embedding_scale() const;

 private:
  ModelConfig config_;
  LoraConfig lora_;
  NormPlan plan_;
  Parameters parameters_;
  Weights weights_;
  Tensor repack_matrix(const Tensor& w, const NormSite* folded, bool int8);

  OwnedTensor c_attn_;
  OwnedTensor constants_;     // C of every layer once they do not change any more
  std::vector<Buffer> int8_;  // weights
  std::vector<Block> blocks_;
  NormSite last_;
};

}  // namespace bhyt
