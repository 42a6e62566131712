// Some rows of a matrix, taken out and put back: what is not scored never reaches the LM head.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// rows int32 [M]: places in the larger matrix [N,C]; negative ones stand for nothing. No place twice. All of one type, fp32 or bf16.
// out [M,C] = from[rows], zeros where there is nothing.
void gather_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& out);
// to [N,C] = 0, but for to[rows] = from [M,C].
void scatter_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& to);

namespace cpu {
void gather_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& out);
void scatter_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& to);
}  // namespace cpu
namespace cuda {
void gather_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& out);
void scatter_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& to);
}  // namespace cuda

}  // namespace bhyt
