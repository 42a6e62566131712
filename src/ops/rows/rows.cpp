// Checks and dispatch of gathering and scattering rows.
#include "ops/rows/rows.h"

#include "core/check.h"

namespace bhyt {

namespace {

void check_shapes(const Tensor& some, const Tensor& rows, const Tensor& all) {
  check(all.dtype == DType::f32 || all.dtype == DType::bf16, "[rows] expected fp32 or bf16, got {}", name_of(all.dtype));
  check(rows.dtype == DType::i32 && rows.device == all.device, "[rows] expected places int32 on {}, got {} on {}", all.device,
        name_of(rows.dtype), rows.device);
  check(some.dtype == all.dtype && some.rows() == rows.size() && some.cols() == all.cols() && some.device == all.device,
        "[rows] expected {} [{}, {}] on {}, got {} {} on {}", name_of(all.dtype), rows.size(), all.cols(), all.device, name_of(some.dtype),
        shape_string(some), some.device);
}

}  // namespace

void gather_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& out) {
  check_shapes(out, rows, from);
  const Operation operation(ctx, "gather_rows", profile::Kind::cross_entropy, from.device);
  if (ctx.device().is_cuda())
    cuda::gather_rows(ctx, from, rows, out);
  else
    cpu::gather_rows(ctx, from, rows, out);
}

void scatter_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& to) {
  check_shapes(from, rows, to);
  const Operation operation(ctx, "scatter_rows", profile::Kind::cross_entropy, to.device);
  if (ctx.device().is_cuda())
    cuda::scatter_rows(ctx, from, rows, to);
  else
    cpu::scatter_rows(ctx, from, rows, to);
}

}  // namespace bhyt
