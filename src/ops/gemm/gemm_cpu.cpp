// The product on the CPU: library calls on pieces of c, products by row for few rows (and for more in bf16, where there is BFMMLA), or bf16
// by way of fp32 panels.
#include <algorithm>

#include "core/threads.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/instructions.h"
#include "ops/gemm/library.h"
#include "ops/gemm/rows.h"

namespace bhyt::cpu {

namespace {

// Panels of the path through fp32: 8 MB at most in a thread, while each converted element is used hundreds of times.
constexpr std::int64_t kPanelRows = 10 * kCut, kPanelCols = 20 * kCut, kPanelDepth = 1024;
// Up to here a product by a transposed matrix is bound by reading that matrix, which the libraries would copy first. (In bf16 our own is
// always the quicker one where there is BFMMLA, which BLIS does not know.)
constexpr std::int64_t kFewRows = 4;

BHYT_CLONES void widen(const bf16* in, float* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_float(in[i]);
}

BHYT_CLONES void narrow(const float* in, bf16* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_bf16(in[i]);
}

// The size of the pieces when n is cut into `pieces` of equal size up to kCut.
std::int64_t piece(std::int64_t n, std::int64_t pieces) { return ((n + pieces - 1) / pieces + kCut - 1) / kCut * kCut; }
std::int64_t piece_within(std::int64_t n, std::int64_t limit) { return piece(n, (n + limit - 1) / limit); }

// Rows [i, i + m) and columns [j, j + n) of the result.
template <class In, class Out>
Product<In, Out> part(const Product<In, Out>& p, std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n) {
  Product<In, Out> q = p;
  q.m = std::min(m, p.m - i);
  q.n = std::min(n, p.n - j);
  q.a += p.trans_a ? i : i * p.lda;
  q.b += p.trans_b ? j * p.ldb : j;
  q.c += i * p.ldc + j;
  return q;
}

// A stored part of an operand as fp32, its rows end to end.
void widen_panel(const bf16* in, std::int64_t ld, std::int64_t rows, std::int64_t cols, float* out) {
  for (std::int64_t i = 0; i < rows; ++i) widen(in + i * ld, out + i * cols, cols);
}

// The floats that panel_product needs at most for any panel of pieces up to this one's size. A smaller piece may have larger panels (528
// rows are two of 288, 480 are one), so the bound is the limit, not this piece's own panels.
template <class In, class Out>
std::int64_t panel_floats(const Product<In, Out>& p) {
  const std::int64_t m = std::min(piece(p.m, 1), kPanelRows), n = std::min(piece(p.n, 1), kPanelCols);
  const std::int64_t widened = std::is_same_v<In, float> ? 0 : piece_within(p.k, kPanelDepth);
  return (m + n) * widened + m * n;
}

// c through a sum in fp32, for a panel of c that is small enough for one.
template <class In, class Out>
void panel_product(Context& ctx, const Product<In, Out>& p, float* scratch, int worker) {
  const std::int64_t depth = std::is_same_v<In, float> ? p.k : piece_within(p.k, kPanelDepth);
  const std::int64_t widened = std::is_same_v<In, float> ? 0 : depth;
  float* const a = scratch;
  float* const b = a + p.m * widened;
  float* const sum = b + widened * p.n;
  Product<float, float> q{.m = p.m, .n = p.n, .trans_a = p.trans_a, .trans_b = p.trans_b, .c = sum, .ldc = p.n, .accumulate = p.accumulate};
  if constexpr (std::is_same_v<Out, float>) {
    q.c = p.c;
    q.ldc = p.ldc;
  } else if (p.accumulate) {
    widen_panel(p.c, p.ldc, p.m, p.n, sum);
  }
  for (std::int64_t l = 0; l < p.k; l += depth) {
    q.k = std::min(depth, p.k - l);
    if constexpr (std::is_same_v<In, float>) {
      q.a = p.a;
      q.lda = p.lda;
      q.b = p.b;
      q.ldb = p.ldb;
    } else {
      q.a = a;
      q.lda = p.trans_a ? p.m : q.k;
      widen_panel(p.a + (p.trans_a ? l * p.lda : l), p.lda, p.trans_a ? q.k : p.m, q.lda, a);
      q.b = b;
      q.ldb = p.trans_b ? q.k : p.n;
      widen_panel(p.b + (p.trans_b ? l : l * p.ldb), p.ldb, p.trans_b ? p.n : q.k, q.ldb, b);
    }
    library_gemm(ctx, q, worker);
    q.accumulate = true;
  }
  if constexpr (std::is_same_v<Out, bf16>)
    for (std::int64_t i = 0; i < p.m; ++i) narrow(sum + i * p.n, p.c + i * p.ldc, p.n);
}

// One thread's share.
template <class In, class Out>
void piece_product(Context& ctx, const Product<In, Out>& p, float* scratch, int worker) {
  if constexpr (std::is_same_v<In, float> && std::is_same_v<Out, float>) {
    library_gemm(ctx, p, worker);
  } else {
    if constexpr (std::is_same_v<In, bf16>)
      if (library_gemm_bf16(ctx, p, worker)) return;
    const std::int64_t mb = piece_within(p.m, kPanelRows), nb = piece_within(p.n, kPanelCols);
    for (std::int64_t j = 0; j < p.n; j += nb)
      for (std::int64_t i = 0; i < p.m; i += mb) panel_product(ctx, part(p, i, mb, j, nb), scratch, worker);
  }
}

template <class In, class Out>
void product_by_pieces(Context& ctx, const Product<In, Out>& p) {
  const std::int64_t wanted = library_pieces(ctx.threads().count(), p.m, p.n, p.k);
  std::int64_t mb = piece(p.m, 1), nb = piece(p.n, 1);
  const auto rows = [&] { return (p.m + mb - 1) / mb; };
  const auto cols = [&] { return (p.n + nb - 1) / nb; };
  // Halving the longer side keeps the pieces near squares: the least to pack for the work.
  const auto by_rows = [&] { return mb >= nb || (kRowsFirst > 0 && !p.trans_a && mb > kRowsFirst); };
  for (std::int64_t r = 1, c = 1; r * c < wanted && std::max(mb, nb) > kCut;) {
    if (by_rows()) {
      r *= 2;
      mb = piece(p.m, r);
    } else {
      c *= 2;
      nb = piece(p.n, c);
    }
  }
  const std::int64_t across = cols();
  prepare_library(ctx);
  WorkerScratch scratch;
  if constexpr (!std::is_same_v<In, float> || !std::is_same_v<Out, float>)
    scratch = ctx.worker_scratch(panel_floats(part(p, 0, mb, 0, nb)));
  parallel_tasks(ctx.threads(), rows() * across, [&](std::int64_t t, int worker) {
    piece_product(ctx, part(p, t / across * mb, mb, t % across * nb, nb), scratch.of(worker), worker);
  });
}

template <class In, class Out>
void multiply(Context& ctx, const Product<In, Out>& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    if (!p.accumulate)
      for (std::int64_t i = 0; i < p.m; ++i) std::fill_n(p.c + i * p.ldc, p.n, from_float<Out>(0.0f));
    return;
  }
  product_by_pieces(ctx, p);
}

}  // namespace

void gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  const auto as_rows = [&] { return a.rows() <= kFewRows || (a.dtype == DType::bf16 && ctx.keep<Instructions>().mmla_for(b.dtype)); };
  if (a.cols() > 0 && (o.by_row || (o.trans_b && !o.trans_a && as_rows()))) return rows_product(ctx, a, b, c, o.accumulate);
  dispatch_float(a.dtype, [&](auto in) {
    dispatch_float(c.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      multiply(ctx, Product<In, Out>{.m = c.rows(),
                                     .n = c.cols(),
                                     .k = o.trans_a ? a.rows() : a.cols(),
                                     .a = a.as<In>(),
                                     .lda = a.ld,
                                     .trans_a = o.trans_a,
                                     .b = b.as<In>(),
                                     .ldb = b.ld,
                                     .trans_b = o.trans_b,
                                     .c = c.as<Out>(),
                                     .ldc = c.ld,
                                     .accumulate = o.accumulate});
    });
  });
}

}  // namespace bhyt::cpu
