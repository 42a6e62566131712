// Checks and dispatch of the gated activation.
#include "ops/swiglu/swiglu.h"

#include "core/check.h"

namespace bhyt {

namespace {
void check_shapes(const Tensor& gate_up, const Tensor& h, const char* what) {
  check(gate_up.dtype == DType::f32 || gate_up.dtype == DType::bf16, "[swiglu] expected gate_up fp32 or bf16, got {}",
        name_of(gate_up.dtype));
  check(h.dtype == gate_up.dtype, "[swiglu] expected {} of type {}, got {}", what, name_of(gate_up.dtype), name_of(h.dtype));
  check(h.device == gate_up.device, "[swiglu] expected {} on {}, got {}", what, gate_up.device, h.device);
  check(gate_up.cols() == 2 * h.cols() && gate_up.rows() == h.rows(), "[swiglu] expected gate_up [{}, {}] for {} {}, got {}", h.rows(),
        2 * h.cols(), what, shape_string(h), shape_string(gate_up));
}
}  // namespace

void swiglu(Context& ctx, const Tensor& gate_up, const Tensor& h) {
  check_shapes(gate_up, h, "h");
  const Operation operation(ctx, "swiglu", profile::Kind::swiglu, h.device);
  if (ctx.device().is_cuda())
    cuda::swiglu(ctx, gate_up, h);
  else
    cpu::swiglu(ctx, gate_up, h);
}

void swiglu_backward(Context& ctx, const Tensor& gate_up, const Tensor& dh, const Tensor& dgate_up, const Tensor& h) {
  check_shapes(gate_up, dh, "dh");
  check_shapes(dgate_up, dh, "dh");
  if (h) check_shapes(gate_up, h, "h");
  const Operation operation(ctx, "swiglu_backward", profile::Kind::swiglu, dh.device);
  if (ctx.device().is_cuda())
    cuda::swiglu_backward(ctx, gate_up, dh, dgate_up, h);
  else
    cpu::swiglu_backward(ctx, gate_up, dh, dgate_up, h);
}

}  // namespace bhyt
