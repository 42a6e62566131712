// What the norm kernels share: a site as plain numbers and pointers, the per-row scale, and how the scale's gradient reaches the row.
#pragma once

#include "core/cuda.cuh"
#include "ops/norm/maps.h"
#include "ops/norm/norm.h"

namespace bhyt::cuda {

struct NormParams {
  std::int64_t n;
  int c;
  Stat stat;
  float factor, eps, calibration, aux;
  const float *gamma, *beta, *scale, *shift, *gate, *direction;
  const float *ms, *constant, *tilt, *weight;  // of a given statistic
  float *exact, *stats, *dms_out, *aux_loss;
  const float* dms_in;
};

inline float* pointer(const Tensor& t) { return t ? t.as<float>() : nullptr; }

inline NormParams make_params(const NormSite& s, const Tensor& x, const Tensor& stats, const Given* g) {
  NormParams p{};
  p.n = x.rows(), p.c = static_cast<int>(x.cols());
  p.stat = s.stat, p.factor = s.factor, p.eps = s.eps, p.calibration = 1;
  p.gamma = pointer(s.gamma), p.beta = pointer(s.beta), p.scale = pointer(s.scale), p.shift = pointer(s.shift);
  p.gate = pointer(s.gate), p.direction = pointer(s.direction);
  p.stats = pointer(stats);
  if (g) {
    p.ms = pointer(g->ms), p.constant = pointer(g->constant), p.tilt = pointer(g->tilt), p.weight = pointer(g->weight);
    p.calibration = g->calibration, p.aux = g->aux;
    p.exact = pointer(g->exact), p.dms_out = pointer(g->dms), p.aux_loss = pointer(g->aux_loss);
  }
  return p;
}

// u = a·(x − mean) + shift; unit is a without the constant factor and the learned scale.
struct RowScale {
  float a, mean, unit;
};

// The two statistics that a row's scale is made of, as the forward kept them: (mean square or variance, mean or x·b); of a given statistic
// the block input's mean square, whose approximation given_square makes.
struct RowStats {
  float s0, s1;
};
__device__ __forceinline__ RowStats kept_stats(const NormParams& p, std::int64_t row) {
  if (p.stat == Stat::given) return {p.ms[row], 0};
  return p.stats && p.stat != Stat::none ? RowStats{p.stats[row], p.stats[p.n + row]} : RowStats{0, 0};
}

__device__ __forceinline__ float given_square(const NormParams& p, float ms) {
  const float tilt = p.tilt ? *p.tilt : 0.f, weight = p.weight ? *p.weight : 1.f;
  return p.calibration * (ms * (1 + tilt) + weight * *p.constant);
}

__device__ __forceinline__ RowScale row_scale(const NormParams& p, RowStats s) {
  const float s0 = s.s0, s1 = s.s1;
  const float k = p.factor * (p.scale ? *p.scale : 1.f);
  float unit = 1, mean = 0;
  switch (p.stat) {
    case Stat::none: break;
    case Stat::rms: unit = rsqrtf(s0 + p.eps); break;
    case Stat::mean_var: unit = rsqrtf(s0 + p.eps), mean = s1; break;
    case Stat::mean_std: unit = 1.f / (sqrtf(s0 + p.eps) + p.factor * fabsf(s1)); break;
    case Stat::given: unit = rsqrtf(given_square(p, s0) + p.eps); break;
  }
  return {k * unit, mean, unit};
}

// The row's statistics as the forward keeps them; one thread per row. exact: the row's own mean square, for the auxiliary loss.
__device__ __forceinline__ void keep_stats(const NormParams& p, std::int64_t row, RowStats s, float exact) {
  if (p.stats && p.stat != Stat::given && p.stat != Stat::none) p.stats[row] = s.s0, p.stats[p.n + row] = s.s1;
  if (p.aux != 0) p.exact[row] = exact;
}

// Sums over rows of the scalars' gradients.
constexpr int kScalars = 4;
struct Scalars {
  float scale = 0, shift = 0, tilt = 0, weight = 0;
};

// dx += slope·x + level: what the gradient sum1 = Σ du·(x−mean) of the row's scale (and sum0 = Σ du) does to the row.
struct Reach {
  float slope, level;
};
__device__ __forceinline__ Reach statistic_backward(const NormParams& p, std::int64_t row, RowStats s, RowScale r, float sum1, float sum0,
                                                    bool first, Scalars& total) {
  const float inv = 1.f / static_cast<float>(p.c), s0 = s.s0, s1 = s.s1;
  if (first) total.scale += sum1 * p.factor * r.unit, total.shift += sum0;
  switch (p.stat) {
    case Stat::none: break;
    case Stat::rms: {
      float dms = -0.5f * r.a / (s0 + p.eps) * sum1;
      if (p.dms_in) dms += p.dms_in[row];
      return {2 * dms * inv, 0};
    }
    case Stat::mean_var: {
      const float slope = -r.a / (s0 + p.eps) * sum1 * inv;
      return {slope, -slope * r.mean - r.a * sum0 * inv};
    }
    case Stat::mean_std: {
      const float sd = sqrtf(s0 + p.eps), dd = -r.a / (sd + p.factor * fabsf(s1)) * sum1, slope = dd / sd * inv;
      return {slope, -slope * s1 + p.factor * (s1 > 0 ? 1.f : s1 < 0 ? -1.f : 0.f) * dd * inv};
    }
    case Stat::given: {
      const float square = given_square(p, s0);
      float dv = -0.5f * r.a / (square + p.eps) * sum1;
      if (p.aux != 0) dv += p.aux * 2 * (logf(square + 1e-8f) - logf(p.exact[row] + 1e-8f)) / (square + 1e-8f);
      const float dc = dv * p.calibration;
      if (first) {
        if (p.dms_out) p.dms_out[row] = dc * (1 + (p.tilt ? *p.tilt : 0.f));
        total.tilt += dc * s0;
        total.weight += dc * *p.constant;
      }
      break;
    }
  }
  return {0, 0};
}

// Adds per-block (or per-row) scalar sums [count, kScalars] to the gradients, in a fixed order.
void add_scalars(const float* sums, std::int64_t count, const NormGrads& grads, const Given* given);

// The same operations for rows that do not come in 16-byte pieces or do not fit into registers.
void norm_rows(const NormSite& site, const NormForward& call);
void norm_backward_rows(const NormSite& site, const NormGrads& grads, const NormBackward& call);

}  // namespace bhyt::cuda
