// h = silu(gate) ⊙ up, gate and up side by side in one matrix.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// gate_up [N,2F] (gate first), h [N,F].
void swiglu(Context& ctx, const Tensor& gate_up, const Tensor& h);
// dh [N,F] → dgate_up [N,2F], which may be gate_up itself. With h [N,F], which may be dh itself, the forward's result is written again.
void swiglu_backward(Context& ctx, const Tensor& gate_up, const Tensor& dh, const Tensor& dgate_up, const Tensor& h = {});

namespace cpu {
void swiglu(Context& ctx, const Tensor& gate_up, const Tensor& h);
void swiglu_backward(Context& ctx, const Tensor& gate_up, const Tensor& dh, const Tensor& dgate_up, const Tensor& h);
}  // namespace cpu
namespace cuda {
void swiglu(Context& ctx, const Tensor& gate_up, const Tensor& h);
void swiglu_backward(Context& ctx, const Tensor& gate_up, const Tensor& dh, const Tensor& dgate_up, const Tensor& h);
}  // namespace cuda

}  // namespace bhyt
