// The norm family on the CPU. A row stays in the first-level cache between its two passes (statistic, map); both are plain loops that the
// compiler vectorises. Sums over rows are cut into fixed blocks: the bits do not depend on the threads.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/threads.h"
#include "ops/norm/maps.h"
#include "ops/norm/norm.h"
#include "ops/norm/statistic.h"

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
// A tensor as large as `from` bytes has left every cache before anyone reads it. Written past the cache, its old contents are not read
// first.
bool past_cache(const Tensor& t, std::size_t element, std::size_t from) {
  const auto bytes = static_cast<std::size_t>(t.rows() * t.cols()) * element;
  return bytes >= from && (reinterpret_cast<std::uintptr_t>(t.data) | static_cast<std::size_t>(t.ld) * element) % 16 == 0;
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
bool past_cache(const Tensor&, std::size_t, std::size_t) { return false; }
template <class T>
void write_past_cache(const T* from, T* to, std::int64_t n) {
  std::copy_n(from, n, to);
}
void finish_writes() {}
#endif

// A vector of parameters times the site's constant output factor; the vector itself where that is 1.
class Scaled {
 public:
  Scaled(const float* v, std::int64_t c, float factor) : values_(v) {
    if (!v || factor == 1) return;
    copy_.assign(v, v + c);
    for (float& e : copy_) e *= factor;
    values_ = copy_.data();
  }
  const float* get() const { return values_; }

 private:
  std::vector<float> copy_;
  const float* values_;
};

// What the loops need of a site. The output factor is in γ, β and SeeDNorm's gate, where it costs nothing per element.
struct Site : NormParams {
  Scaled scaled_gamma, scaled_beta, scaled_gate;
  float shift_value;

  Site(const NormSite& s, const Tensor& x, const Tensor& kept, const Given* g)
      : NormParams(make_params(s, x, kept, g)),
        scaled_gamma(gamma, c, out_factor),
        scaled_beta(beta, c, out_factor),
        scaled_gate(gate, c, out_factor),
        shift_value(value_or(shift, 0)) {
    gamma = scaled_gamma.get();
    beta = scaled_beta.get();
    gate = scaled_gate.get();
  }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;
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
  if (!gamma && beta) {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) z[j] = from_float<T>(map.value(s.a * (to_float(x[j]) - s.mean) + shift) + beta[j]);
  } else if (!gamma) {
#pragma omp simd
    for (std::int64_t j = 0; j < c; ++j) z[j] = from_float<T>(map.value(s.a * (to_float(x[j]) - s.mean) + shift));
  } else if (beta) {
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

// du = γ·dz·f'(u) into du; γ's and β's gradients into dgamma (Gain: wanted) and dbeta (null: not wanted).
template <class M, bool Gain, class T>
BHYT_BOTH RowSums slope_loop(const T* x, const T* dz, float* du, std::int64_t c, RowScale s, float shift, const float* gamma, float* dgamma,
                             float* dbeta) {
  const M map;
  float s1 = 0, s0 = 0;
#pragma omp simd reduction(+ : s1, s0)
  for (std::int64_t j = 0; j < c; ++j) {
    const float centred = to_float(x[j]) - s.mean, d = to_float(dz[j]), u = s.a * centred + shift, y = map.value(u);
    const float g = gamma[j] * d * map.slope(u, y);
    du[j] = g;
    if constexpr (Gain) dgamma[j] += d * y;
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
    return dgamma ? slope_loop<M, true>(x, dz, du, c, s, shift, gamma, dgamma, dbeta)                                               \
                  : slope_loop<M, false>(x, dz, du, c, s, shift, gamma, dgamma, dbeta);                                             \
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

// SeeDNorm: z = (γ + t·g) ⊙ u, u = a·x, t = tanh(x·b). Returns Σ du·x, and in s0 the gradient of t; γ's and g's where wanted (Gain).
template <bool Gain, class T>
BHYT_BOTH RowSums gated_slope_loop(const T* x, const T* dz, float* du, std::int64_t c, float a, float t, const float* gamma,
                                   const float* gate, float* dgamma, float* dgate) {
  float s1 = 0, dt = 0;
#pragma omp simd reduction(+ : s1, dt)
  for (std::int64_t j = 0; j < c; ++j) {
    const float v = to_float(x[j]), d = to_float(dz[j]), y = a * v, g = (gamma[j] + t * gate[j]) * d, w = d * y;
    du[j] = g;
    if constexpr (Gain) {
      dgamma[j] += w;
      dgate[j] += t * w;
    }
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
    return dgamma ? gated_slope_loop<true>(x, dz, du, c, a, t, gamma, gate, dgamma, dgate)                                             \
                  : gated_slope_loop<false>(x, dz, du, c, a, t, gamma, gate, dgamma, dgate);                                           \
  }                                                                                                                                    \
  BHYT_CLONES void input_row(const float* du, const T* x, std::int64_t c, float a, float slope, float level, bool accumulate, T* dx) { \
    input_loop(du, x, c, a, slope, level, accumulate, dx);                                                                             \
  }
BHYT_ROWS(float)
BHYT_ROWS(bf16)

// The map that rows of a type are computed with: results that are rounded to bf16 need no more than a short tanh.
template <class M, class T>
using RowMap = std::conditional_t<std::is_same_v<M, TanhMap> && std::is_same_v<T, bf16>, ShortTanhMap, M>;

template <class T>
RowStats row_stats(const Site& s, const T* x, std::int64_t row) {
  const float inv = 1.0f / static_cast<float>(s.c);
  switch (s.stat) {
    case Stat::none: return {};
    case Stat::given: return kept_stats(s, row);
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
void forward_rows(const Site& s, const NormForward& call, std::int64_t begin, std::int64_t end) {
  const bool past_sum = call.add && past_cache(call.sum, sizeof(T), call.past_cache_bytes);
  const bool past_z = past_cache(call.z, sizeof(T), call.past_cache_bytes);
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
    const RowStats r = row_stats(s, x, i);
    keep_stats(s, i, r, s.aux != 0 ? sum_of_squares(x, s.c, 0) / static_cast<float>(s.c) : 0);
    const RowScale scale = row_scale(s, r);
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
        map_row(RowMap<M, T>{}, x + j, z, n, scale, s.shift_value, s.gamma ? s.gamma + j : nullptr, s.beta ? s.beta + j : nullptr);
      if (past_z) write_past_cache(z, to, n);
    }
  }
  if (past_sum || past_z) finish_writes();
}

// The sums over rows that one block of rows collects.
struct Partial {
  std::unique_ptr<float[]> columns;                                                    // [4, C], or none where none are wanted
  float *dgamma = nullptr, *dbeta = nullptr, *dgate = nullptr, *ddirection = nullptr;  // in columns; null: not wanted
  ScalarSums<double> scalars;

  // γ and g of SeeDNorm are summed together.
  void want(const NormGrads& grads, std::int64_t c) {
    if (!grads.columns()) return;
    columns = std::make_unique<float[]>(static_cast<std::size_t>(4 * c));
    if (grads.gamma || grads.gate) {
      dgamma = columns.get();
      dgate = columns.get() + 2 * c;
    }
    if (grads.beta) dbeta = columns.get() + c;
    if (grads.direction) ddirection = columns.get() + 3 * c;
  }
};

template <class T, class M>
void backward_rows(const Site& s, const NormBackward& call, std::int64_t begin, std::int64_t end, Partial& p) {
  std::vector<float> buffer(static_cast<std::size_t>(s.c));
  float* du = buffer.data();
  const auto at = [](float* sums, std::int64_t j) { return sums ? sums + j : nullptr; };
  for (std::int64_t i = begin; i < end; ++i) {
    const T *x = call.x.as<T>() + i * call.x.ld, *dz = call.dz.as<T>() + i * call.dz.ld;
    const RowStats stats = kept_stats(s, i);
    const RowScale r = row_scale(s, stats);
    const float t = s.gate ? std::tanh(stats.s1) : 0;
    T* dx = call.dx.as<T>() + i * call.dx.ld;
    RowSums sums;
    if (s.gate) {
      sums = gated_slope_row(x, dz, du, s.c, r.a, t, s.gamma, s.gate, p.dgamma, p.dgate);
    } else {
      for (std::int64_t j = 0; j < s.c; j += kPiece) {
        const std::int64_t n = std::min(kPiece, s.c - j);
        if (call.accumulate) fetch(dx + j, n);
        const RowSums part =
            slope_row(RowMap<M, T>{}, x + j, dz + j, du + j, n, r, s.shift_value, s.gamma + j, at(p.dgamma, j), at(p.dbeta, j));
        sums.s1 += part.s1;
        sums.s0 += part.s0;
      }
    }
    const StatisticGradient through = statistic_backward(s, i, stats, r, sums, true, p.scalars);
    if (s.gate) {  // x·b reaches every element through b: folded into du, so that dx is rounded once
      const float dp = sums.s0 * (1 - t * t);
      axpy(dp / r.a, s.direction, du, s.c);
      if (p.ddirection) axpy(dp, x, p.ddirection, s.c);
    }
    for (std::int64_t j = 0; j < s.c; j += kPiece) {
      const std::int64_t n = std::min(kPiece, s.c - j);
      if (i + 1 < end) {
        fetch(x + call.x.ld + j, n);
        fetch(dz + call.dz.ld + j, n);
      }
      input_row(du + j, x + j, n, r.a, through.slope, through.level, call.accumulate, dx + j);
    }
  }
}

// to += factor · Σ over the parts of one of their column sums.
void add_columns(Context& ctx, const std::vector<Partial>& parts, std::int64_t which, std::int64_t c, float factor, const Tensor& to) {
  if (!to) return;
  float* out = to.as<float>();
  parallel_for(ctx.threads(), c, 256, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(static_cast<std::size_t>(end - begin));
    for (const Partial& p : parts) axpy(1, p.columns.get() + which * c + begin, sum.data(), end - begin);
    axpy(factor, sum.data(), out + begin, end - begin);
  });
}

void add_scalar(const Tensor& to, double value) {
  if (to) *to.as<float>() += static_cast<float>(value);
}

void add_scalars(const std::vector<Partial>& parts, const NormGrads& grads, const Given* given) {
  ScalarSums<double> total;
  for (const Partial& p : parts) {
    total.scale += p.scalars.scale;
    total.shift += p.scalars.shift;
    total.ms_correction += p.scalars.ms_correction;
    total.constant_correction += p.scalars.constant_correction;
  }
  add_scalar(grads.scale, total.scale);
  add_scalar(grads.shift, total.shift);
  if (!given) return;
  add_scalar(given->dms_correction, total.ms_correction);
  add_scalar(given->dconstant_correction, total.constant_correction);
}

// Runs rows(T, M, block of rows, begin, end) for every block of kBlock rows, with the call's type and map.
template <class F>
void each_block(Context& ctx, const Tensor& x, Map map, F&& rows) {
  const std::int64_t n = x.rows();
  parallel_tasks(ctx.threads(), (n + kBlock - 1) / kBlock, [&](std::int64_t b) {
    dispatch_float(x.dtype, [&](auto t) {
      dispatch_map(map, [&](auto m) { rows(t, m, static_cast<std::size_t>(b), b * kBlock, std::min(n, (b + 1) * kBlock)); });
    });
  });
}

}  // namespace

void norm(Context& ctx, const NormSite& site, const NormForward& call) {
  const Site s(site, call.x, call.stats, call.given);
  each_block(ctx, call.x, site.map, [&](auto t, auto m, std::size_t, std::int64_t begin, std::int64_t end) {
    forward_rows<decltype(t), decltype(m)>(s, call, begin, end);
  });
}

void norm_backward(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  Site s(site, call.x, call.stats, call.given);
  s.dms_in = pointer(call.dms);
  std::vector<Partial> parts(static_cast<std::size_t>((s.n + kBlock - 1) / kBlock));
  each_block(ctx, call.x, site.map, [&](auto t, auto m, std::size_t block, std::int64_t begin, std::int64_t end) {
    parts[block].want(grads, s.c);
    backward_rows<decltype(t), decltype(m)>(s, call, begin, end, parts[block]);
  });
  // dz is that of the scaled output: what the rows summed without γ, β and g still lacks the factor.
  add_columns(ctx, parts, 0, s.c, s.out_factor, grads.gamma);
  add_columns(ctx, parts, 1, s.c, s.out_factor, grads.beta);
  add_columns(ctx, parts, 2, s.c, s.out_factor, grads.gate);
  add_columns(ctx, parts, 3, s.c, 1, grads.direction);
  add_scalars(parts, grads, call.given);
}

}  // namespace bhyt::cpu
