// A model's weights as one typed structure. The same structure stands for the values, and for whatever lies beside them in the same order:
// gradients, moments, the low bits of masters. A part that a model lacks, or that nothing is kept for (frozen), is an empty tensor.
#pragma once

#include <array>
#include <vector>

#include "core/tensor.h"
#include "ops/lora/lora.h"

namespace bhyt {

// What one norm learns.
struct SiteWeights {
  Tensor gamma, beta;      // [C]
  Tensor scale;            // [1]: λ or α
  Tensor shift;            // [1]
  Tensor gate, direction;  // [C], SeeDNorm's g and b
};

// The matrix products of a block.
enum class Product : std::uint8_t { qkv, o, gate_up, down };
constexpr std::size_t kProducts = 4;

struct LayerWeights {
  SiteWeights site1, site2;                   // before attention and before the MLP
  SiteWeights out1, out2;                     // on their outputs
  Tensor qkv;                                 // [(H+2K)·D, C]: q, k and v, one product
  Tensor o;                                   // [C, H·D]
  Tensor gate_up;                             // [2F, C]: gate and up, one product
  Tensor down;                                // [C, F]
  Tensor ms_correction, constant_correction;  // [1]: learned corrections of the second site's statistic
  std::array<LoraWeights, kProducts> lora;    // of every product; q, k, v and gate, up are the projections of theirs

  const Tensor& matrix(Product p) const {
    switch (p) {
      case Product::qkv: return qkv;
      case Product::o: return o;
      case Product::gate_up: return gate_up;
      default: return down;
    }
  }
  const LoraWeights& adapters(Product p) const { return lora[static_cast<std::size_t>(p)]; }
};

struct Weights {
  Tensor embedding;        // [V, C]
  Tensor embedding_scale;  // [1]
  std::vector<LayerWeights> layers;
  SiteWeights last;
  Tensor head;  // [V, C]; the embedding itself where they are tied
};

}  // namespace bhyt
