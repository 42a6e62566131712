// Checks and dispatch of the LM head with its loss.
#include "ops/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "core/check.h"
#include "ops/cross_entropy/gpu_workspace.h"

namespace bhyt {

namespace {

// A vector with one element per token, or `size` of them; empty tensors pass.
void check_vector(const Tensor& t, const char* what, DType type, std::int64_t size, Device device) {
  if (!t) return;
  check(t.dtype == type && t.size() == size && t.contiguous() && t.device == device,
        "[cross_entropy] expected {} {} [{}] on {}, got {} {} on {}", what, name_of(type), size, device, name_of(t.dtype), shape_string(t),
        t.device);
}

void check_matrix(const Tensor& t, const char* what, DType type, std::int64_t rows, std::int64_t cols, Device device) {
  check(t.dtype == type && t.rows() == rows && t.cols() == cols && t.device == device,
        "[cross_entropy] expected {} {} [{}, {}] on {}, got {} {} on {}", what, name_of(type), rows, cols, device, name_of(t.dtype),
        shape_string(t), t.device);
}

}  // namespace

std::size_t cross_entropy_workspace(std::int64_t tokens, std::int64_t width, std::int64_t vocab, DType type, Device device) {
  if (!device.is_cuda()) return cpu::cross_entropy_workspace(tokens, width, vocab, type);
  // A loss alone is made from fp32 logits in any run.
  return std::max(cuda::Workspace(tokens, vocab, type).bytes, cuda::Workspace(tokens, vocab, DType::f32).bytes);
}

void cross_entropy(Context& ctx, const CrossEntropy& job) {
  const Tensor& x = job.x;
  const std::int64_t n = x.rows(), c = x.cols(), v = job.w.rows();
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "[cross_entropy] expected x fp32 or bf16, got {}", name_of(x.dtype));
  check_matrix(job.w, "w", job.by_row && job.w.dtype == DType::i8 ? DType::i8 : x.dtype, v, c, x.device);
  check(job.targets.data || n == 0, "[cross_entropy] expected targets, got none");
  check_vector(job.targets, "targets", DType::i32, n, x.device);
  check_vector(job.weights, "weights", DType::f32, n, x.device);
  check_vector(job.scale_by, "scale_by", DType::f32, 1, x.device);
  check_vector(job.loss, "loss", DType::f32, 1, x.device);
  check_vector(job.losses, "losses", DType::f32, n, x.device);
  check_vector(job.greedy, "greedy", DType::i32, n, x.device);
  if (job.dx) check_matrix(job.dx, "dx", x.dtype, n, c, x.device);
  if (job.dw) check_matrix(job.dw, "dw", DType::f32, v, c, x.device);
  const std::size_t needed = cross_entropy_workspace(n, c, v, x.dtype, x.device);
  check(job.workspace.bytes() >= needed && job.workspace.device == x.device,
        "[cross_entropy] expected {} bytes of workspace on {}, got {} on {}", needed, x.device, job.workspace.bytes(),
        job.workspace.device);
  const Operation operation(ctx, "cross_entropy", profile::Kind::cross_entropy, x.device);
  if (ctx.device().is_cuda())
    cuda::cross_entropy(ctx, job);
  else
    cpu::cross_entropy(ctx, job);
}

}  // namespace bhyt
