// y = x Wᵀ and its gradients: the only way the model multiplies by a weight matrix.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// What happens to a linear layer's result on its way out (a backend that cannot fuse a part runs it as the next kernel), and how it is
// made.
struct LinearOptions {
  Tensor residual = {};  // [N,O]: y = residual + x Wᵀ (may be y itself)
  bool by_row = false;   // every row of y has the same bits whatever rows come with it (gemm.h)
};

// x [N,I], w [O,I] of one type; y [N,O].
void linear(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y, const LinearOptions& options = {});

// What a backward adds to instead of overwriting it.
struct Adds {
  bool dx = false, dw = true;
};

// dw [O,I] fp32 (+)= dyᵀ x, then dx [N,I] (+)= dy w, which may be x itself; an empty one is skipped.
void linear_backward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& dy, const Tensor& dx, const Tensor& dw, Adds adds = {});

}  // namespace bhyt
