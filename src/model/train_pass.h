// Forward, loss and backward of micro-batches over a model.
#pragma once

#include <functional>

#include "core/graph.h"
#include "model/activations.h"

namespace bhyt {

// Gradients, as an arena and as the structure of the weights; fp32.
struct Gradients {
  OwnedTensor arena;  // empty where matrices have places of their own
  Tensor vectors;     // those of vectors and scalars, one stretch
  Weights weights;
  Gradients() = default;
  Gradients(Context& ctx, const Parameters& parameters);  // zero
};

// How memory is divided, for the table at the start of a run.
struct MemoryUse {
  std::size_t weights = 0, activations = 0, workspace = 0;
};

class TrainPass {
 public:
  struct Shape {
    std::int64_t batch = 1, seq = 1;  // the most that a micro-batch brings; more is possible, and takes more memory
    Recompute recompute = Recompute::none;
    bool lists = false;  // batches may list the tokens that are scored (Batch::scored); without, such a list is not looked at
  };
  TrainPass(Context& ctx, const Model& model, const Shape& shape);
  TrainPass(const TrainPass&) = delete;
  TrainPass& operator=(const TrainPass&) = delete;

  // Before there is one.
  static std::size_t planned_bytes(const ModelConfig& config, DType type, Device device, const Shape& shape, const LoraConfig& lora = {});
  MemoryUse memory() const;

  // loss fp32 [1] += Σ weight·nll; gradients += scale · d loss, or = without `accumulate`: what they held before does not matter then.
  struct Step {
    const Gradients& gradients;
    Tensor loss;
    float scale = 1;
    Tensor scale_by = {};       // fp32 [1] or empty: the scale is multiplied by what it holds when the step runs
    double tokens_in_step = 0;  // over all micro-batches of the step, for the mean of the auxiliary loss
    Tensor aux_by = {};         // fp32 [1] or empty: the auxiliary loss is multiplied by what it holds when the step runs
    bool with_aux = true;       // whether the auxiliary loss applies at this step
    bool accumulate = true;
    bool matrices_anew = false;      // with accumulate: the gradients of matrices are written all the same
    std::uint64_t dropout_seed = 0;  // of this micro-batch, where LoraConfig::dropout > 0: another one for each
    // Called before a layer's weights are read in the forward: 0 (embedding), 1…L, L+1 (last norm and head).
    std::function<void(std::int64_t layer)> layer_needed = {};
    // Called when a layer's gradients have received all that this call adds: L+1 (last norm and an untied head), L…1, 0 (embedding).
    std::function<void(std::int64_t layer)> layer_done = {};
  };
  void run(const Batch& batch, const Step& step);

  // Forward only, in the memory of the training: for validation between steps.
  void score(const Batch& batch, const Score& out);

  // On a GPU, before the first step: a micro-batch of made-up tokens goes through, so that memory, plans and tensor maps are there, and the
  // matrix products' algorithms are chosen by measurement. several: gradients will be added up over micro-batches. What the gradients hold
  // afterwards is of no use.
  void warm_up(const Gradients& gradients, std::int64_t batch, bool several);

  Observers observers;

 private:
  float aux_of(const Step& step) const;
  void forward_backward(const Batch& batch, const Step& step);
  void backward(const Batch& batch, const Step& step, const ForwardOptions& forward);
  void zero_added(const Step& step);

  Context& ctx_;
  const Model& model_;
  Activations act_;
  GraphCache graphs_;
};

}  // namespace bhyt
