// Products by a transposed matrix, y [N,O] = x [N,I] · wᵀ, in which every row of y has the same bits whatever rows come with it, how many,
// and on any number of threads: what sequences that are continued side by side need. w is read where it lies, in its own type.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt::cpu {

// x of w's type, or fp32 or bf16 where w is int8 (quantize.h); y fp32 or bf16.
void rows_product(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate);

// Takes the scratch for products of up to `rows` rows and `depth` columns, so that a settled context can go on.
void reserve_rows_product(Context& ctx, std::int64_t rows, std::int64_t depth);

}  // namespace bhyt::cpu
