// Causal grouped-query attention, tiled with an online softmax: memory linear in T, no T×T matrix.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

struct AttentionShape {
  std::int64_t batch = 1;     // B
  std::int64_t seq = 1;       // T
  std::int64_t heads = 1;     // H, query heads
  std::int64_t kv_heads = 1;  // K, divides H
  std::int64_t head_dim = 1;  // D
};

// qkv [B·T, (H+2K)·D]: queries, keys, values side by side, RoPE already applied. out [B·T, H·D]. lse [B,H,T] fp32: log-sum-exp of
// the scaled scores (scale 1/√D), kept for the backward; may be empty when none follows.
// first [B,T] int32: position t sees positions first[t]…t of its row (document masks); empty: 0…t. Within a row it never decreases, and
// 0 <= first[t] <= t: kernels skip tiles by it. Checked where the host can read it; on a GPU it is the caller's word.
void attention(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape);

// dqkv [B·T, (H+2K)·D] is written whole.
void attention_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& shape);

namespace cpu {
void attention(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape);
void attention_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& shape);
}  // namespace cpu
namespace cuda {
void attention(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape);
void attention_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& shape);
}  // namespace cuda

}  // namespace bhyt
