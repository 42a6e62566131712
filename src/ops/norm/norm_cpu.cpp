// The norm family on the CPU. A row stays in the first-level cache between its two passes (statistic, map); both are plain loops that the
// compiler vectorises. Sums over rows are cut into fixed blocks: the bits do not depend on the threads.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/parallel.h"
#include "ops/norm/maps.h"
#include "ops/norm/norm.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kBlock = 128;  // rows whose parameter gradients are summed together
constexpr std::int64_t kPiece = 256;  // elements between two requests for memory that is wanted soon

// Asks for n elements before they are needed.
template <class T>
void fetch(const T* x, std::int64_t n) {
  for (std::int64_t j = 0; j < n; j += 64 / static_cast<std::int64_t>(sizeof(T))) __builtin_prefetch(x + j);
}

#if defined(__SSE2__)
// A tensor of this size has left every cache before anyone reads it. Written past the cache, its old contents are not read first.
constexpr std::size_t kPastCache = std::size_t{256} << 20;
bool past_cache(const Tensor& t, std::size_t element) {
  const auto bytes = static_cast<std::size_t>(t.rows() * t.cols()) * element;
  return bytes >= kPastCache && (reinterpret_cast<std::uintptr_t>(t.data) | static_cast<std::size_t>(t.ld) * element) % 16 == 0;
}
template <class T>
void write_past_cache(const T* from, T* to, std::int64_t n) {
  constexpr auto kWidth = static_cast<std::int64_t>(16 / sizeof(T));
  std::int64_t j = 0;
  for (; j + kWidth <= n; j += kWidth)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + j), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + j)));
  for (; j < n; ++j) to[j] = from[j];
}
void finish_writes() { _mm_sfence(); }
#else
bool past_cache(const Tensor&, std::size_t) { return false; }
template <class T>
void write_past_cache(const T* from, T* to, std::int64_t n) {
  std::copy_n(from, n, to);
}
void finish_writes() {}
#endif

float scalar(const Tensor& t, float otherwise) { return t ? *t.as<float>() : otherwise; }
float* floats(const Tensor& t) { return t ? t.as<float>() : nullptr; }

// What a token's row is multiplied and shifted by: u = a·(x − mean) + shift; unit is a without factor and learned scale.
struct RowScale {
  float a, mean, unit;
};

// Everything a kernel needs of a site, as plain numbers and pointers.
struct Site {
  std::int64_t n, c;
  Stat stat;
  float k, factor, eps, shift;  // k = factor·scale
  const float *gamma, *beta, *gate, *direction;
  const Given* given;
  float given_constant, given_tilt, given_weight;

  Site(const NormSite& s, const Tensor& x, const Given* g)
      : n(x.rows()),
        c(x.cols()),
        stat(s.stat),
        k(s.factor * scalar(s.scale, 1)),
        factor(s.factor),
        eps(s.eps),
        shift(scalar(s.shift, 0)),
        gamma(floats(s.gamma)),
        beta(floats(s.beta)),
        gate(floats(s.gate)),
        direction(floats(s.direction)),
        given(g),
        given_constant(g ? scalar(g->constant, 0) : 0),
        given_tilt(g ? scalar(g->tilt, 0) : 0),
        given_weight(g ? scalar(g->weight, 1) : 1) {}

  float given_ms(std::int64_t row) const {
    return given->calibration * (given->ms.as<float>()[row] * (1 + given_tilt) + given_weight * given_constant);
  }
  // From the two kept statistics of a row: (mean square or variance, mean).
  RowScale scale(float s0, float s1, std::int64_t row) const {
    float unit = 1;
    switch (stat) {
      case Stat::none: break;
      case Stat::rms:
      case Stat::mean_var: unit = 1 / std::sqrt(s0 + eps); break;
      case Stat::mean_std: unit = 1 / (std::sqrt(s0 + eps) + factor * std::fabs(s1)); break;
      case Stat::given: unit = 1 / std::sqrt(given_ms(row) + eps); break;
    }
    return {k * unit, stat == Stat::mean_var ? s1 : 0, unit};
  }
};

// Sums side by side: enough to hide the latency of an addition, and the same bits for every vector width.
template <class F>
BHYT_BOTH float sum_over(std::int64_t c, F&& f) {
  constexpr int kLanes = 32;
  float s[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= c; j += kLanes)
    for (int k = 0; k < kLanes; ++k) s[k] += f(j + k);
  for (int k = 0; j < c; ++j, ++k) s[k] += f(j);
  for (int w = kLanes / 2; w > 0; w /= 2)
    for (int k = 0; k < w; ++k) s[k] += s[k + w];
  return s[0];
}

