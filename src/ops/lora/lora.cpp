// Checks, dispatch and the products of adapters; the device is chosen below, in gemm.
#include "ops/lora/lora.h"

#include "core/check.h"
#include "ops/gemm/gemm.h"

namespace bhyt {

namespace {

// Calls f(i, columns of t, columns of y) for every projection that is adapted.
template <class F>
void each_projection(const LoraWeights& w, const Tensor& t, const Tensor& y, const LoraOptions& options, F&& f) {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < w.b.size(); ++i) {
    const Tensor& b = w.b[i];
    if (!b) continue;
    check(options.columns[i] + b.rows() <= y.cols() && at + b.cols() <= t.cols(), "[lora] expected B {} to fit columns {} of {} and t {}",
          shape_string(b), options.columns[i], shape_string(y), shape_string(t));
    f(i, t.col_slice(at, b.cols()), y.col_slice(options.columns[i], b.rows()));
    at += b.cols();
  }
  check(at == t.cols(), "[lora] expected t with {} columns, got {}", at, shape_string(t));
}

ScaleMasked inverted(const Dropout& d, bool add) { return {.factor = 1.0f / (1.0f - d.p), .dropout = d, .add = add}; }

// The room for x with dropout, in the shape of x.
Tensor room(const LoraOptions& options, const Tensor& x) {
  const Tensor& d = options.dropped;
  check(d && d.dtype == x.dtype && d.size() >= x.size(), "[lora] expected room for {} {} with dropout, got {} {}", name_of(x.dtype),
        shape_string(x), name_of(d.dtype), shape_string(d));
  return Tensor(d.data, x.dtype, x.device, {x.rows(), x.cols()});
}

Tensor dropped(Context& ctx, const Tensor& x, const LoraOptions& options) {
  if (options.dropout.p == 0) return x;
  const Tensor out = room(options, x);
  scale_masked(ctx, x, out, inverted(options.dropout, false));
  return out;
}

void scale(Context& ctx, const Tensor& t, float factor) {
  if (factor != 1) scale_masked(ctx, t, t, {.factor = factor});
}

}  // namespace

void lora(Context& ctx, const LoraWeights& w, const Tensor& x, const Tensor& t, const Tensor& y, const LoraOptions& options) {
  gemm(ctx, dropped(ctx, x, options), w.a, t, {.trans_b = true, .by_row = options.by_row});
  scale(ctx, t, options.scale);
  each_projection(w, t, y, options, [&](std::size_t i, const Tensor& ti, const Tensor& yi) {
    gemm(ctx, ti, w.b[i], yi, {.trans_b = true, .accumulate = true, .by_row = options.by_row});
  });
}

void lora_backward_b(Context& ctx, const LoraWeights& w, const LoraWeights& gradients, const Tensor& t, const Tensor& dy,
                     const LoraOptions& options, bool accumulate) {
  each_projection(w, t, dy, options, [&](std::size_t i, const Tensor& ti, const Tensor& dyi) {
    if (gradients.b[i]) gemm(ctx, dyi, ti, gradients.b[i], {.trans_a = true, .accumulate = accumulate});
    gemm(ctx, dyi, w.b[i], ti);
  });
  scale(ctx, t, options.scale);
}

void lora_backward_a(Context& ctx, const LoraWeights& gradients, const Tensor& t, const Tensor& x, const LoraOptions& options,
                     bool accumulate) {
  if (gradients.a) gemm(ctx, t, dropped(ctx, x, options), gradients.a, {.trans_a = true, .accumulate = accumulate});
}

void lora_backward_x(Context& ctx, const LoraWeights& w, const Tensor& t, const Tensor& dx, const LoraOptions& options) {
  if (options.dropout.p == 0) return gemm(ctx, t, w.a, dx, {.accumulate = true});
  const Tensor ta = room(options, dx);
  gemm(ctx, t, w.a, ta);
  scale_masked(ctx, ta, dx, inverted(options.dropout, true));
}

void scale_masked(Context& ctx, const Tensor& x, const Tensor& y, const ScaleMasked& how) {
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "[scale_masked] expected x fp32 or bf16, got {}", name_of(x.dtype));
  check(y.dtype == x.dtype && y.rows() == x.rows() && y.cols() == x.cols() && y.device == x.device,
        "[scale_masked] expected y {} {}, got {} {}", name_of(x.dtype), shape_string(x), name_of(y.dtype), shape_string(y));
  check(how.dropout.p >= 0 && how.dropout.p < 1, "[scale_masked] expected p from 0 to below 1, got {}", how.dropout.p);
  const Operation operation(ctx, "scale_masked", profile::Kind::other, y.device);
  if (ctx.device().is_cuda())
    cuda::scale_masked(ctx, x, y, how);
  else
    cpu::scale_masked(ctx, x, y, how);
}

}  // namespace bhyt
