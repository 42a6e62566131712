#include "ops/gemm/bytes.h"

#include "core/check.h"

namespace bhyt {

namespace {

void check_bytes(const char* op, const Context& ctx, const Tensor& bytes, const Tensor& wide) {
  check(ctx.device().is_cuda(), "[{}] expected a GPU, got {}", op, ctx.device());
  check((bytes.dtype == DType::i8 || bytes.dtype == DType::f8) && bytes.ld == byte_distance(bytes.cols()),
        "[{}] expected a matrix of bytes, got {} {} with rows {} apart", op, name_of(bytes.dtype), shape_string(bytes), bytes.ld);
  check(wide.rows() == bytes.rows() && wide.cols() == bytes.cols(), "[{}] expected {} {}, got {}", op, name_of(bytes.dtype),
        shape_string(wide), shape_string(bytes));
}

}  // namespace

Tensor byte_matrix(void* memory, DType type, Device device, std::int64_t rows, std::int64_t cols) {
  Tensor t(memory, type, device, {rows, cols});
  t.ld = byte_distance(cols);
  return t;
}

void round_to_bytes(Context& ctx, const Tensor& w, const Tensor& by, float factor, const Tensor& out) {
  check_bytes("round_to_bytes", ctx, out, w);
  check(!by || (by.dtype == DType::f32 && by.size() == w.cols()), "[round_to_bytes] expected a factor for each of {} columns, got {}",
        w.cols(), by.size());
  const Operation operation(ctx, "round_to_bytes", profile::Kind::other, w.device);
  cuda::round_to_bytes(ctx, w, by, factor, out);
}

void widen(Context& ctx, const Tensor& w, const Tensor& out) {
  check_bytes("widen", ctx, w, out);
  const Operation operation(ctx, "widen", profile::Kind::other, w.device);
  cuda::widen(ctx, w, out);
}

}  // namespace bhyt
