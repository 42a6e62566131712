#include "core/math.h"
#include "core/threads.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kPiece = 8192;  // elements of a row that one task takes

// sigmoid(g) for a g that is multiplied by it: from ±87 on the value no longer changes, which needs one power of two instead of fast_exp's
// two, and a NaN comes back through the product.
BHYT_BOTH float gate_sigmoid(float g) {
  const float x = detail::clamp_magnitude(-g, 87.0f), magic = 12582912.0f;
  const float shifted = x * 1.44269504f + magic;  // its low bits are n = round(x / ln 2) as an integer; e^x = 2^n · e^r
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f, r2 = r * r;
  const float q = (0.49999994f + 0.166665196f * r) + r2 * ((0.0416683927f + 0.00836878084f * r) + r2 * 0.00138144672f);
  return 1.0f / (1.0f + ((1.0f + r) + r2 * q) * detail::float_from_bits((detail::float_bits(shifted) + 127u) << 23));
}

template <class T>
BHYT_BOTH void forward_loop(const T* gate, const T* up, T* h, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = to_float(gate[i]);
    h[i] = from_float<T>(g * gate_sigmoid(g) * to_float(up[i]));
  }
}

template <bool Again, class T>
BHYT_BOTH void backward_loop(const T* gate, const T* up, const T* dh, T* dgate, T* dup, T* h, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = to_float(gate[i]), u = to_float(up[i]), d = to_float(dh[i]), s = gate_sigmoid(g), silu = g * s;
    dgate[i] = from_float<T>(d * u * (s + silu * (1.0f - s)));
    dup[i] = from_float<T>(d * silu);
    if constexpr (Again) h[i] = from_float<T>(silu * u);
  }
}

BHYT_CLONES void forward(const float* gate, const float* up, float* h, std::int64_t n) { forward_loop(gate, up, h, n); }
BHYT_CLONES void forward(const bf16* gate, const bf16* up, bf16* h, std::int64_t n) { forward_loop(gate, up, h, n); }
BHYT_CLONES void backward(const float* gate, const float* up, const float* dh, float* dgate, float* dup, float* h, std::int64_t n) {
  if (h)
    backward_loop<true>(gate, up, dh, dgate, dup, h, n);
  else
    backward_loop<false>(gate, up, dh, dgate, dup, h, n);
}
BHYT_CLONES void backward(const bf16* gate, const bf16* up, const bf16* dh, bf16* dgate, bf16* dup, bf16* h, std::int64_t n) {
  if (h)
    backward_loop<true>(gate, up, dh, dgate, dup, h, n);
  else
    backward_loop<false>(gate, up, dh, dgate, dup, h, n);
}

// Calls f(row, first, n) for pieces of rows, several short rows to a task.
template <class F>
void for_pieces(Context& ctx, std::int64_t rows, std::int64_t cols, F&& f) {
  const std::int64_t pieces = (cols + kPiece - 1) / kPiece;
  parallel_for(ctx.threads(), rows * pieces, std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(cols, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t first = i % pieces * kPiece;
                   f(i / pieces, first, std::min(kPiece, cols - first));
                 }
               });
}

}  // namespace

void swiglu(Context& ctx, const Tensor& gate_up, const Tensor& h) {
  dispatch_float(h.dtype, [&]<class T>(T) {
    const std::int64_t f = h.cols();
    for_pieces(ctx, h.rows(), f, [&](std::int64_t row, std::int64_t first, std::int64_t n) {
      const T* in = gate_up.as<T>() + row * gate_up.ld + first;
      forward(in, in + f, h.as<T>() + row * h.ld + first, n);
    });
  });
}

void swiglu_backward(Context& ctx, const Tensor& gate_up, const Tensor& dh, const Tensor& dgate_up, const Tensor& h) {
  dispatch_float(dh.dtype, [&]<class T>(T) {
    const std::int64_t f = dh.cols();
    for_pieces(ctx, dh.rows(), f, [&](std::int64_t row, std::int64_t first, std::int64_t n) {
      const T* in = gate_up.as<T>() + row * gate_up.ld + first;
      T* out = dgate_up.as<T>() + row * dgate_up.ld + first;
      T* again = h ? h.as<T>() + row * h.ld + first : nullptr;
      backward(in, in + f, dh.as<T>() + row * dh.ld + first, out, out + f, again, n);
    });
  });
}

}  // namespace bhyt::cpu
