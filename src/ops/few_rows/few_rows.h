// The layers of a decoding step on a GPU, for up to kFewRows rows in bf16 and weights in bf16, or of a byte each (ops/gemm/bytes.h): one
// kernel for each product, with the norm before it and what follows it inside. Such a product is bound by reading its weights, and a step
// by the pauses between kernels: every kernel asks for its first weights before it waits for the kernel before it (programmatic dependent
// launch).
#pragma once

#include "ops/attention/paged.h"
#include "ops/norm/norm.h"

namespace bhyt {

constexpr std::int64_t kFewRows = 8;
constexpr std::int64_t kFewRowsWidest = 4096;  // of what a block keeps in shared memory, eight rows of it beside the weights on their way

// What a product multiplies: x [N,I], or its norm.
struct FewRows {
  Tensor x;
  const NormSite* site = nullptr;
  Tensor add, sum;  // with a site: it sees x + add, and writes that to sum
  Tensor stats;     // with a site: fp32 [2,N] of its statistic; may be empty
};

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

// y [N,O] = residual + x wᵀ, residual may be empty; then z = the norm of y where it needs no sum over the row (given).
struct FewResidual {
  Tensor residual, y;
  const NormSite* site = nullptr;
  const Given* given = nullptr;
  Tensor z;
};
void few_rows_linear(Context& ctx, const FewRows& in, const Tensor& w, const FewResidual& out);

// h [N,F] = SwiGLU of x wᵀ; w [2F, I].
void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h);

// logits fp32 [N,V].
void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits);

namespace cuda {
bool few_rows_fit(Context& ctx);  // into the shared memory of the GPU
void few_rows_tiles(Context& ctx, const Tensor& w, std::int64_t span, const Tensor& out);
void few_rows_qkv(Context& ctx, const FewRows& in, const Tensor& w, const FewHeads& out);
void few_rows_linear(Context& ctx, const FewRows& in, const Tensor& w, const FewResidual& out);
void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h);
void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits);
}  // namespace cuda

}  // namespace bhyt
