// Checks and dispatch of the optimizer step.
#include "ops/adamw/adamw.h"

#include <string>

#include "core/check.h"

namespace bhyt {

namespace {

void check_arena(const Tensor& t, const Tensor& like, const char* what) {
  check(t.dtype == DType::f32 && t.contiguous() && t.size() == like.size() && t.device == like.device,
        "[adamw] expected {} fp32 of {} elements on {}, got {} of {} on {}", what, like.size(), like.device, name_of(t.dtype), t.size(),
        t.device);
}

void check_spans(const Tensor& arena, const std::vector<ArenaSpan>& spans) {
  for (const ArenaSpan& s : spans)
    check(s.offset >= 0 && s.size >= 0 && s.offset + s.size <= arena.size(), "[adamw] expected spans within {} elements, got {}…{}",
          arena.size(), s.offset, s.offset + s.size);
}

void check_scalar(const Tensor& t, const Tensor& like, const char* what) {
  check(t.dtype == DType::f32 && t.size() == 1 && t.device == like.device, "[adamw] expected {} fp32 [1] on {}, got {} {} on {}", what,
        like.device, name_of(t.dtype), shape_string(t), t.device);
}

}  // namespace

void sum_of_squares(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& sum) {
  check_arena(gradients, gradients, "gradients");
  check_spans(gradients, spans);
  check(sum.dtype == DType::f64 && sum.size() == 1 && sum.device == gradients.device,
        "[adamw] expected a sum fp64 [1] on {}, got {} {} on {}", gradients.device, name_of(sum.dtype), shape_string(sum), sum.device);
  const Operation operation(ctx, "sum_of_squares", profile::Kind::optimizer, sum.device);
  if (ctx.device().is_cuda())
    cuda::sum_of_squares(ctx, gradients, spans, sum);
  else
    cpu::sum_of_squares(ctx, gradients, spans, sum);
}

void square_root(Context& ctx, const Tensor& sum, const Tensor& norm) {
  check_scalar(norm, norm, "the gradient norm");
  const Operation operation(ctx, "square_root", profile::Kind::optimizer, norm.device);
  if (ctx.device().is_cuda())
    cuda::square_root(ctx, sum, norm);
  else
    cpu::square_root(ctx, sum, norm);
}

void gradient_norm(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& norm) {
  const Tensor sum(ctx.scratch(sizeof(double)), DType::f64, ctx.device(), {1});
  sum_of_squares(ctx, gradients, spans, sum);
  square_root(ctx, sum, norm);
}

void adamw(Context& ctx, const Tensor& low_bits, const Tensor& gradients, const Tensor& m, const Tensor& v,
           const std::vector<ArenaSpan>& spans, const AdamW& step) {
  check_arena(gradients, gradients, "gradients");
  check_arena(m, gradients, "first moments");
  check_arena(v, gradients, "second moments");
  check_spans(gradients, spans);
  for (const ArenaSpan& s : spans) {
    check((s.value.dtype == DType::f32 || s.value.dtype == DType::bf16) && s.value.contiguous() && s.value.size() == s.size &&
              s.value.device == gradients.device,
          "[adamw] expected a value fp32 or bf16 of {} elements on {}, got {} {} on {}", s.size, gradients.device, name_of(s.value.dtype),
          shape_string(s.value), s.value.device);
    check(s.value.dtype == DType::f32 ||
              (low_bits.dtype == DType::u16 && low_bits.size() == gradients.size() && low_bits.device == gradients.device),
          "[adamw] expected the low bits of bf16 values, uint16 of {} elements on {}, got {} of {} on {}", gradients.size(),
          gradients.device, name_of(low_bits.dtype), low_bits.size(), low_bits.device);
  }
  check(step.step >= 1, "[adamw] expected steps from 1, got {}", step.step);
  check(step.clip <= 0 || step.grad_norm, "[adamw] expected the gradient norm, which clipping needs");
  if (step.grad_norm) check_scalar(step.grad_norm, gradients, "the gradient norm");
  if (step.loss) check_scalar(step.loss, gradients, "the loss");
  const Operation operation(ctx, "adamw", profile::Kind::optimizer, gradients.device);
  if (ctx.device().is_cuda())
    cuda::adamw(ctx, low_bits, gradients, m, v, spans, step);
  else
    cpu::adamw(ctx, low_bits, gradients, m, v, spans, step);
}

}  // namespace bhyt
