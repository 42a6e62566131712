// Checks of the products of a decoding step.
#include "ops/few_rows/few_rows.h"

#include "core/check.h"

namespace bhyt {

namespace {

// What widths are multiples of: 64 bytes of a row of w for each of eight warps.
std::int64_t slice_of(DType weights) { return 512 / static_cast<std::int64_t>(size_of(weights)); }

void check_moments(const char* op, const Tensor& moments, const NormSite* site, std::int64_t width) {
  check(!moments || (site && site->stat != Stat::given && site->stat != Stat::none && !site->gate && moments.dtype == DType::f32 &&
                     moments.size() == few_rows_moments_size(width) && width % 64 == 0),
        "[{}] expected moments only for a norm with a statistic of its own and no gate, fp32 [{}] of {} columns, a multiple of 64, got {}",
        op, few_rows_moments_size(width), width, shape_string(moments));
}

void check_product(const char* op, const FewRows& in, const Tensor& w, const Tensor& out, std::int64_t columns) {
  const Tensor& x = in.x;
  check(w.dtype == DType::bf16 || w.dtype == DType::i8 || w.dtype == DType::f8, "[{}] expected w bf16, int8 or fp8, got {}", op,
        name_of(w.dtype));
  check(x.device.is_cuda() && x.dtype == DType::bf16 && x.rows() >= 1 && x.rows() <= kFewRows && x.cols() % slice_of(w.dtype) == 0,
        "[{}] expected 1 to {} rows of bf16 on a GPU, their width a multiple of {}, got {} {} on {}", op, kFewRows, slice_of(w.dtype),
        name_of(x.dtype), shape_string(x), x.device);
  check(w.device == x.device && w.cols() == x.cols() && w.rows() >= kTileRows, "[{}] expected w [{} or more, {}] on {}, got {} on {}", op,
        kTileRows, x.cols(), x.device, shape_string(w), w.device);
  check(out.rows() == x.rows() && out.cols() == columns && out.device == x.device, "[{}] expected a result [{}, {}], got {}", op, x.rows(),
        columns, shape_string(out));
  const auto fits = [&](const Tensor& t) { return !t || (t.dtype == DType::f32 && t.size() == w.rows()); };
  const WeightSums sums = in.sums ? *in.sums : WeightSums{};
  check(fits(sums.rows) && fits(sums.bias), "[{}] expected sums of the weights fp32 [{}], got {} and {}", op, w.rows(),
        shape_string(sums.rows), shape_string(sums.bias));
  check_moments(op, in.moments, in.site, x.cols());
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
        slice_of(w.dtype), name_of(w.dtype), shape_string(w), w.device);
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
  check(!in.site, "[few_rows_linear] expected rows without a norm of their own");
  check(!out.z || (out.site && !out.site->gate && (out.site->stat == Stat::none || (out.site->stat == Stat::given && out.given))),
        "[few_rows_linear] expected a norm behind it whose statistic is given, or that has none");
  check(!out.z || !out.moments, "[few_rows_linear] expected the next norm or its moments to be asked for, got both");
  check_moments("few_rows_linear", out.moments, out.site, w.rows());
  const Operation operation(ctx, "few_rows_linear", profile::Kind::matrix, w.device);
  cuda::few_rows_linear(ctx, in, w, out);
}

void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h) {
  check_product("few_rows_swiglu", in, w, h, w.rows() / 2);
  check(h.cols() % 8 == 0, "[few_rows_swiglu] expected a width that is a multiple of 8, got {}", h.cols());
  const Operation operation(ctx, "few_rows_swiglu", profile::Kind::matrix, w.device);
  cuda::few_rows_swiglu(ctx, in, w, h);
}

bool few_rows_may_follow(const NormSite& s, const WeightSums* sums) {
  if (s.map != Map::id || s.gamma || s.shift || s.gate || (s.beta && !(sums && sums->bias && s.out_factor == 1))) return false;
  return s.stat == Stat::rms || s.stat == Stat::none || (s.stat == Stat::mean_var && sums && sums->rows);
}

// Very few rows that a norm follows are counted on the way.
bool few_rows_want_moments(const NormSite& s, const WeightSums& sums, std::int64_t rows) {
  if (s.stat == Stat::none || s.stat == Stat::given || s.gate) return false;
  return rows > kVeryFewRows || !few_rows_may_follow(s, &sums);
}

void few_rows_norm(Context& ctx, const NormSite& site, const Tensor& x, const FewResidual& out) {
  const Tensor &residual = out.residual, &y = out.y;
  const auto like_x = [&](const Tensor& t) {
    return t.dtype == x.dtype && t.device == x.device && t.rows() == x.rows() && t.cols() == x.cols();
  };
  check(x.device.is_cuda() && x.dtype == DType::bf16 && x.rows() >= 1 && x.rows() <= kFewRows && x.cols() % 8 == 0 &&
            x.cols() <= kFewRowsWidest,
        "[few_rows_norm] expected 1 to {} rows of at most {} columns of bf16 on a GPU, a multiple of 8, got {} {} on {}", kFewRows,
        kFewRowsWidest, name_of(x.dtype), shape_string(x), x.device);
  check(like_x(y) && (!residual || like_x(residual)), "[few_rows_norm] expected a result and a residual like x, {}, got {} and {}",
        shape_string(x), shape_string(y), shape_string(residual));
  check(site.stat != Stat::given && !out.z,
        "[few_rows_norm] expected a norm with a statistic of its own, or without one, and none behind it");
  check(!out.moments || x.cols() % 256 == 0, "[few_rows_norm] expected a multiple of 256 columns for moments, got {}", x.cols());
  check_moments("few_rows_norm", out.moments, out.site, x.cols());
  const Operation operation(ctx, "few_rows_norm", profile::Kind::norm, x.device);
  cuda::few_rows_norm(ctx, site, x, out);
}

void few_rows_sum_weights(Context& ctx, const Tensor& w, const Tensor& beta, const WeightSums& out) {
  const auto fits = [&](const Tensor& t) { return !t || (t.dtype == DType::f32 && t.device == w.device && t.size() == w.rows()); };
  check(w.device.is_cuda() && (w.dtype == DType::bf16 || size_of(w.dtype) == 1) && w.cols() % 4 == 0,
        "[few_rows_sum_weights] expected bf16, int8 or fp8 on a GPU, a multiple of 4 columns, got {} {} on {}", name_of(w.dtype),
        shape_string(w), w.device);
  check(fits(out.rows) && fits(out.bias) && static_cast<bool>(out.bias) == static_cast<bool>(beta) &&
            (!beta || (beta.dtype == DType::f32 && beta.size() == w.cols())),
        "[few_rows_sum_weights] expected results fp32 [{}], and beta fp32 [{}] exactly where its product is asked for, got {}, {} and {}",
        w.rows(), w.cols(), shape_string(out.rows), shape_string(out.bias), shape_string(beta));
  const Operation operation(ctx, "few_rows_sum_weights", profile::Kind::other, w.device);
  cuda::few_rows_sum_weights(ctx, w, beta, out);
}

void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits) {
  check_product("few_rows_logits", in, w, logits, w.rows());
  const Operation operation(ctx, "few_rows_logits", profile::Kind::matrix, w.device);
  cuda::few_rows_logits(ctx, in, w, logits);
}

}  // namespace bhyt
