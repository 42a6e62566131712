// A Llama-style model: its description and its weights. It does not change while passes run over it (train_pass.h, score_pass.h,
// decode_pass.h); several may at once. On a GPU every context has a stream of its own: a pass in another context than the model's is not
// ordered against what is done to the weights in that one (loading, an optimizer's step, refresh_constants). Whoever does both waits in
// between (Context::synchronize).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/block.h"
#include "model/config.h"
#include "model/parameters.h"
#include "ops/few_rows/few_rows.h"

namespace bhyt {

class Model {
 public:
  // frozen: parameters that are not to be trained (parameters.h). lora: adapters beside the weights, which are frozen then; they count
  // until values are given to them (Parameters::initialize_adapters, load_adapter) as zeros. borrowed: values that lie elsewhere, for
  // generating alone. shards: processes that may share out what training keeps beside the weights.
  Model(Context& context, const ModelConfig& config, DType type, const Frozen& frozen = {}, const LoraConfig& lora = {},
        const Borrowed& borrowed = {}, std::int64_t shards = 1);
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
    bool fold = true;  // γ and constant factors of sites go into the products behind them, wherever the method allows it
    // The weights of products are rounded to int8, or on a GPU to fp8, a scale for each row. On the CPU they become that (ops/gemm/int8.h);
    // on a GPU products of few rows read bytes (ops/gemm/bytes.h), and what those stand for takes the weights' place for all others.
    std::optional<DType> weights = {};
  };
  void repack(const Repack& how);
  // The weights as products of few rows read them (few_rows_pass.h).
  const Weights& few_rows_weights() const { return few_; }
  // Sums of these weights for a norm that they hold the gain of and that follows the product; empty where none is needed.
  struct Sums {
    std::vector<WeightSums> site1, site2;
    WeightSums last;
  };
  const Sums& few_rows_sums() const { return sums_; }
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
  Weights few_;
  Sums sums_;
  // A norm before a product, and the norm without its gain, where the product is to hold that.
  struct Fold {
    NormSite site;
    std::optional<NormSite> bare;
  };
  std::optional<NormSite> without_gain(const NormSite& site, double most);
  WeightSums sums_of(const Tensor& w, const NormSite& site);
  // In w's place: what products read, what those of few rows do, and sums of that.
  struct Repacked {
    Tensor many, few;
    WeightSums sums;
  };
  // span: of its tiles (few_rows_tiles).
  Repacked repack_matrix(const Tensor& w, std::int64_t span, const Fold& fold, std::optional<DType> type);
  Tensor to_int8(const Tensor& w, const NormSite* folded);
  Repacked to_bytes(const Tensor& w, std::int64_t span, const Fold& fold, DType type);

  OwnedTensor c_attn_;
  OwnedTensor constants_;     // C of every layer once they do not change any more
  std::vector<Buffer> made_;  // weights of another type, what is left of sites, and sums
  std::vector<Block> blocks_;
  NormSite last_;
};

}  // namespace bhyt
