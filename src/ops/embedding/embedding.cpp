// Checks and dispatch of the token embedding.
#include "ops/embedding/embedding.h"

#include "core/check.h"

namespace bhyt {

namespace {

void check_scalar(const Tensor& t, const Tensor& like, const char* what) {
  if (!t) return;
  check(t.dtype == DType::f32 && t.size() == 1 && t.device == like.device, "[embedding] expected {} fp32 [1] on {}, got {} {} on {}", what,
        like.device, name_of(t.dtype), shape_string(t), t.device);
}

// rows [N,C]: the output or its gradient.
void check_shapes(const Tensor& tokens, const Tensor& table, const Tensor& rows, const EmbeddingScale& scale) {
  check(table.dtype == DType::f32 || table.dtype == DType::bf16, "[embedding] expected a table fp32 or bf16, got {}", name_of(table.dtype));
  check(tokens.dtype == DType::i32, "[embedding] expected tokens int32, got {}", name_of(tokens.dtype));
  check(rows.dtype == table.dtype && rows.rows() == tokens.size() && rows.cols() == table.cols(),
        "[embedding] expected rows {} [{}, {}], got {} {}", name_of(table.dtype), tokens.size(), table.cols(), name_of(rows.dtype),
        shape_string(rows));
  check(tokens.device == table.device && rows.device == table.device, "[embedding] expected tokens and rows on {}, got {} and {}",
        table.device, tokens.device, rows.device);
  check_scalar(scale.learned, table, "the learned scale");
  check_scalar(scale.dlearned, table, "the gradient of the scale");
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out, const EmbeddingScale& scale) {
  check_shapes(tokens, table, out, scale);
  const Operation operation(ctx, "embedding", profile::Kind::embedding, out.device);
  if (ctx.device().is_cuda())
    cuda::embedding(ctx, tokens, table, out, scale);
  else
    cpu::embedding(ctx, tokens, table, out, scale);
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& dout, const Tensor& dtable,
                        const EmbeddingScale& scale) {
  check_shapes(tokens, table, dout, scale);
  check(!dtable ||
            (dtable.dtype == DType::f32 && dtable.rows() == table.rows() && dtable.cols() == table.cols() && dtable.device == table.device),
        "[embedding] expected dtable fp32 {} on {}, got {} {} on {}", shape_string(table), table.device, name_of(dtable.dtype),
        shape_string(dtable), dtable.device);
  const Operation operation(ctx, "embedding_backward", profile::Kind::embedding, dout.device);
  if (ctx.device().is_cuda())
    cuda::embedding_backward(ctx, tokens, table, dout, dtable, scale);
  else
    cpu::embedding_backward(ctx, tokens, table, dout, dtable, scale);
}

void take_fed(Context& ctx, const Tensor& tokens, const Tensor& feed) {
  check(tokens.dtype == DType::i32 && feed.dtype == DType::i32 && tokens.device == feed.device,
        "[take_fed] expected tokens and feed int32 on one device, got {} on {} and {} on {}", name_of(tokens.dtype), tokens.device,
        name_of(feed.dtype), feed.device);
  const Operation operation(ctx, "take_fed", profile::Kind::embedding, tokens.device);
  if (ctx.device().is_cuda())
    cuda::take_fed(ctx, tokens, feed);
  else
    cpu::take_fed(ctx, tokens, feed);
}

}  // namespace bhyt
