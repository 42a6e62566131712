// What a pass over N tokens writes, laid out in one allocation; and the forward that all passes over whole sequences share.
#pragma once

#include <vector>

#include "model/batch.h"
#include "model/model.h"

namespace bhyt {

// What the backward makes again instead of keeping it: nothing; the norms' outputs; those and SwiGLU's; whole blocks.
enum class Recompute : std::uint8_t { none, norm, swiglu, block };

struct ActivationPlan {
  std::int64_t batch = 1, seq = 1;
  bool backward = false;  // false: one layer's activations, for all
  std::int64_t lowest =
      0;  // the layer where the backward ends, from 1 (0: the embedding, beyond the last: nowhere); those below share activations
  Recompute recompute = Recompute::none;
  bool lists = false;  // batches may list the tokens that are scored (Batch::scored): room for these

  bool keeps_z() const { return backward && recompute == Recompute::none; }
  bool keeps_h() const { return backward && (recompute == Recompute::none || recompute == Recompute::norm); }
  bool keeps_block() const { return backward && recompute != Recompute::block; }
};

// What scoring gives: loss fp32 [1] += Σ weight·nll; losses fp32 [N] and greedy int32 [N] per token where given.
struct Score {
  Tensor loss, losses, greedy;
  std::int64_t left_out = 0;  // ForwardOptions
};

// The tensors themselves, and where each of them lies.
struct ActivationTensors {
  std::vector<Kept> kept;
  BlockScratch scratch;
  Tensor last, last_stats, z;  // the final norm: what it saw, its statistics, its output
  Tensor scored;               // the rows of z that are scored, and their gradient; empty: there is no room for them
  Tensor workspace;            // of the cross entropy

  struct Layout;
  void lay(Layout& at);  // one behind the other, or only measured
};

class Activations : public ActivationTensors {
 public:
  Activations(Context& ctx, const Model& model, const ActivationPlan& plan);

  // What a pass will take, before there is a model.
  static std::size_t bytes(const ModelConfig& config, DType type, Device device, const ActivationPlan& plan, const LoraConfig& lora = {});

  // Lays the activations out for this shape, inside what there is; takes more memory where that is too small.
  void fit(std::int64_t batch, std::int64_t seq);
  Positions positions(const Batch& batch) const;
  // Embedding, blocks and final norm; z is the last norm's output.
  // needed: called before a layer's weights are read (TrainPass::Step::layer_needed).
  void forward(const Batch& batch, const ForwardOptions& how, const Observers& see,
               const std::function<void(std::int64_t layer)>& needed = {});
  void score(const Batch& batch, const Score& out, const Observers& see);
  void logits(std::int64_t first, std::int64_t rows, const Tensor& out) const;  // of the last forward

  const ActivationPlan& plan() const { return plan_; }
  std::size_t total_bytes() const { return memory_.bytes(); }
  std::size_t workspace_bytes() const;

  std::int64_t tokens = 0;  // of the last shape

 private:
  void show_logits(const Observers& see) const;  // made whole only for those who look

  Context& ctx_;
  const Model& model_;
  ActivationPlan plan_;
  std::int64_t fitted_batch_ = 0, fitted_seq_ = 0;
  Buffer memory_;
  OwnedTensor rope_;
  OwnedTensor constants_;  // [L] C of every layer
};

}  // namespace bhyt
