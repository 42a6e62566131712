#include "ops/attention/tile.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/parallel.h"

namespace bhyt::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The heart of every product. Plain loops: with constant bounds the compilers keep all sums in vector registers.
template <bool kTransposed>
inline __attribute__((always_inline)) void sums(float (&acc)[kRows][kCols], std::int64_t k, const float* __restrict a, std::int64_t lda,
                                                const float* __restrict b, std::int64_t ldb) {
  for (std::int64_t p = 0; p < k; ++p) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float x = kTransposed ? a[p * lda + r] : a[r * lda + p];
#pragma omp simd
      for (std::int64_t j = 0; j < kCols; ++j) acc[r][j] += x * b[p * ldb + j];
    }
  }
}

inline __attribute__((always_inline)) void hide(float* row, const Block& block, std::int64_t r) {
  std::fill(row, row + std::min(block.lo[r], block.n), -kInfinity);
  std::fill(row + std::clamp<std::int64_t>(block.hi[r], 0, block.n), row + block.n, -kInfinity);
}

// The form that is one instruction in a vectorised loop; which of the two a NaN yields does not matter here.
inline __attribute__((always_inline)) float larger(float a, float b) {
#if defined(__aarch64__)
  return __builtin_fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// Sixteen running values instead of one: GCC does not vectorise a maximum otherwise.
inline __attribute__((always_inline)) float largest(const float* row, std::int64_t n) {
  float top[kCols];
  for (float& t : top) t = -kInfinity;
  for (std::int64_t j = 0; j < n; j += kCols)
#pragma omp simd
    for (std::int64_t i = 0; i < kCols; ++i) top[i] = larger(row[j + i], top[i]);
  for (std::int64_t i = 0; i < 8; ++i) top[i] = larger(top[i], top[i + 8]);
  for (std::int64_t i = 0; i < 4; ++i) top[i] = larger(top[i], top[i + 4]);
  return larger(larger(top[0], top[1]), larger(top[2], top[3]));
}

// Turns the row into exp(row − shift) and returns its sum.
inline __attribute__((always_inline)) float exponentials(float* row, std::int64_t n, float shift) {
  float total[kCols] = {};
  for (std::int64_t j = 0; j < n; j += kCols)
#pragma omp simd
    for (std::int64_t i = 0; i < kCols; ++i) {
      row[j + i] = exp_score(row[j + i] - shift);
      total[i] += row[j + i];
    }
  for (std::int64_t i = 0; i < 8; ++i) total[i] += total[i + 8];
  for (std::int64_t i = 0; i < 4; ++i) total[i] += total[i + 4];
  return (total[0] + total[1]) + (total[2] + total[3]);
}

template <class T>
inline __attribute__((always_inline)) void add_rows(float* __restrict o, const float* p, const T* const* rows, std::int64_t d) {
  const T *v0 = rows[0], *v1 = rows[1], *v2 = rows[2], *v3 = rows[3];
  const float p0 = p[0], p1 = p[1], p2 = p[2], p3 = p[3];
#pragma omp simd
  for (std::int64_t j = 0; j < d; ++j) o[j] += p0 * to_float(v0[j]) + p1 * to_float(v1[j]) + p2 * to_float(v2[j]) + p3 * to_float(v3[j]);
}

}  // namespace

BHYT_CLONES void product(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                         std::int64_t ldc) {
  for (std::int64_t j = 0; j < n; j += kCols) {
    float acc[kRows][kCols] = {};
    sums<false>(acc, k, a, lda, b + j, ldb);
    for (std::int64_t r = 0; r < kRows; ++r)
#pragma omp simd
      for (std::int64_t i = 0; i < kCols; ++i) c[r * ldc + j + i] = acc[r][i];
  }
}

BHYT_CLONES void product_add(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                             std::int64_t ldc, const float* keep) {
  for (std::int64_t j = 0; j < n; j += kCols) {
    float acc[kRows][kCols] = {};
    sums<false>(acc, k, a, lda, b + j, ldb);
    for (std::int64_t r = 0; r < kRows; ++r)
#pragma omp simd
      for (std::int64_t i = 0; i < kCols; ++i) c[r * ldc + j + i] = keep[r] * c[r * ldc + j + i] + acc[r][i];
  }
}

