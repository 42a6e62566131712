// The ways to compute attention on the GPU; attention.cu picks.
#pragma once

#include "ops/attention/attention.h"

namespace bhyt::cuda {

// Plain kernels, for everything.
void attention_any(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape);
void attention_any_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                            const Tensor& dqkv, const AttentionShape& shape);

// By tiles on the ordinary cores: fp32 and bf16, head widths up to 128. False: nothing was done.
bool attention_tiled(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                     const AttentionShape& shape);
bool attention_tiled_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                              const Tensor& dout, const Tensor& dqkv, const AttentionShape& shape);

// cuDNN, where it is built in and takes the shape: bf16, causal, no document mask. False: nothing was done.
bool attention_cudnn(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape);
bool attention_cudnn_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& dout, const Tensor& dqkv,
                              const AttentionShape& shape);

// Own flash attention on tensor cores: bf16, head widths 64 and 128, rows that begin at multiples of 16 bytes. False: nothing was done.
bool attention_flash(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                     const AttentionShape& shape);
bool attention_flash_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                              const Tensor& dout, const Tensor& dqkv, const AttentionShape& shape);

// On Hopper's tensor cores (sm_90a): bf16, head width 64, rows that begin at multiples of 16 bytes. False: nothing was done.
bool attention_hopper(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                      const AttentionShape& shape);
bool attention_hopper_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                               const Tensor& dout, const Tensor& dqkv, const AttentionShape& shape);

}  // namespace bhyt::cuda
