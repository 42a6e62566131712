// Token embedding, with the optional scale of the residual stream at its start.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// How the embedding is scaled: by a constant, or by a learned scalar (fp32 [1]) where given.
struct EmbeddingScale {
  float constant = 1.0f;
  Tensor learned = {};
  Tensor dlearned = {};  // fp32 [1], += in the backward
};

// tokens int32 [N], table [V,C], out [N,C] of the same type: out = table[token] · scale.
void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out, const EmbeddingScale& scale = {});
// dtable [V,C] fp32 +=, skipped when empty; rows that share a token are summed in order, so the bits do not depend on the threads.
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& dout, const Tensor& dtable,
                        const EmbeddingScale& scale = {});

// Tokens that the device alone knows: a token −1−i of tokens [N] becomes feed[i], and 0 where that is negative (a choice
// that failed). Both int32.
void take_fed(Context& ctx, const Tensor& tokens, const Tensor& feed);

namespace cpu {
void take_fed(Context& ctx, const Tensor& tokens, const Tensor& feed);
void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out, const EmbeddingScale& scale);
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& dout, const Tensor& dtable,
                        const EmbeddingScale& scale);
}  // namespace cpu
namespace cuda {
void take_fed(Context& ctx, const Tensor& tokens, const Tensor& feed);
void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out, const EmbeddingScale& scale);
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& dout, const Tensor& dtable,
                        const EmbeddingScale& scale);
}  // namespace cuda

}  // namespace bhyt
