// Which kernels compute attention on the GPU: the first that take the call of those written for Hopper (heads of 64), cuDNN's, the flash
// kernels, those by tiles, the plain ones. The environment variable BHYT_ATTENTION=hopper|cudnn|flash|tiled|plain leaves only the named
// ones, with the plain ones for what they do not take: for tests and comparisons.
#include <cstdlib>

#include "core/cuda_host.h"
#include "ops/attention/attention.cuh"

namespace bhyt::cuda {

namespace {

struct Allowed {
  bool hopper = true, cudnn = true, flash = true, tiled = true;
};

const Allowed& allowed() {
  static const Allowed a = [] {
    const char* text = std::getenv("BHYT_ATTENTION");
    const std::string want = text ? text : "";
    if (want.empty()) return Allowed{};
    if (want != "hopper" && want != "cudnn" && want != "flash" && want != "tiled" && want != "plain")
      throw UsageError("[attention] expected BHYT_ATTENTION to be hopper, cudnn, flash, tiled or plain, got " + want);
    return Allowed{.hopper = want == "hopper", .cudnn = want == "cudnn", .flash = want == "flash", .tiled = want == "tiled"};
  }();
  return a;
}

}  // namespace

void attention(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  if (qkv.size() == 0) return;
  if (allowed().hopper && attention_hopper(ctx, qkv, out, lse, first, shape)) return;
  if (allowed().cudnn && !first && attention_cudnn(ctx, qkv, out, lse, shape)) return;
  if (allowed().flash && attention_flash(ctx, qkv, out, lse, first, shape)) return;
  if (allowed().tiled && attention_tiled(ctx, qkv, out, lse, first, shape)) return;
  attention_any(ctx, qkv, out, lse, first, shape);
}

void attention_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& shape) {
  if (qkv.size() == 0) return;
  if (allowed().hopper && attention_hopper_backward(ctx, qkv, out, lse, first, dout, dqkv, shape)) return;
  if (allowed().cudnn && !first && attention_cudnn_backward(ctx, qkv, out, lse, dout, dqkv, shape)) return;
  if (allowed().flash && attention_flash_backward(ctx, qkv, out, lse, first, dout, dqkv, shape)) return;
  if (allowed().tiled && attention_tiled_backward(ctx, qkv, out, lse, first, dout, dqkv, shape)) return;
  attention_any_backward(ctx, qkv, out, lse, first, dout, dqkv, shape);
}

}  // namespace bhyt::cuda
