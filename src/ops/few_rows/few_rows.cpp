// Checks of the products of a decoding step.
#include "ops/few_rows/few_rows.h"

#include "core/check.h"

namespace bhyt {

namespace {

// What widths are multiples of: 64 bytes of a row of w for each of eight warps.
std::int64_t slice_of(DType weights) { return 512 / static_cast<std::int64_t>(size_of(weights)); }

void check_product(const char* op, const FewRows& in, const Tensor& w, const Tensor& out, std::int64_t columns) {
  const Tensor& x = in.x;
  check(w.dtype == DType::bf16 || w.dtype == DType::i8 || w.dtype == DType::f8, "[{}] expected w bf16, int8 or fp8, got {}", op,
        name_of(w.dtype));
  check(x.device.is_cuda() && x.dtype == DType::bf16 && x.rows() >= 1 && x.rows() <= kFewRows && x.cols() % slice_of(w.dtype) == 0,
        "[{}] expected 1 to {} rows of bf16 on a GPU, their width a multiple of {}, got {} {} on {}", op, kFewRows, slice_of(w.dtype),
        name_of(x.dtype), shape_string(x), name_of(x.device));
  check(w.device == x.device && w.cols() == x.cols() && w.rows() >= kTileRows, "[{}] expected w [{} or more, {}] on {}, got {} on {}", op,
        kTileRows, x.cols(), name_of(x.device), shape_string(w), name_of(w.device));
  check(out.rows() == x.rows() && out.cols() == columns && out.device == x.device, "[{}] expected a result [{}, {}], got {}", op, x.rows(),
        columns, shape_string(out));
  check(!in.add ||
            (in.site && in.add.rows() == x.rows() && in.add.cols() == x.cols() && in.sum.rows() == x.rows() && in.sum.cols() == x.cols()),
        "[{}] expected something to add only with a norm, and room for the sum, {}, got {} and {}", op, shape_string(x),
        shape_string(in.add), shape_string(in.sum));
  check(!in.site || (in.site->stat != Stat::given && x.cols() <= kFewRowsWidest),
        "[{}] expected a norm with a statistic of its own over at most {} columns, got {}", op, kFewRowsWidest, x.cols());
}

}  // namespace

bool few_rows_take(Context& ctx, DType weights, std::int64_t width, std::int64_t mlp, const AttentionShape& s) {
  if (!ctx.device().is_cuda() || !cuda::few_rows_fit(ctx)) return false;
  const std::int64_t slice = slice_of(weights);
  return width % slice == 0 && width <= kFewRowsWidest && mlp % slice == 0 && s.heads * s.head_dim % slice == 0 &&
         s.head_dim % kTileRows == 0;
}

void few_rows_tiles(Context& ctx, const Tensor& w, std::int64_t span, const Tensor& out) {
  check(w.device.is_cuda() && size_of(w.dtype) == 1 && w.cols() % slice_of(w.dtype) == 0 && w.rows() >= kTileRows,
        "[few_rows_tiles] expected at least {} rows of bytes on a GPU, their width a multiple of {}, got {} {} on {}", kTileRows,
        slice_of(w.dtype), name_of(w.dtype), shape_string(w), name_of(w.device));
  check(span % kTileRows == 0 && (span == kTileRows || w.rows() % span == 0),
        "[few_rows_tiles] expected pairs within a multiple of {} rows that divides {}, got {}", kTileRows, w.rows(), span);
  check(out.dtype == w.dtype && out.device == w.device && out.rows() == w.rows() && out.cols() == w.cols() && out.data != w.data,
        "[few_rows_tiles] expected a result {} {}, got {} {}", name_of(w.dtype), shape_string(w), name_of(out.dtype), shape_string(out));
  const Operation operation(ctx, "few_rows_tiles", profile::Kind::other, w.device);
  cuda::few_rows_tiles(ctx, w, span, out);
}

void few_rows_qkv(Context& ctx, const FewRows& in, const Tensor& w, const FewHeads& out) {
  const AttentionShape& s = out.shape;
  check_product("few_rows_qkv", in, w, out.q, s.heads * s.head_dim);
  check(w.rows() == (s.heads + 2 * s.kv_heads) * s.head_dim && out.pages.cols() == 2 * s.kv_heads * s.head_dim,
        "[few_rows_qkv] expected w with {} rows and pages of {} columns, got {} and {}", (s.heads + 2 * s.kv_heads) * s.head_dim,
        2 * s.kv_heads * s.head_dim, shape_string(w), shape_string(out.pages));
  const Operation operation(ctx, "few_rows_qkv", profile::Kind::matrix, w.device);
  cuda::few_rows_qkv(ctx, in, w, out);
}

void few_rows_linear(Context& ctx, const FewRows& in, const Tensor& w, const FewResidual& out) {
  check_product("few_rows_linear", in, w, out.y, w.rows());
  check(w.rows() % kTileRows == 0, "[few_rows_linear] expected a multiple of {} rows of w, got {}", kTileRows, w.rows());
  check(!out.z || (out.site && out.given && out.site->stat == Stat::given && !out.site->gate),
        "[few_rows_linear] expected a norm behind it whose statistic is given");
  const Operation operation(ctx, "few_rows_linear", profile::Kind::matrix, w.device);
  cuda::few_rows_linear(ctx, in, w, out);
}

void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h) {
  check_product("few_rows_swiglu", in, w, h, w.rows() / 2);
  check(h.cols() % 8 == 0, "[few_rows_swiglu] expected a width that is a multiple of 8, got {}", h.cols());
  const Operation operation(ctx, "few_rows_swiglu", profile::Kind::matrix, w.device);
  cuda::few_rows_swiglu(ctx, in, w, h);
}

void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits) {
  check_product("few_rows_logits", in, w, logits, w.rows());
  const Operation operation(ctx, "few_rows_logits", profile::Kind::matrix, w.device);
  cuda::few_rows_logits(ctx, in, w, logits);
}

}  // namespace bhyt
