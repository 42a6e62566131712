#include "ops/linear/fused.h"

#include "core/check.h"
#include "ops/gemm/rows_cuda.h"

namespace bhyt {

namespace {

bool aligned(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.ld * static_cast<std::int64_t>(size_of(t.dtype)) % 16 == 0;
}
bool goes_on(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& result) {
  return ctx.device().is_cuda() && result.dtype == DType::bf16 && aligned(result) && cuda::takes_rows(ctx, x, w);
}

void check_product(const char* op, const Tensor& x, const Tensor& w, const Tensor& out, std::int64_t columns) {
  check(w.cols() == x.cols() && w.rows() == columns, "[{}] expected w [{}, {}], got {}", op, columns, x.cols(), shape_string(w));
  check(out.rows() == x.rows() && out.device == x.device && w.device == x.device,
        "[{}] expected {} rows of x, w and the result on {}, got {}", op, x.rows(), x.device, shape_string(out));
}

}  // namespace

bool takes_linear_swiglu(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& h) {
  return h.cols() % 64 == 0 && goes_on(ctx, x, w, h);
}

void linear_swiglu(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& h) {
  check_product("linear_swiglu", x, w, h, 2 * h.cols());
  check(takes_linear_swiglu(ctx, x, w, h), "[linear_swiglu] expected operands that the device has a kernel for, got {} and {}",
        shape_string(x), shape_string(w));
  const Operation operation(ctx, "linear_swiglu", profile::Kind::matrix, x.device);
  cuda::linear_swiglu(ctx, x, w, h);
}

bool takes_linear_to_pages(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& qkv, const Tensor& pages,
                           const AttentionShape& s) {
  return (s.head_dim == 64 || s.head_dim == 128) && pages.dtype == DType::bf16 && aligned(pages) && goes_on(ctx, x, w, qkv);
}

void linear_to_pages(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& qkv, const Tensor& rope, const Tensor& pages,
                     const PagedRows& at, const AttentionShape& s) {
  check_product("linear_to_pages", x, w, qkv, (s.heads + 2 * s.kv_heads) * s.head_dim);
  check_rows_of_pages("linear_to_pages", qkv, rope, pages, at, s);
  check(takes_linear_to_pages(ctx, x, w, qkv, pages, s),
        "[linear_to_pages] expected operands that the device has a kernel for, got {} and {}", shape_string(x), shape_string(w));
  const Operation operation(ctx, "linear_to_pages", profile::Kind::matrix, x.device);
  cuda::linear_to_pages(ctx, x, w, qkv, rope, pages, at, s);
}

}  // namespace bhyt
