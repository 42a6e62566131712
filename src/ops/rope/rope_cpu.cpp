#include "core/check.h"
#include "core/threads.h"
#include "ops/rope/rope.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kGrain = 16384;  // elements that one task rotates

// Rotates the heads of one row by the angles whose cos and sin are given; `sign` -1 rotates back.
template <class T>
BHYT_BOTH void rotate_loop(T* x, const float* cos, const float* sin, float sign, std::int64_t heads, std::int64_t half) {
  for (std::int64_t h = 0; h < heads; ++h) {
    T *lower = x + h * 2 * half, *upper = lower + half;
#pragma omp simd
    for (std::int64_t j = 0; j < half; ++j) {
      const float a = to_float(lower[j]), b = to_float(upper[j]), s = sign * sin[j];
      lower[j] = from_float<T>(a * cos[j] - b * s);
      upper[j] = from_float<T>(b * cos[j] + a * s);
    }
  }
}

BHYT_CLONES void rotate(float* x, const float* cos, const float* sin, float sign, std::int64_t heads, std::int64_t half) {
  rotate_loop(x, cos, sin, sign, heads, half);
}
BHYT_CLONES void rotate(bf16* x, const float* cos, const float* sin, float sign, std::int64_t heads, std::int64_t half) {
  rotate_loop(x, cos, sin, sign, heads, half);
}

}  // namespace

void rope(Context& ctx, const Tensor& x, const Tensor& table, const RopeOptions& o) {
  const auto* positions = o.positions.as<std::int32_t>();
  for (std::int64_t i = 0; positions && i < x.rows(); ++i)
    check(positions[i] >= 0 && positions[i] < table.rows(), "[rope] expected positions below {}, got {}", table.rows(), positions[i]);
  const std::int64_t half = o.head_dim / 2, grain = kGrain / std::max<std::int64_t>(1, o.heads * o.head_dim);
  dispatch_float(x.dtype, [&]<class T>(T) {
    parallel_for(ctx.threads(), x.rows(), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t position = positions ? positions[i] : o.start + i % o.seq;
        const float* angles = table.as<float>() + position * o.head_dim;
        rotate(x.as<T>() + i * x.ld, angles, angles + half, o.inverse ? -1.0f : 1.0f, o.heads, half);
      }
    });
  });
}

}  // namespace bhyt::cpu