// For rows of bf16.
struct ShortTanhMap {
  float clamp = kShortTanhClamp;
  ShortTanhMap() { asm("" : "+m"(clamp)); }  // NOLINT: not to be seen through
  float value(float u) const { return short_tanh(u, clamp); }
  static float slope(float u, float y) { return TanhMap::slope(u, y); }
};

template <class M, class T>
BHYT_BOTH void map_loop(const T* x, T* z, std::int64_t c, RowScale s, float shift, const float* gamma, const float* beta) {
  const M map;
  if (beta) {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) z[j] = from_float<T>(gamma[j] * map.value(s.a * (to_float(x[j]) - s.mean) + shift) + beta[j]);
  } else if (s.mean == 0) {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) z[j] = from_float<T>(gamma[j] * map.value(s.a * to_float(x[j]) + shift));
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) z[j] = from_float<T>(gamma[j] * map.value(s.a * (to_float(x[j]) - s.mean) + shift));
  }
}

// Per-row sums of the backward: Σ du·(x−mean), Σ du.
struct RowSums {
  float s1 = 0, s0 = 0;
};

// du = γ·dz·f'(u) into du; γ's and β's gradients into dgamma and dbeta.
template <class M, class T>
BHYT_BOTH RowSums slope_loop(const T* x, const T* dz, float* du, std::int64_t c, RowScale s, float shift, const float* gamma, float* dgamma,
                             float* dbeta) {
  const M map;
  float s1 = 0, s0 = 0;
#pragma omp simd reduction(+ : s1, s0)
  for (std::int64_t j = 0; j < c; ++j) {
    const float centred = to_float(x[j]) - s.mean, d = to_float(dz[j]), u = s.a * centred + shift, y = map.value(u);
    const float g = gamma[j] * d * map.slope(u, y);
    du[j] = g;
    dgamma[j] += d * y;
    s1 += g * centred;
    s0 += g;
  }
  if (dbeta) {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) dbeta[j] += to_float(dz[j]);
  }
  return {s1, s0};
}

// One function per map and type, so that each can be cloned for several instruction sets.
#define BHYT_MAP_ROWS(M, T)                                                                                                         \
  BHYT_CLONES void map_row(M, const T* x, T* z, std::int64_t c, RowScale s, float shift, const float* gamma, const float* beta) {   \
    map_loop<M>(x, z, c, s, shift, gamma, beta);                                                                                    \
  }                                                                                                                                 \
  BHYT_CLONES RowSums slope_row(M, const T* x, const T* dz, float* du, std::int64_t c, RowScale s, float shift, const float* gamma, \
                                float* dgamma, float* dbeta) {                                                                      \
    return slope_loop<M>(x, dz, du, c, s, shift, gamma, dgamma, dbeta);                                                             \
  }
BHYT_MAP_ROWS(IdMap, float)
BHYT_MAP_ROWS(IdMap, bf16)
BHYT_MAP_ROWS(TanhMap, float)
BHYT_MAP_ROWS(ShortTanhMap, bf16)
BHYT_MAP_ROWS(ErfMap, float)
BHYT_MAP_ROWS(ErfMap, bf16)

template <class T>
BHYT_BOTH void gated_loop(const T* x, T* z, std::int64_t c, float a, float t, const float* gamma, const float* gate) {
#pragma omp simd
  for (std::int64_t j = 0; j < c; ++j) z[j] = from_float<T>((gamma[j] + t * gate[j]) * (a * to_float(x[j])));
}

// SeeDNorm: z = (γ + t·g) ⊙ u, u = a·x, t = tanh(x·b). Returns Σ du·x, and in s0 the gradient of t.
template <class T>
BHYT_BOTH RowSums gated_slope_loop(const T* x, const T* dz, float* du, std::int64_t c, float a, float t, const float* gamma,
                                   const float* gate, float* dgamma, float* dgate) {
  float s1 = 0, dt = 0;
#pragma omp simd reduction(+ : s1, dt)
  for (std::int64_t j = 0; j < c; ++j) {
    const float v = to_float(x[j]), d = to_float(dz[j]), y = a * v, g = (gamma[j] + t * gate[j]) * d, w = d * y;
    du[j] = g;
    dgamma[j] += w;
    dgate[j] += t * w;
    dt += w * gate[j];
    s1 += g * v;
  }
  return {s1, dt};
}

