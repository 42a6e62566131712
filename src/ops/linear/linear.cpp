// A linear layer is one matrix product each way; the device is chosen below, in gemm.
#include "ops/linear/linear.h"

#include <cstring>

#include "core/check.h"
#include "core/memory.h"
#include "core/threads.h"
#include "ops/gemm/gemm.h"

namespace bhyt {

namespace {
void copy_matrix(Context& ctx, const Tensor& from, const Tensor& to) {
  if (to.device.is_cuda()) return copy(ctx, from, to);
  const std::size_t bytes = static_cast<std::size_t>(to.cols()) * size_of(to.dtype);
  parallel_for(ctx.threads(), to.rows(), static_cast<std::int64_t>(65536 / (bytes + 1)) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::memcpy(to.row_slice(i, 1).data, from.row_slice(i, 1).data, bytes);
  });
}
}  // namespace

void linear(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y, const LinearOptions& options) {
  const Tensor& residual = options.residual;
  if (residual) {
    check(residual.dtype == y.dtype && residual.rows() == y.rows() && residual.cols() == y.cols(),
          "[linear] expected residual {} {}, got {} {}", name_of(y.dtype), shape_string(y), name_of(residual.dtype),
          shape_string(residual));
    if (residual.data != y.data) copy_matrix(ctx, residual, y);
  }
  gemm(ctx, x, w, y, {.trans_b = true, .accumulate = static_cast<bool>(residual), .by_row = options.by_row});
}

void linear_backward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& dy, const Tensor& dx, const Tensor& dw, Adds adds) {
  if (dw) {
    check(dw.dtype == DType::f32, "[linear_backward] expected dw fp32, got {}", name_of(dw.dtype));
    gemm(ctx, dy, x, dw, {.trans_a = true, .accumulate = adds.dw});
  }
  if (dx) gemm(ctx, dy, w, dx, {.accumulate = adds.dx});
}

void scale_columns(Context& ctx, const Tensor& w, const Tensor& by, float factor) {
  check(by.dtype == DType::f32 && by.size() == w.cols(), "[scale_columns] expected a factor for each of {} columns, got {} {}", w.cols(),
        name_of(by.dtype), shape_string(by));
  const Operation operation(ctx, "scale_columns", profile::Kind::other, w.device);
  if (ctx.device().is_cuda())
    cuda::scale_columns(ctx, w, by, factor);
  else
    cpu::scale_columns(ctx, w, by, factor);
}

void cpu::scale_columns(Context& ctx, const Tensor& w, const Tensor& by, float factor) {
  dispatch_float(w.dtype, [&]<class T>(T) {
    parallel_for(ctx.threads(), w.rows(), (1 << 16) / (w.cols() + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* const row = w.as<T>() + i * w.ld;
        const float* const gains = by.as<float>();
        const std::int64_t n = w.cols();
#pragma omp simd
        for (std::int64_t j = 0; j < n; ++j) row[j] = from_float<T>(to_float(row[j]) * (factor * gains[j]));
      }
    });
  });
}

}  // namespace bhyt
