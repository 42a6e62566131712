#include "ops/gemm/int8.h"

#include "core/check.h"

namespace bhyt {

Tensor int8_matrix(void* memory, std::int64_t rows, std::int64_t cols) {
  Tensor t(memory, DType::i8, Device::cpu(), {rows, cols});
  t.ld = int8_distance(cols);
  return t;
}

void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out) {
  check(!ctx.device().is_cuda(), "[quantize_rows] expected the CPU, got {}", ctx.device());
  check(out.dtype == DType::i8 && out.rows() == w.rows() && out.cols() == w.cols() && out.ld == int8_distance(w.cols()),
        "[quantize_rows] expected a place for int8 {}, got {} {}", shape_string(w), name_of(out.dtype), shape_string(out));
  check(w.cols() <= kInt8Columns, "[quantize_rows] expected at most {} columns, whose sums fit 32 bits, got {}", kInt8Columns, w.cols());
  check(!by || (by.dtype == DType::f32 && by.size() == w.cols()), "[quantize_rows] expected a factor for each of {} columns, got {}",
        w.cols(), by.size());
  const Operation operation(ctx, "quantize_rows", profile::Kind::other, w.device);
  cpu::quantize_rows(ctx, w, by, out);
}

}  // namespace bhyt
