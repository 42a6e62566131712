// Low-rank adapters of a product y = x Wᵀ: y += s·drop(x) Aᵀ Bᵀ, and their gradients. The columns of y may be several projections side by
// side; those that are adapted have a B each, and their A's lie one behind the other, so that one product serves all.
#pragma once

#include <array>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// Adapters of one product, or their gradients.
struct LoraWeights {
  Tensor a;                 // [k·r, I] of the k projections that are adapted; empty: none is
  std::array<Tensor, 3> b;  // [O_i, r] of the i-th projection of the product, empty where it is not adapted
  explicit operator bool() const { return static_cast<bool>(a); }
};

// Inverted dropout: which elements of a matrix are left out is a pure function of (seed, stream, place), the same on every device.
struct Dropout {
  float p = 0;  // 0: none
  std::uint64_t seed = 0, stream = 0;
};

// How adapters are applied.
struct LoraOptions {
  float scale = 1;                        // α/r
  std::array<std::int64_t, 3> columns{};  // where each projection begins in y
  Dropout dropout = {};
  Tensor dropped = {};  // room for as many elements as x has, where there is dropout
  bool by_row = false;  // as in LinearOptions
};

// x [N,I], y [N,O]: t [N, k·r] = s·drop(x) Aᵀ, which the backward needs; y += t Bᵀ.
void lora(Context& ctx, const LoraWeights& w, const Tensor& x, const Tensor& t, const Tensor& y, const LoraOptions& options);

// The backward in three steps, between which the product's own goes: the gradient of x may take its place only when A's is made.
// 1. db (+)= dyᵀ t; then t becomes the gradient of drop(x) Aᵀ: s·dy B.
void lora_backward_b(Context& ctx, const LoraWeights& w, const LoraWeights& gradients, const Tensor& t, const Tensor& dy,
                     const LoraOptions& options, bool accumulate);
// 2. da (+)= tᵀ drop(x).
void lora_backward_a(Context& ctx, const LoraWeights& gradients, const Tensor& t, const Tensor& x, const LoraOptions& options,
                     bool accumulate);
// 3. dx += drop(t A).
void lora_backward_x(Context& ctx, const LoraWeights& w, const Tensor& t, const Tensor& dx, const LoraOptions& options);

// y [N,I] = factor · x, or += with `add`, without the elements that dropout leaves out; y may be x itself. Inverted dropout has a factor of
// 1/(1−p).
struct ScaleMasked {
  float factor = 1;
  Dropout dropout = {};
  bool add = false;
};
void scale_masked(Context& ctx, const Tensor& x, const Tensor& y, const ScaleMasked& how);

// Elements whose 32 random bits are below this are left out.
inline std::uint32_t dropout_threshold(float p) { return static_cast<std::uint32_t>(static_cast<double>(p) * 4294967296.0); }

namespace cpu {
void scale_masked(Context& ctx, const Tensor& x, const Tensor& y, const ScaleMasked& how);
}
namespace cuda {
void scale_masked(Context& ctx, const Tensor& x, const Tensor& y, const ScaleMasked& how);
}

}  // namespace bhyt