BHYT_CLONES void product_transposed_add(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                                        float* c, std::int64_t ldc) {
  for (std::int64_t j = 0; j < n; j += kCols) {
    float acc[kRows][kCols] = {};
    sums<true>(acc, k, a, lda, b + j, ldb);
    for (std::int64_t r = 0; r < kRows; ++r)
#pragma omp simd
      for (std::int64_t i = 0; i < kCols; ++i) c[r * ldc + j + i] += acc[r][i];
  }
}

template <class T>
void load_tile(const T* in, std::int64_t ld, std::int64_t n, std::int64_t d, float scale, float* out, std::int64_t width) {
  for (std::int64_t i = 0; i < n; ++i) {
    float* row = out + i * width;
#pragma omp simd
    for (std::int64_t j = 0; j < d; ++j) row[j] = scale * to_float(in[i * ld + j]);
    std::fill(row + d, row + width, 0.0f);
  }
  std::fill(out + n * width, out + kTile * width, 0.0f);
}
template void load_tile(const float*, std::int64_t, std::int64_t, std::int64_t, float, float*, std::int64_t);
template void load_tile(const bf16*, std::int64_t, std::int64_t, std::int64_t, float, float*, std::int64_t);

void transpose_tile(const float* in, std::int64_t width, std::int64_t d, float* out) {
  for (std::int64_t i = 0; i < kTile; i += kCols)
    for (std::int64_t j = 0; j < d; ++j)
      for (std::int64_t l = 0; l < kCols; ++l) out[j * kTile + i + l] = in[(i + l) * width + j];
}

template <class T>
void store_rows(const float* in, std::int64_t width, const float* scale, T* out, std::int64_t ld, std::int64_t n, std::int64_t d) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float by = scale[i];
#pragma omp simd
    for (std::int64_t j = 0; j < d; ++j) out[i * ld + j] = from_float<T>(by * in[i * width + j]);
  }
}
template void store_rows(const float*, std::int64_t, const float*, float*, std::int64_t, std::int64_t, std::int64_t);
template void store_rows(const float*, std::int64_t, const float*, bf16*, std::int64_t, std::int64_t, std::int64_t);

Block visible_block(const std::int32_t* first, std::int64_t t, std::int64_t end, std::int64_t key) {
  Block b;
  const std::int64_t last = std::min(t + kRows, end) - 1;
  if (last < key) return b;
  b.n = std::min(kTile, round_up(last - key + 1, kCols));
  bool any = false;
  for (std::int64_t r = 0; r < kRows; ++r) {
    const std::int64_t at = std::min(t + r, last);
    b.lo[r] = first ? std::max<std::int64_t>(first[at] - key, 0) : 0;
    b.hi[r] = at - key + 1;
    b.masked |= b.lo[r] > 0 || b.hi[r] < b.n;
    any |= b.lo[r] < b.n;
  }
  if (!any) b.n = 0;
  return b;
}

BHYT_CLONES void softmax_step(float* s, const Block& block, float* max, float* sum, float* keep) {
  float shift[kRows];
  for (std::int64_t r = 0; r < kRows; ++r) {
    float* const row = s + r * kTile;
    if (block.masked) hide(row, block, r);
    const float top = larger(max[r], largest(row, block.n));
    // A row that has seen nothing yet has -inf as its largest score, which must not be subtracted from itself.
    shift[r] = top == -kInfinity ? 0.0f : top;
    keep[r] = exp_score(max[r] - shift[r]);
    max[r] = top;
  }
  for (std::int64_t r = 0; r < kRows; ++r) sum[r] = sum[r] * keep[r] + exponentials(s + r * kTile, block.n, shift[r]);
}

BHYT_CLONES void softmax_gradient(float* s, float* dp, const Block& block, const float* lse, const float* delta) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    float* const row = s + r * kTile;
    float* const drow = dp + r * kTile;
    if (block.masked) hide(row, block, r);
    const float shift = lse[r], mean = delta[r];
#pragma omp simd
    for (std::int64_t j = 0; j < block.n; ++j) {
      row[j] = exp_score(row[j] - shift);
      drow[j] = row[j] * (drow[j] - mean);
    }
  }
}

BHYT_CLONES float softmax_row(float* s, std::int64_t n) { return exponentials(s, n, largest(s, n)); }

BHYT_CLONES void add4(float* o, const float* p, const float* const* rows, std::int64_t d) { add_rows(o, p, rows, d); }
BHYT_CLONES void add4(float* o, const float* p, const bf16* const* rows, std::int64_t d) { add_rows(o, p, rows, d); }

}  // namespace bhyt::cpu