// dx (+)= a·du + slope·x + level.
template <class T>
BHYT_BOTH void input_loop(const float* du, const T* x, std::int64_t c, float a, float slope, float level, bool accumulate, T* dx) {
  if (accumulate) {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) dx[j] = from_float<T>(to_float(dx[j]) + a * du[j] + slope * to_float(x[j]) + level);
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) dx[j] = from_float<T>(a * du[j] + slope * to_float(x[j]) + level);
  }
}

// The rest of the loops, for both types.
#define BHYT_ROWS(T)                                                                                                                   \
  BHYT_CLONES float sum_of(const T* x, std::int64_t c) {                                                                               \
    return sum_over(c, [=](std::int64_t j) { return to_float(x[j]); });                                                                \
  }                                                                                                                                    \
  BHYT_CLONES float sum_of_squares(const T* x, std::int64_t c, float mean) {                                                           \
    return sum_over(c, [=](std::int64_t j) { return (to_float(x[j]) - mean) * (to_float(x[j]) - mean); });                             \
  }                                                                                                                                    \
  BHYT_CLONES float dot(const T* x, const float* y, std::int64_t c) {                                                                  \
    return sum_over(c, [=](std::int64_t j) { return to_float(x[j]) * y[j]; });                                                         \
  }                                                                                                                                    \
  BHYT_CLONES void add_into(const T* x, const T* y, T* sum, std::int64_t c) {                                                          \
    _Pragma("omp simd") for (std::int64_t j = 0; j < c; ++j) sum[j] = from_float<T>(to_float(x[j]) + to_float(y[j]));                  \
  }                                                                                                                                    \
  BHYT_CLONES void axpy(float a, const T* x, float* y, std::int64_t c) {                                                               \
    _Pragma("omp simd") for (std::int64_t j = 0; j < c; ++j) y[j] += a * to_float(x[j]);                                               \
  }                                                                                                                                    \
  BHYT_CLONES void gated_row(const T* x, T* z, std::int64_t c, float a, float t, const float* gamma, const float* gate) {              \
    gated_loop(x, z, c, a, t, gamma, gate);                                                                                            \
  }                                                                                                                                    \
  BHYT_CLONES RowSums gated_slope_row(const T* x, const T* dz, float* du, std::int64_t c, float a, float t, const float* gamma,        \
                                      const float* gate, float* dgamma, float* dgate) {                                                \
    return gated_slope_loop(x, dz, du, c, a, t, gamma, gate, dgamma, dgate);                                                           \
  }                                                                                                                                    \
  BHYT_CLONES void input_row(const float* du, const T* x, std::int64_t c, float a, float slope, float level, bool accumulate, T* dx) { \
    input_loop(du, x, c, a, slope, level, accumulate, dx);                                                                             \
  }
BHYT_ROWS(float)
BHYT_ROWS(bf16)

// The map that rows of a type are computed with: results that are rounded to bf16 need no more than a short tanh.
template <class M, class T>
using RowMap = std::conditional_t<std::is_same_v<M, TanhMap> && std::is_same_v<T, bf16>, ShortTanhMap, M>;

// The statistics of one row: (mean square or variance, mean or x·b).
struct RowStats {
  float s0 = 0, s1 = 0;
};
template <class T>
RowStats row_stats(const Site& s, const T* x) {
  const float inv = 1.0f / static_cast<float>(s.c);
  switch (s.stat) {
    case Stat::none:
    case Stat::given: return {};
    case Stat::rms: return {sum_of_squares(x, s.c, 0) * inv, s.gate ? dot(x, s.direction, s.c) : 0};
    case Stat::mean_var:
    case Stat::mean_std: {
      const float mean = sum_of(x, s.c) * inv;
      return {sum_of_squares(x, s.c, mean) * inv, mean};
    }
  }
  return {};
}

