// A Llama-style model: forward, loss and backward for training; forward with a cache for generation.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/parameters.h"

namespace bhyt {

// What one micro-batch brings; all on the model's device.
struct Batch {
  std::int64_t batch = 0, seq = 0;
  Tensor tokens;     // int32 [B,T]
  Tensor targets;    // int32 [B,T]; negative = not scored
  Tensor weights;    // fp32 [B,T] or empty (= 1)
  Tensor positions;  // int32 [B,T] or empty (0…T−1 in every row): restarts at each document with attend: document
  Tensor first;      // int32 [B,T] or empty: first position each token may see
};

// Called with named intermediates when set: ("embedding", 0, x), ("block", ℓ from 1, x), …
using Observer = std::function<void(std::string_view what, std::int64_t layer, const Tensor& x)>;

enum class Recompute : std::uint8_t { none, norm, swiglu, block };

// How memory is divided, for the table at the start of a run.
struct MemoryUse {
  std::size_t weights = 0, activations = 0, workspace = 0;
};

class Model {
 public:
  Model(const ModelConfig& config, Device device, DType type);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const ModelConfig& config() const;
  const NormPlan& norms() const;
  Parameters& parameters();
  const Parameters& parameters() const;
  Device device() const;
  DType type() const;

  // c_attn of every block, from the current weights (method.md §2). Call after initialising or loading, and every refresh.
  void refresh_constants();
  Tensor constants() const;  // fp32 [L]; saved with the training state

  // Plans memory for micro-batches of at most `batch` × `seq` tokens. backward = false keeps one layer's activations only.
  void prepare(std::int64_t batch, std::int64_t seq, bool backward, Recompute recompute = Recompute::none);
  // Bytes that prepare() with a backward would take.
  std::size_t planned_bytes(std::int64_t batch, std::int64_t seq, Recompute recompute) const;
  MemoryUse memory() const;

  // Forward, loss and backward of one micro-batch. loss fp32 [1] += Σ weight·nll; gradients (fp32 arena) += scale · d loss, or = without
  // `accumulate`: what they held before does not matter then.
  // tokens_in_step: over all micro-batches of the step, for the mean of the auxiliary loss; with_aux: whether it applies at this step.
  struct Step {
    Tensor gradients, loss;
    float scale = 1;
    double tokens_in_step = 0;
    bool with_aux = true;
    bool accumulate = true;
  };
  void forward_backward(const Batch& batch, const Step& step);

  // Forward only. loss as above; losses fp32 [N] and greedy int32 [N] per token where given.
  struct Score {
    Tensor loss, losses, greedy;
  };
  void score(const Batch& batch, const Score& out);

  // Logits fp32 [rows, V] of the rows [first, first+rows) of the last forward's N tokens (after forward()).
  void forward(const Batch& batch);
  void logits(std::int64_t first, std::int64_t rows, const Tensor& out);

  void set_observer(Observer observer);

  // Generation: one sequence, keys and values kept. Feeds n tokens at positions past…, returns the logits of the last, fp32 [V] on the
  // host.
  class Cache;
  std::unique_ptr<Cache, void (*)(Cache*)> make_cache(std::int64_t max_tokens) const;
  void decode(Cache& cache, const std::int32_t* tokens, std::int64_t n, std::vector<float>& logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bhyt
