// Products by row (LinearOptions) and what follows them, in one kernel: where a device has it, as it is for up to 64 rows in bf16 on
// Hopper.
#pragma once

#include "ops/attention/paged.h"

namespace bhyt {

// h [N,F] = silu(x Wgᵀ) · x Wuᵀ, w [2F,I]: Wg above Wu.
bool takes_linear_swiglu(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& h);
void linear_swiglu(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& h);

// qkv = x wᵀ, then rope_to_pages of it.
bool takes_linear_to_pages(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& qkv, const Tensor& pages,
                           const AttentionShape& shape);
void linear_to_pages(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& qkv, const Tensor& rope, const Tensor& pages,
                     const PagedRows& at, const AttentionShape& shape);

namespace cuda {
void linear_swiglu(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& h);
void linear_to_pages(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& qkv, const Tensor& rope, const Tensor& pages,
                     const PagedRows& at, const AttentionShape& shape);
}  // namespace cuda

}  // namespace bhyt