template <class T, class M>
void forward_rows(const Site& s, const NormForward& call, std::int64_t begin, std::int64_t end, double& aux) {
  float* stats = floats(call.stats);
  const bool past_sum = call.add && past_cache(call.sum, sizeof(T)), past_z = past_cache(call.z, sizeof(T));
  std::vector<T> row(static_cast<std::size_t>(past_sum ? s.c : 0));
  T piece[kPiece];
  for (std::int64_t i = begin; i < end; ++i) {
    const T *x = call.x.as<T>() + i * call.x.ld, *add = call.add ? call.add.as<T>() + i * call.add.ld : nullptr;
    const T *next = i + 1 < end ? x + call.x.ld : nullptr, *next_add = next && add ? add + call.add.ld : nullptr;
    if (add) {
      T *to = call.sum.as<T>() + i * call.sum.ld, *sum = past_sum ? row.data() : to;
      add_into(x, add, sum, s.c);
      if (past_sum) write_past_cache(sum, to, s.c);
      x = sum;
    }
    const RowStats r = row_stats(s, x);
    if (stats && s.stat != Stat::given && s.stat != Stat::none) stats[i] = r.s0, stats[s.n + i] = r.s1;
    if (s.given && s.given->aux != 0) {
      const float exact = sum_of_squares(x, s.c, 0) / static_cast<float>(s.c);
      s.given->exact.as<float>()[i] = exact;
      const double gap = std::log(s.given_ms(i) + 1e-8) - std::log(exact + 1e-8);
      aux += gap * gap;
    }
    const RowScale scale = s.scale(r.s0, r.s1, i);
    const float t = s.gate ? std::tanh(r.s1) : 0;
    // The next row comes while this one is mapped.
    for (std::int64_t j = 0; j < s.c; j += kPiece) {
      const std::int64_t n = std::min(kPiece, s.c - j);
      if (next) fetch(next + j, n);
      if (next_add) fetch(next_add + j, n);
      T *to = call.z.as<T>() + i * call.z.ld + j, *z = past_z ? piece : to;
      if (s.gate)
        gated_row(x + j, z, n, scale.a, t, s.gamma + j, s.gate + j);
      else
        map_row(RowMap<M, T>{}, x + j, z, n, scale, s.shift, s.gamma + j, s.beta ? s.beta + j : nullptr);
      if (past_z) write_past_cache(z, to, n);
    }
  }
  if (past_sum || past_z) finish_writes();
}

// The sums over rows that one block of rows collects.
struct Partial {
  std::unique_ptr<float[]> columns;  // dγ, dβ, dg, db: [4, C]
  double scale = 0, shift = 0, tilt = 0, weight = 0;
};

// How the gradient of a row's scale a (s1 = da) reaches x: dx += slope·x + level; and the scalars' gradients.
struct Reach {
  float slope = 0, level = 0;
};
Reach statistic_backward(const Site& s, const NormBackward& call, Partial& p, std::int64_t i, float s0, float s1_kept, RowScale r,
                         RowSums sums) {
  const float inv = 1.0f / static_cast<float>(s.c);
  p.scale += static_cast<double>(sums.s1) * s.factor * r.unit;
  p.shift += sums.s0;
  switch (s.stat) {
    case Stat::none: return {};
    case Stat::rms: {
      float dms = -0.5f * r.a / (s0 + s.eps) * sums.s1;
      if (call.dms) dms += call.dms.as<float>()[i];
      return {2 * dms * inv, 0};
    }
    case Stat::mean_var: {
      const float slope = -r.a / (s0 + s.eps) * sums.s1 * inv;
      return {slope, -slope * r.mean - r.a * sums.s0 * inv};
    }
    case Stat::mean_std: {
      const float sd = std::sqrt(s0 + s.eps), denominator = sd + s.factor * std::fabs(s1_kept), dd = -r.a / denominator * sums.s1;
      const float slope = dd / sd * inv, sign = s1_kept > 0 ? 1.0f : s1_kept < 0 ? -1.0f : 0.0f;
      return {slope, -slope * s1_kept + s.factor * sign * dd * inv};
    }
    case Stat::given: {
      const float v = s.given_ms(i);
      float dv = -0.5f * r.a / (v + s.eps) * sums.s1;
      if (s.given->aux != 0) {
        const double exact = s.given->exact.as<float>()[i];
        dv += static_cast<float>(s.given->aux * 2 * (std::log(v + 1e-8) - std::log(exact + 1e-8)) / (v + 1e-8));
      }
      const float dc = dv * s.given->calibration;
      if (s.given->dms) s.given->dms.as<float>()[i] = dc * (1 + s.given_tilt);
      p.tilt += static_cast<double>(dc) * s.given->ms.as<float>()[i];
      p.weight += static_cast<double>(dc) * s.given_constant;
      return {};
    }
  }
  return {};
}

