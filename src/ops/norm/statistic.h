// From a row's statistic to its scale, and from the scale's gradient back to the row: written once, for the CPU loops and the CUDA kernels.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"
#include "ops/norm/norm.h"

namespace bhyt {

// A site and one call of it as plain numbers and pointers (host or device, as the call's tensors are).
struct NormParams {
  std::int64_t n;
  int c;
  Stat stat;
  float factor, out_factor, eps, calibration, aux;
  const float *gamma, *beta, *scale, *shift, *gate, *direction;
  const float *ms, *constant, *ms_correction, *constant_correction;  // of a given statistic
  float *exact, *stats, *dms_out;
  const float* dms_in;
  const float* aux_by;
  const std::int32_t* targets;
};

inline float* pointer(const Tensor& t) { return t ? t.as<float>() : nullptr; }

inline NormParams make_params(const NormSite& s, const Tensor& x, const Tensor& stats, const Given* g) {
  NormParams p{};
  p.n = x.rows();
  p.c = static_cast<int>(x.cols());
  p.stat = s.stat;
  p.factor = s.factor;
  p.out_factor = s.out_factor;
  p.eps = s.eps;
  p.calibration = 1;
  p.gamma = pointer(s.gamma);
  p.beta = pointer(s.beta);
  p.scale = pointer(s.scale);
  p.shift = pointer(s.shift);
  p.gate = pointer(s.gate);
  p.direction = pointer(s.direction);
  p.stats = pointer(stats);
  if (!g) return p;
  p.ms = pointer(g->ms);
  p.constant = pointer(g->constant);
  p.ms_correction = pointer(g->ms_correction);
  p.constant_correction = pointer(g->constant_correction);
  p.calibration = g->calibration;
  p.aux = g->aux;
  p.exact = pointer(g->exact);
  p.aux_by = pointer(g->aux_by);
  p.targets = g->targets ? g->targets.as<std::int32_t>() : nullptr;
  p.dms_out = pointer(g->dms);
  return p;
}

BHYT_BOTH float value_or(const float* scalar, float otherwise) { return scalar ? *scalar : otherwise; }

BHYT_BOTH float inverse_root(float v) {
#if defined(__CUDA_ARCH__)
  return rsqrtf(v);
#else
  return 1 / std::sqrt(v);
#endif
}

// The mean is taken off the row before its squares are summed.
BHYT_BOTH bool is_centred(Stat stat) { return stat == Stat::mean_var || stat == Stat::mean_std; }

// What a row's scale is made of: (mean square or variance, mean or SeeDNorm's x·b); of a given statistic the block input's mean square.
struct RowStats {
  float s0 = 0, s1 = 0;
};

// As the forward kept them.
BHYT_BOTH RowStats kept_stats(const NormParams& p, std::int64_t row) {
  if (p.stat == Stat::given) return {p.ms[row], 0};
  return p.stats && p.stat != Stat::none ? RowStats{p.stats[row], p.stats[p.n + row]} : RowStats{0, 0};
}

// exact: the row's own mean square, for the auxiliary loss.
BHYT_BOTH void keep_stats(const NormParams& p, std::int64_t row, RowStats s, float exact) {
  if (p.stats && p.stat != Stat::given && p.stat != Stat::none) {
    p.stats[row] = s.s0;
    p.stats[p.n + row] = s.s1;
  }
  if (p.aux != 0) p.exact[row] = exact;
}

// s̃² from the mean square of the block's input; constant: C times its correction.
BHYT_BOTH float given_square(const NormParams& p, float ms, float ms_correction, float constant) {
  return p.calibration * (ms * (1 + ms_correction) + constant);
}
BHYT_BOTH float given_square(const NormParams& p, float ms) {
  return given_square(p, ms, value_or(p.ms_correction, 0), value_or(p.constant_correction, 1) * *p.constant);
}

// What is shown of a row to those who look: its statistic, approximated where it is given.
BHYT_BOTH float shown_statistic(const NormParams& p, RowStats s) { return p.stat == Stat::given ? given_square(p, s.s0) : s.s0; }

// u = a·(x − mean) + shift; unit is a without the constant factor and the learned scale.
struct RowScale {
  float a, mean, unit;
};
// learned: the scale; given: s̃², where the statistic is given.
BHYT_BOTH RowScale row_scale(const NormParams& p, RowStats s, float learned, float given) {
  const float k = p.factor * learned;
  float unit = 1;
  switch (p.stat) {
    case Stat::none: break;
    case Stat::rms:
    case Stat::mean_var: unit = inverse_root(s.s0 + p.eps); break;
    case Stat::mean_std: unit = 1 / (std::sqrt(s.s0 + p.eps) + p.factor * std::fabs(s.s1)); break;
    case Stat::given: unit = inverse_root(given + p.eps); break;
  }
  return {k * unit, p.stat == Stat::mean_var ? s.s1 : 0, unit};
}
BHYT_BOTH RowScale row_scale(const NormParams& p, RowStats s) {
  return row_scale(p, s, value_or(p.scale, 1), p.stat == Stat::given ? given_square(p, s.s0) : 0);
}

// Per-row sums of the backward over the columns: Σ du·(x − mean), Σ du.
struct RowSums {
  float s1 = 0, s0 = 0;
};

// Sums over rows of the scalars' gradients; A: double on the CPU, float on the GPU.
template <class A>
struct ScalarSums {
  A scale = 0, shift = 0, ms_correction = 0, constant_correction = 0;
};

// What the statistic adds to the gradient of the row: dx += slope·x + level.
struct StatisticGradient {
  float slope = 0, level = 0;
};

// The part of a given statistic: its gradient goes to the block's input and to the corrections.
template <class A>
BHYT_BOTH void given_backward(const NormParams& p, std::int64_t row, float ms, float a, float sum1, ScalarSums<A>& total) {
  const float square = given_square(p, ms);
  float dsquare = -0.5f * a / (square + p.eps) * sum1;
  if (p.aux != 0 && !(p.targets && p.targets[row] == kFilling)) {
    const float aux = p.aux * value_or(p.aux_by, 1);
    const A tiny = A(1e-8), exact = p.exact[row];
    dsquare += static_cast<float>(aux * 2 * (std::log(square + tiny) - std::log(exact + tiny)) / (square + tiny));
  }
  const float dsum = dsquare * p.calibration;
  if (p.dms_out) p.dms_out[row] = dsum * (1 + value_or(p.ms_correction, 0));
  total.ms_correction += static_cast<A>(dsum) * ms;
  total.constant_correction += static_cast<A>(dsum) * *p.constant;
}

// From the row's sums to the rest of dx. add_scalars: in one thread of a row the scalars' gradients and dms are written, too.
template <class A>
BHYT_BOTH StatisticGradient statistic_backward(const NormParams& p, std::int64_t row, RowStats s, RowScale r, RowSums sums,
                                               bool add_scalars, ScalarSums<A>& total) {
  const float inv = 1.0f / static_cast<float>(p.c);
  if (add_scalars) {
    total.scale += static_cast<A>(sums.s1) * p.factor * r.unit;
    total.shift += sums.s0;
  }
  switch (p.stat) {
    case Stat::none: break;
    case Stat::rms: {
      float dms = -0.5f * r.a / (s.s0 + p.eps) * sums.s1;
      if (p.dms_in) dms += p.dms_in[row];
      return {2 * dms * inv, 0};
    }
    case Stat::mean_var: {
      const float slope = -r.a / (s.s0 + p.eps) * sums.s1 * inv;
      return {slope, -slope * r.mean - r.a * sums.s0 * inv};
    }
    case Stat::mean_std: {
      const float sd = std::sqrt(s.s0 + p.eps), denominator = sd + p.factor * std::fabs(s.s1), dd = -r.a / denominator * sums.s1;
      const float slope = dd / sd * inv, sign = s.s1 > 0 ? 1.0f : s.s1 < 0 ? -1.0f : 0.0f;
      return {slope, -slope * s.s1 + p.factor * sign * dd * inv};
    }
    case Stat::given:
      if (add_scalars) given_backward(p, row, s.s0, r.a, sums.s1, total);
      break;
  }
  return {};
}

}  // namespace bhyt
