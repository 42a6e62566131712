#include "ops/attention/tile.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/threads.h"

namespace bhyt::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

#define ALWAYS_INLINE inline __attribute__((always_inline))

// c = a·b − by, c = by·c + a·b or c += aᵀ·b, with one `by` a row.
enum class Kind { subtract, keep_add, transposed_add };

struct Operands {
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  const float* by;
};

// The heart of every product: kR × kC sums. Plain loops: with constant bounds the compilers keep all sums in vector registers. The first
// step sets the sums and the second is always taken: otherwise GCC puts zeros and results through memory.
template <Kind kKind, std::int64_t kR, std::int64_t kC>
ALWAYS_INLINE void block_product(std::int64_t k, const Operands& o, std::int64_t row, std::int64_t col) {
  constexpr bool transposed = kKind == Kind::transposed_add;
  const float* __restrict a = transposed ? o.a + row : o.a + row * o.lda;
  const float* __restrict b = o.b + col;
  float* __restrict c = o.c + row * o.ldc + col;
  const std::int64_t lda = o.lda, ldb = o.ldb, ldc = o.ldc;
  float acc[kR][kC];
  for (std::int64_t r = 0; r < kR; ++r) {
    const float x = transposed ? a[r] : a[r * lda];
#pragma omp simd
    for (std::int64_t j = 0; j < kC; ++j) acc[r][j] = x * b[j];
  }
  std::int64_t p = 1;
  do {
    for (std::int64_t r = 0; r < kR; ++r) {
      const float x = transposed ? a[p * lda + r] : a[r * lda + p];
#pragma omp simd
      for (std::int64_t j = 0; j < kC; ++j) acc[r][j] += x * b[p * ldb + j];
    }
  } while (++p < k);
  for (std::int64_t r = 0; r < kR; ++r) {
    const float by = kKind == Kind::transposed_add ? 1.0f : o.by[row + r];
#pragma omp simd
    for (std::int64_t j = 0; j < kC; ++j) c[r * ldc + j] = kKind == Kind::subtract ? acc[r][j] - by : by * c[r * ldc + j] + acc[r][j];
  }
}

// kRows rows in blocks of kR × kC, the last ones narrower.
template <Kind kKind, std::int64_t kR, std::int64_t kC>
ALWAYS_INLINE void blocks(std::int64_t n, std::int64_t k, const Operands& o) {
  for (std::int64_t row = 0; row < kRows; row += kR) {
    std::int64_t col = 0;
    for (; col + kC <= n; col += kC) block_product<kKind, kR, kC>(k, o, row, col);
    if (col < n) block_product<kKind, kR, kCols>(k, o, row, col);
  }
}

template <std::int64_t kR, std::int64_t kC>
ALWAYS_INLINE void any_product(Kind kind, std::int64_t n, std::int64_t k, const Operands& o) {
  switch (kind) {
    case Kind::subtract: return blocks<Kind::subtract, kR, kC>(n, k, o);
    case Kind::keep_add: return blocks<Kind::keep_add, kR, kC>(n, k, o);
    case Kind::transposed_add: return blocks<Kind::transposed_add, kR, kC>(n, k, o);
  }
}

// 4 × 16 sums fill the registers of NEON and AVX. AVX-512 has room for 8 × 32, which take fewer loads than multiplications.
BHYT_CLONES void narrow_product(Kind kind, std::int64_t n, std::int64_t k, const Operands& o) { any_product<4, kCols>(kind, n, k, o); }
#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void wide_product(Kind kind, std::int64_t n, std::int64_t k, const Operands& o) {
  any_product<kRows, 2 * kCols>(kind, n, k, o);
}
#endif

void any_product(Kind kind, std::int64_t n, std::int64_t k, const Operands& o) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx512f");
  if (wide) return wide_product(kind, n, k, o);
#endif
  narrow_product(kind, n, k, o);
}

// Without branches: where rows end differs from row to row, and no processor would guess it.
ALWAYS_INLINE void hide(float* row, const Block& block, std::int64_t r) {
  const auto lo = static_cast<std::int32_t>(std::min(block.lo[r], block.n)), hi = static_cast<std::int32_t>(std::min(block.hi[r], block.n));
  const auto n = static_cast<std::int32_t>(block.n);
#pragma omp simd
  for (std::int32_t j = 0; j < n; ++j) row[j] = j < lo || j >= hi ? -kInfinity : row[j];
}