template <class T, class M>
void backward_rows(const Site& s, const NormBackward& call, std::int64_t begin, std::int64_t end, Partial& p) {
  std::vector<float> buffer(static_cast<std::size_t>(s.c));
  float* du = buffer.data();
  p.columns = std::make_unique<float[]>(static_cast<std::size_t>(4 * s.c));
  float *dgamma = p.columns.get(), *dbeta = s.beta ? dgamma + s.c : nullptr, *dgate = dgamma + 2 * s.c, *ddirection = dgamma + 3 * s.c;
  const float* stats = floats(call.stats);
  for (std::int64_t i = begin; i < end; ++i) {
    const T *x = call.x.as<T>() + i * call.x.ld, *dz = call.dz.as<T>() + i * call.dz.ld;
    const float s0 = stats ? stats[i] : 0, s1 = stats ? stats[s.n + i] : 0;
    const RowScale r = s.scale(s0, s1, i);
    const float t = s.gate ? std::tanh(s1) : 0;
    T* dx = call.dx.as<T>() + i * call.dx.ld;
    RowSums sums;
    if (s.gate) {
      sums = gated_slope_row(x, dz, du, s.c, r.a, t, s.gamma, s.gate, dgamma, dgate);
    } else {
      for (std::int64_t j = 0; j < s.c; j += kPiece) {
        const std::int64_t n = std::min(kPiece, s.c - j);
        if (call.accumulate) fetch(dx + j, n);
        const RowSums part =
            slope_row(RowMap<M, T>{}, x + j, dz + j, du + j, n, r, s.shift, s.gamma + j, dgamma + j, dbeta ? dbeta + j : nullptr);
        sums.s1 += part.s1;
        sums.s0 += part.s0;
      }
    }
    const Reach reach = statistic_backward(s, call, p, i, s0, s1, r, sums);
    if (s.gate) {  // x·b reaches every element through b: folded into du, so that dx is rounded once
      const float dp = sums.s0 * (1 - t * t);
      axpy(dp / r.a, s.direction, du, s.c);
      axpy(dp, x, ddirection, s.c);
    }
    for (std::int64_t j = 0; j < s.c; j += kPiece) {
      const std::int64_t n = std::min(kPiece, s.c - j);
      if (i + 1 < end) fetch(x + call.x.ld + j, n), fetch(dz + call.dz.ld + j, n);
      input_row(du + j, x + j, n, r.a, reach.slope, reach.level, call.accumulate, dx + j);
    }
  }
}

void add_columns(const std::vector<Partial>& parts, std::int64_t which, std::int64_t c, const Tensor& to) {
  if (!to) return;
  float* out = to.as<float>();
  parallel_for(c, 256, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(static_cast<std::size_t>(end - begin));
    for (const Partial& p : parts) axpy(1, p.columns.get() + which * c + begin, sum.data(), end - begin);
    axpy(1, sum.data(), out + begin, end - begin);
  });
}

void add_scalar(const Tensor& to, double value) {
  if (to) *to.as<float>() += static_cast<float>(value);
}

}  // namespace

void norm(const NormSite& site, const NormForward& call) {
  const Site s(site, call.x, call.given);
  std::vector<double> aux(static_cast<std::size_t>((s.n + kBlock - 1) / kBlock));
  parallel_tasks(static_cast<std::int64_t>(aux.size()), [&](std::int64_t b) {
    dispatch_float(call.x.dtype, [&](auto t) {
      dispatch_map(site.map, [&](auto m) {
        forward_rows<decltype(t), decltype(m)>(s, call, b * kBlock, std::min(s.n, (b + 1) * kBlock), aux[static_cast<std::size_t>(b)]);
      });
    });
  });
  if (call.given && call.given->aux_loss)
    for (double a : aux) add_scalar(call.given->aux_loss, a);
}

void norm_backward(const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  const Site s(site, call.x, call.given);
  std::vector<Partial> parts(static_cast<std::size_t>((s.n + kBlock - 1) / kBlock));
  parallel_tasks(static_cast<std::int64_t>(parts.size()), [&](std::int64_t b) {
    dispatch_float(call.x.dtype, [&](auto t) {
      dispatch_map(site.map, [&](auto m) {
        backward_rows<decltype(t), decltype(m)>(s, call, b * kBlock, std::min(s.n, (b + 1) * kBlock), parts[static_cast<std::size_t>(b)]);
      });
    });
  });
  add_columns(parts, 0, s.c, grads.gamma);
  add_columns(parts, 1, s.c, grads.beta);
  add_columns(parts, 2, s.c, grads.gate);
  add_columns(parts, 3, s.c, grads.direction);
  Partial total;
  for (const Partial& p : parts) total.scale += p.scale, total.shift += p.shift, total.tilt += p.tilt, total.weight += p.weight;
  add_scalar(grads.scale, total.scale);
  add_scalar(grads.shift, total.shift);
  if (call.given) {
    add_scalar(call.given->dtilt, total.tilt);
    add_scalar(call.given->dweight, total.weight);
  }
}

}  // namespace bhyt::cpu
