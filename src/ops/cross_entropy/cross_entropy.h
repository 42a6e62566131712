// The LM head and its loss in one: logits are made, used and dropped a few rows at a time, so [tokens × vocabulary] never exists.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

struct CrossEntropy {
  Tensor x;         // [N,C] the final norm's output
  Tensor w;         // [V,C] the LM head (the embedding when tied)
  Tensor targets;   // int32 [N]; a negative target is skipped
  Tensor weights;   // fp32 [N], the weight of each token; empty = 1
  float scale = 1;  // what the gradients (not the loss) are multiplied by: 1 / the weight of all tokens of the step
  Tensor scale_by;  // fp32 [1] or empty: scale is multiplied by it; read on the device, so that a recorded graph serves any value
  Tensor loss;      // fp32 [1] += Σ weight · (−log p(target)); may be empty
  Tensor losses;    // fp32 [N], −log p per token (0 where skipped); may be empty
  Tensor greedy;    // int32 [N], argmax of the logits; may be empty
  Tensor dx;        // [N,C] written, may be x itself; empty = no backward
  Tensor dw;        // fp32 [V,C] +=, or = without `accumulate`
  bool accumulate = true;
  Tensor workspace;     // fp32 or bytes, cross_entropy_workspace() of them
  bool by_row = false;  // logits by_row (gemm.h)
};

// Bytes of workspace that one call wants for N tokens (the rows of logits that exist at a time).
std::size_t cross_entropy_workspace(std::int64_t tokens, std::int64_t width, std::int64_t vocab, DType type, Device device);

void cross_entropy(Context& ctx, const CrossEntropy& job);

namespace cpu {
std::size_t cross_entropy_workspace(std::int64_t tokens, std::int64_t width, std::int64_t vocab, DType type);
void cross_entropy(Context& ctx, const CrossEntropy& job);
}  // namespace cpu
namespace cuda {
void cross_entropy(Context& ctx, const CrossEntropy& job);
}  // namespace cuda

}  // namespace bhyt