// The form that is one instruction in a vectorised loop; which of the two a NaN yields does not matter here.
ALWAYS_INLINE float larger(float a, float b) {
#if defined(__aarch64__)
  return __builtin_fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// Sixteen running values instead of one: GCC does not vectorise a maximum otherwise.
ALWAYS_INLINE float largest(const float* row, std::int64_t n) {
  float top[kCols];
  for (float& t : top) t = -kInfinity;
  for (std::int64_t j = 0; j < n; j += kCols)
#pragma omp simd
    for (std::int64_t i = 0; i < kCols; ++i) top[i] = larger(row[j + i], top[i]);
#pragma omp simd
  for (std::int64_t i = 0; i < 8; ++i) top[i] = larger(top[i], top[i + 8]);
#pragma omp simd
  for (std::int64_t i = 0; i < 4; ++i) top[i] = larger(top[i], top[i + 4]);
  return larger(larger(top[0], top[1]), larger(top[2], top[3]));
}

// Turns the row into exp(row − shift) and returns its sum.
ALWAYS_INLINE float exponentials(float* row, std::int64_t n, float shift) {
  float total[kCols] = {};
  for (std::int64_t j = 0; j < n; j += kCols)
#pragma omp simd
    for (std::int64_t i = 0; i < kCols; ++i) {
      row[j + i] = exp_score(row[j + i] - shift);
      total[i] += row[j + i];
    }
#pragma omp simd
  for (std::int64_t i = 0; i < 8; ++i) total[i] += total[i + 8];
#pragma omp simd
  for (std::int64_t i = 0; i < 4; ++i) total[i] += total[i + 4];
  return (total[0] + total[1]) + (total[2] + total[3]);
}

template <class T>
ALWAYS_INLINE void load_rows(const T* in, std::int64_t ld, std::int64_t n, std::int64_t d, float scale, float* out, std::int64_t width) {
  for (std::int64_t i = 0; i < n; ++i) {
    float* const row = out + i * width;
#pragma omp simd
    for (std::int64_t j = 0; j < d; ++j) row[j] = scale * to_float(in[i * ld + j]);
    std::fill(row + d, row + width, 0.0f);
  }
  std::fill(out + n * width, out + kTile * width, 0.0f);
}

template <class T>
ALWAYS_INLINE void scale_rows(const float* in, std::int64_t width, const float* scale, T* out, std::int64_t ld, std::int64_t n,
                              std::int64_t d) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float by = scale[i];
#pragma omp simd
    for (std::int64_t j = 0; j < d; ++j) out[i * ld + j] = from_float<T>(by * in[i * width + j]);
  }
}

template <class T>
ALWAYS_INLINE void dot_rows(const float* a, std::int64_t width, const T* b, std::int64_t ld, float* out, std::int64_t n, std::int64_t d) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t j = 0; j < d; ++j) sum += a[i * width + j] * to_float(b[i * ld + j]);
    out[i] = sum;
  }
}

using Four = float __attribute__((vector_size(16)));

}  // namespace

void product(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
             const float* less) {
  any_product(Kind::subtract, n, k, {a, lda, b, ldb, c, ldc, less});
}

void product_add(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                 std::int64_t ldc, const float* keep) {
  any_product(Kind::keep_add, n, k, {a, lda, b, ldb, c, ldc, keep});
}

void product_transposed_add(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                            std::int64_t ldc) {
  any_product(Kind::transposed_add, n, k, {a, lda, b, ldb, c, ldc, nullptr});
}

BHYT_CLONES void load_tile(const float* in, std::int64_t ld, std::int64_t n, std::int64_t d, float scale, float* out, std::int64_t width) {
  load_rows(in, ld, n, d, scale, out, width);
}
BHYT_CLONES void load_tile(const bf16* in, std::int64_t ld, std::int64_t n, std::int64_t d, float scale, float* out, std::int64_t width) {
  load_rows(in, ld, n, d, scale, out, width);
}

BHYT_CLONES void store_rows(const float* in, std::int64_t width, const float* scale, float* out, std::int64_t ld, std::int64_t n,
                            std::int64_t d) {
  scale_rows(in, width, scale, out, ld, n, d);
}
BHYT_CLONES void store_rows(const float* in, std::int64_t width, const float* scale, bf16* out, std::int64_t ld, std::int64_t n,
                            std::int64_t d) {
  scale_rows(in, width, scale, out, ld, n, d);
}

BHYT_CLONES void row_dots(const float* a, std::int64_t width, const float* b, std::int64_t ld, float* out, std::int64_t n, std::int64_t d) {
  dot_rows(a, width, b, ld, out, n, d);
}
BHYT_CLONES void row_dots(const float* a, std::int64_t width, const bf16* b, std::int64_t ld, float* out, std::int64_t n, std::int64_t d) {
  dot_rows(a, width, b, ld, out, n, d);
}

// Squares of 4 × 4: compilers make single loads and stores of a plain loop.
BHYT_CLONES void transpose(const float* in, std::int64_t rows, std::int64_t width, float* out) {
  for (std::int64_t i = 0; i < rows; i += 4)
    for (std::int64_t j = 0; j < width; j += 4) {
      Four r[4];
      for (std::int64_t l = 0; l < 4; ++l) memcpy(&r[l], in + (i + l) * width + j, sizeof(Four));
      const Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
      const Four c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), e = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
      const Four t[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                         __builtin_shufflevector(b, e, 0, 1, 4, 5), __builtin_shufflevector(b, e, 2, 3, 6, 7)};
      for (std::int64_t l = 0; l < 4; ++l) memcpy(out + (j + l) * rows + i, &t[l], sizeof(Four));
    }
}

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
    keep[r] = max[r] - shift[r];
    max[r] = top;
  }
#pragma omp simd
  for (std::int64_t r = 0; r < kRows; ++r) keep[r] = exp_score(keep[r]);
  for (std::int64_t r = 0; r < kRows; ++r) sum[r] = sum[r] * keep[r] + exponentials(s + r * kTile, block.n, shift[r]);
}

BHYT_CLONES void softmax_gradient(float* s, float* dp, const Block& block) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    float* const row = s + r * kTile;
    float* const drow = dp + r * kTile;
    if (block.masked) hide(row, block, r);
#pragma omp simd
    for (std::int64_t j = 0; j < block.n; ++j) {
      row[j] = exp_score(row[j]);
      drow[j] *= row[j];
    }
  }
}

BHYT_CLONES float softmax_row(float* s, std::int64_t n) { return exponentials(s, n, largest(s, n)); }

}  // namespace bhyt::cpu
