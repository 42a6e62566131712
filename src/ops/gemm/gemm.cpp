// Checks and dispatch of the matrix product.
#include "ops/gemm/gemm.h"

#include "core/check.h"
#include "ops/gemm/rows.h"

namespace bhyt {

namespace {
void check_operand(const char* what, const Tensor& t, const Device& device, bool int8 = false) {
  check(t.dtype == DType::f32 || t.dtype == DType::bf16 || (int8 && t.dtype == DType::i8), "[gemm] expected {} fp32 or bf16, got {}", what,
        name_of(t.dtype));
  check(t.data || t.size() == 0, "[gemm] expected {} {} with memory, got none", what, shape_string(t));
  check(t.ld >= t.cols(), "[gemm] expected {} with rows at least {} apart, got {}", what, t.cols(), t.ld);
  check(t.device == device, "[gemm] expected {} on {}, got {}", what, device, t.device);
}
}  // namespace

void gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, GemmOptions options) {
  check_operand("a", a, c.device);
  check_operand("b", b, c.device, options.by_row && !c.device.is_cuda());
  check_operand("c", c, c.device);
  check(a.dtype == b.dtype || b.dtype == DType::i8, "[gemm] expected a and b of one type, got {} and {}", name_of(a.dtype),
        name_of(b.dtype));
  check(!options.by_row || (options.trans_b && !options.trans_a), "[gemm] expected b transposed and a not for a product by rows");
  const std::int64_t m = options.trans_a ? a.cols() : a.rows(), k = options.trans_a ? a.rows() : a.cols();
  const std::int64_t n = options.trans_b ? b.rows() : b.cols(), kb = options.trans_b ? b.cols() : b.rows();
  check(k == kb, "[gemm] expected inner dimensions to agree, got a {}{} and b {}{}", shape_string(a), options.trans_a ? "ᵀ" : "",
        shape_string(b), options.trans_b ? "ᵀ" : "");
  check(c.rows() == m && c.cols() == n, "[gemm] expected c [{}, {}], got {}", m, n, shape_string(c));
  const Operation operation(ctx, "gemm", profile::Kind::matrix, c.device);
  if (ctx.device().is_cuda())
    cuda::gemm(ctx, a, b, c, options);
  else
    cpu::gemm(ctx, a, b, c, options);
}

void reserve_gemm_by_row(Context& ctx, std::int64_t rows, std::int64_t k) {
  if (!ctx.device().is_cuda()) cpu::reserve_rows_product(ctx, rows, k);
}

}  // namespace bhyt
