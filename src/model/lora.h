// Low-rank adapters (LoRA): a product by a frozen W [out, in] becomes W x + (α/r)·B(A x) with A [r, in] and B [out, r] trained.
// Adapters are parameters like all others (parameters.h); folders that hold them are in adapter.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/weights.h"

namespace bhyt {

// The projections that can have an adapter, in the order of the parameters.
enum class Projection : std::uint8_t { q, k, v, o, gate, up, down };
constexpr int kProjections = 7;
constexpr std::int64_t kMostRank = 65536;
std::string_view name_of(Projection p);         // "q_proj"
std::string_view module_of(Projection p);       // "self_attn.q_proj"
Projection projection_named(std::string_view);  // from "q_proj"; UsageError naming all of them otherwise
const std::vector<Projection>& all_projections();
// The product of a block that a projection is a part of, and which part.
Product product_of(Projection p);
std::size_t part_of(Projection p);
// The size of its weight, [outputs, inputs].
std::int64_t inputs_of(Projection p, const ModelConfig& config);
std::int64_t outputs_of(Projection p, const ModelConfig& config);

// What a model has beside its own weights. Everything but the adapters is frozen then, unless train_norms; dropout is of training alone.
struct LoraConfig {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  double dropout = 0;                                   // of x on its way to A, in training passes
  std::vector<Projection> targets = all_projections();  // in the order of the enum, each once
  std::vector<std::int64_t> layers = {};                // from 0, rising; empty: all
  bool train_norms = false;                             // what the norms learn (γ, λ, …) is trained too; with rank 0 nothing else is

  bool active() const { return rank > 0 || train_norms; }  // whether the model's own weights are frozen
  double scale() const { return rank > 0 ? alpha / static_cast<double>(rank) : 0; }
  bool adapts(Projection p, std::int64_t layer) const;  // layer from 0
  bool adapts_layer(std::int64_t layer) const;
  std::int64_t width(Product p) const;  // columns of x Aᵀ in a layer that has adapters: a rank for every target
};

// Training FLOPs: of every token, and of one that is scored, which alone the LM head needs. Without adapters their sum is
// flops_per_token; with them no gradient of a frozen weight is computed, and no backward below the lowest trained layer.
struct TrainingFlops {
  double token = 0, scored = 0;
  double sum() const { return token + scored; }
};
TrainingFlops training_flops(const ModelConfig& config, std::int64_t seq, const LoraConfig& lora);

// UsageError for what no model can have: a rank, α or dropout out of range, targets named twice or none, layers that the model lacks.
void validate(const LoraConfig& lora, const ModelConfig& config);

}  // namespace bhyt
