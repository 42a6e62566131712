// Checks and dispatch of attention.
#include "ops/attention/attention.h"

#include "core/check.h"

namespace bhyt {

namespace {

void check_matrix(const char* op, const char* what, const Tensor& t, std::int64_t rows, std::int64_t cols, const Tensor& like) {
  check(t.data || t.size() == 0, "[{}] expected {} with memory, got none", op, what);
  check(t.rows() == rows && t.cols() == cols, "[{}] expected {} [{}, {}], got {}", op, what, rows, cols, shape_string(t));
  check(t.dtype == like.dtype && t.device == like.device, "[{}] expected {} {} on {}, got {} on {}", op, what, name_of(like.dtype),
        like.device, name_of(t.dtype), t.device);
}

void check_shape(const char* op, const AttentionShape& s, const Tensor& x) {
  check(s.batch >= 0 && s.seq >= 0 && s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.heads % s.kv_heads == 0,
        "[{}] expected positive sizes and query heads that are a multiple of the key/value heads, got batch {}, seq {}, heads {}, kv_heads "
        "{}, "
        "head_dim {}",
        op, s.batch, s.seq, s.heads, s.kv_heads, s.head_dim);
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "[{}] expected fp32 or bf16, got {}", op, name_of(x.dtype));
}

// What the kernels of both devices rely on; a GPU's memory cannot be read here.
void check_first(const char* op, const Tensor& first, const AttentionShape& s) {
  if (!first || first.device.is_cuda()) return;
  const std::int32_t* at = first.as<std::int32_t>();
  for (std::int64_t b = 0; b < s.batch; ++b, at += s.seq)
    for (std::int64_t t = 0; t < s.seq; ++t) {
      const std::int32_t lowest = t > 0 ? at[t - 1] : 0;
      if (at[t] < lowest || at[t] > t) [[unlikely]]
        fail(fmt::format("[{}] expected first between {} (that of the position before, or 0) and {} at position {} of row {}, got {}", op,
                         lowest, t, t, b, at[t]));
    }
}

void check_call(const char* op, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  check_shape(op, s, qkv);
  const std::int64_t n = s.batch * s.seq;
  check_matrix(op, "qkv", qkv, n, (s.heads + 2 * s.kv_heads) * s.head_dim, qkv);
  check_matrix(op, "out", out, n, s.heads * s.head_dim, qkv);
  check(!lse || (lse.dtype == DType::f32 && lse.size() == n * s.heads && lse.contiguous()),
        "[{}] expected lse fp32 [{}, {}, {}], got {} {}", op, s.batch, s.heads, s.seq, name_of(lse.dtype), shape_string(lse));
  check(!first || (first.dtype == DType::i32 && first.size() == n && first.contiguous()), "[{}] expected first int32 [{}, {}], got {} {}",
        op, s.batch, s.seq, name_of(first.dtype), shape_string(first));
  check(!first || first.device == qkv.device, "[{}] expected first on {}, got {}", op, qkv.device, first.device);
  check_first(op, first, s);
}

}  // namespace

void attention(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  check_call("attention", qkv, out, lse, first, shape);
  const Operation operation(ctx, "attention", profile::Kind::attention, qkv.device);
  if (ctx.device().is_cuda())
    cuda::attention(ctx, qkv, out, lse, first, shape);
  else
    cpu::attention(ctx, qkv, out, lse, first, shape);
}

void attention_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& shape) {
  check_call("attention_backward", qkv, out, lse, first, shape);
  check(lse || qkv.size() == 0, "[attention_backward] expected the forward's lse, got none");
  check_matrix("attention_backward", "dout", dout, out.rows(), out.cols(), qkv);
  check_matrix("attention_backward", "dqkv", dqkv, qkv.rows(), qkv.cols(), qkv);
  const Operation operation(ctx, "attention_backward", profile::Kind::attention, qkv.device);
  if (ctx.device().is_cuda())
    cuda::attention_backward(ctx, qkv, out, lse, first, dout, dqkv, shape);
  else
    cpu::attention_backward(ctx, qkv, out, lse, first, dout, dqkv, shape);
}

}  // namespace bhyt
