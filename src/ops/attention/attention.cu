// Which kernels compute attention on the GPU.
#include "ops/attention/attention.cuh"

namespace bhyt::cuda {

void attention(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  if (!first && attention_cudnn(qkv, out, lse, shape)) return;
  attention_any(qkv, out, lse, first, shape);
}

void attention_backward(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& shape) {
  if (!first && attention_cudnn_backward(qkv, out, lse, dout, dqkv, shape)) return;
  attention_any_backward(qkv, out, lse, first, dout, dqkv, shape);
}

}  // namespace bhyt::cuda
