// The layers of a decoding step on a GPU, for up to kFewRows rows in bf16 and weights in bf16, or of a byte each (ops/gemm/bytes.h): one
// kernel for each product, with the norm before it and what follows it inside (but for norms with a gate and norms of a sublayer's output,
// which have one of their own). Such a product is bound by reading its weights, and a step by the pauses between kernels: every kernel asks
// for its first weights before it waits for the kernel before it (programmatic dependent launch).
#pragma once

#include "ops/attention/paged.h"
#include "ops/norm/norm.h"

namespace bhyt {

constexpr std::int64_t kFewRows = 8;
constexpr std::int64_t kVeryFewRows = 2;       // a norm's sums of so few are made on the way, while the first tile is multiplied
constexpr std::int64_t kFewRowsWidest = 4096;  // of what a block keeps in shared memory, eight rows of it beside the weights on their way

// What is added to a product beside its rows' scales where a norm that takes the mean off, or has a β, is applied behind it: fp32 [O] each,
// or empty. a·(x − mean) wᵀ + β wᵀ = a·(x wᵀ − mean·rows) + bias.
struct WeightSums {
  Tensor rows, bias;
};
// Of weights [O,I] in bf16, or of a byte each and row by row: the sum of every row, and its product with β [I], where out has room for
// them.
void few_rows_sum_weights(Context& ctx, const Tensor& w, const Tensor& beta, const WeightSums& out);

// What a product multiplies: x [N,I], or its norm.
struct FewRows {
  Tensor x;
  const NormSite* site = nullptr;
  Tensor stats = {};                 // with a site: fp32 [2,N] of its statistic; may be empty
  Tensor moments = {};               // with a site: of x, as what made x left them; empty: the rows are summed here
  const WeightSums* sums = nullptr;  // with a site of which the product holds γ, and this the rest
};
// Whether a norm may be applied behind the product: what it is beside a scale of the row, and a mean, the weights and their sums hold.
bool few_rows_may_follow(const NormSite& site, const WeightSums* sums);
// Whether moments of this many rows make the product behind the norm quicker.
bool few_rows_want_moments(const NormSite& site, const WeightSums& sums, std::int64_t rows);
// How many floats moments are: sums over 16 columns at a time of few rows, of squares, or for a centred statistic squares about their mean,
// and that mean.
inline std::int64_t few_rows_moments_size(std::int64_t width) { return 2 * kFewRows * width / 16; }

// Whether the context's device has such kernels, and these widths suit them with weights of this type.
bool few_rows_take(Context& ctx, DType weights, std::int64_t width, std::int64_t mlp, const AttentionShape& shape);

// Weights of a byte [O,I] in the order in which the kernels read them, sixteen rows at a time; the scales stay as they are. span: how many
// rows belong together, of which the lower half meets the upper one: 2·F for gate and up, D for heads that are rotated, else kTileRows.
constexpr std::int64_t kTileRows = 16;
void few_rows_tiles(Context& ctx, const Tensor& w, std::int64_t span, const Tensor& out);

// The products below take bf16 row by row, and bytes in the order of tiles.
// q, k and v from w [(H+2K)·D, I], rotated; q [N, H·D], keys and values to their pages.
struct FewHeads {
  Tensor q, pages, rope;  // rope: rope_table
  PagedRows at;
  AttentionShape shape;
};
void few_rows_qkv(Context& ctx, const FewRows& in, const Tensor& w, const FewHeads& out);

// y [N,O] = residual + x wᵀ, residual may be empty; then z = the norm of y where it needs no sum over the row (given, or none). What that
// norm learns, its constant and corrections must not be what the kernel before this one writes: they are read before it has ended.
struct FewResidual {
  Tensor residual, y;
  const NormSite* site = nullptr;  // the norm of y that comes next
  const Given* given = nullptr;
  Tensor z = {};
  Tensor moments = {};  // of y, for that norm, where it has a statistic of its own; may be empty
};
void few_rows_linear(Context& ctx, const FewRows& in, const Tensor& w, const FewResidual& out);

// h [N,F] = SwiGLU of x wᵀ; w [2F, I].
void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h);

// y = residual + the norm of x, and the moments of y where they are asked for: a kernel of its own, for norms that cost a product more
// than that, and those that stand between a product and the residual.
void few_rows_norm(Context& ctx, const NormSite& site, const Tensor& x, const FewResidual& out);

// logits fp32 [N,V].
void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits);

namespace cuda {
bool few_rows_fit(Context& ctx);  // into the shared memory of the GPU
void few_rows_tiles(Context& ctx, const Tensor& w, std::int64_t span, const Tensor& out);
void few_rows_qkv(Context& ctx, const FewRows& in, const Tensor& w, const FewHeads& out);
void few_rows_linear(Context& ctx, const FewRows& in, const Tensor& w, const FewResidual& out);
void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h);
void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits);
void few_rows_norm(Context& ctx, const NormSite& site, const Tensor& x, const FewResidual& out);
void few_rows_sum_weights(Context& ctx, const Tensor& w, const Tensor& beta, const WeightSums& out);
}  // namespace cuda

}  // namespace bhyt
