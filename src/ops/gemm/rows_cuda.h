// Products by row on a GPU (gemm_rows.cuh): up to 64 rows in bf16, on Hopper. Every row of a result has the same bits whatever rows come
// with it. w is read before the kernels in front have ended: none of them may write it.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt::cuda {

// Whether the context's GPU has a kernel for these operands. The result has to be aligned to 16 bytes, as they are.
bool takes_rows(Context& ctx, const Tensor& x, const Tensor& w);
// y = x wᵀ, bf16 or fp32.
void rows_product(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y);

}  // namespace bhyt::cuda
