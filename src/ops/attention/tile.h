// The pieces attention on the CPU is made of: tiles copied to fp32, small products of them, and the softmax of a few rows.
// Tiles have kTile positions; heads are padded with zeros to a multiple of kCols, so that no loop has a remainder.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace bhyt::cpu {

constexpr std::int64_t kTile = 64;
constexpr std::int64_t kCols = 16;
// Rows that are worked on at once, as many as the products sum in registers.
#if defined(__x86_64__)
constexpr std::int64_t kRows = 8;
#else
constexpr std::int64_t kRows = 4;
#endif

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Products of kRows rows; n is a multiple of kCols, k at least 2. a [kRows,k], b [k,n], c [kRows,n].
// c = a·b − less[row]
void product(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
             const float* less);
// c = keep[row]·c + a·b
void product_add(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                 std::int64_t ldc, const float* keep);
// c += aᵀ·b with a [k,kRows]
void product_transposed_add(std::int64_t n, std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                            std::int64_t ldc);

// out [kTile,width] = scale · rows of `in` [n,d], the rest zero.
void load_tile(const float* in, std::int64_t ld, std::int64_t n, std::int64_t d, float scale, float* out, std::int64_t width);
void load_tile(const bf16* in, std::int64_t ld, std::int64_t n, std::int64_t d, float scale, float* out, std::int64_t width);
// out [width,rows] = `in` [rows,width], transposed; both multiples of 4.
void transpose(const float* in, std::int64_t rows, std::int64_t width, float* out);
// Row by row scale[i] · in to `out` [n,d].
void store_rows(const float* in, std::int64_t width, const float* scale, float* out, std::int64_t ld, std::int64_t n, std::int64_t d);
void store_rows(const float* in, std::int64_t width, const float* scale, bf16* out, std::int64_t ld, std::int64_t n, std::int64_t d);
// out[i] = Σ a[i]·b[i] over the rows of a loaded tile and of b [n,d].
void row_dots(const float* a, std::int64_t width, const float* b, std::int64_t ld, float* out, std::int64_t n, std::int64_t d);
void row_dots(const float* a, std::int64_t width, const bf16* b, std::int64_t ld, float* out, std::int64_t n, std::int64_t d);

// e^x for a score minus the largest one, at half the instructions of fast_exp: within 3e-7 of the value where x is in [-87, 1],
// 0 below that, NaN for NaN.
BHYT_BOTH float exp_score(float x) {
  const float magic = 12582912.0f;
  const float shifted = x * 1.44269504f + magic;  // its low bits are n = round(x / ln 2) as an integer; e^x = 2^n · e^r
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f, r2 = r * r;
  const float q = (0.49999994f + 0.166665196f * r) + r2 * ((0.0416683927f + 0.00836878084f * r) + r2 * 0.00138144672f);
  std::uint32_t u, power_bits;
  memcpy(&u, &x, 4);
  memcpy(&power_bits, &shifted, 4);
  power_bits = (power_bits + 127u) << 23;
  float power;
  memcpy(&power, &power_bits, 4);
  const float y = ((1.0f + r) + r2 * q) * power;
  // x < -87, as integers: GCC makes a float comparison that has to mind NaN six instructions on NEON.
  return u - 0xC2AE0001u <= 0xFF800000u - 0xC2AE0001u ? 0.0f : y;
}

// What kRows rows of a score tile see of it.
struct Block {
  std::int64_t n = 0;                 // columns to compute, a multiple of kCols; 0: none is visible
  bool masked = false;                // some of them are hidden from some row
  std::int64_t lo[kRows], hi[kRows];  // row r sees columns [lo, hi)
};

// Rows are positions t, t + 1, … below `end` (more rows repeat the last one), columns the keys from `key` on.
// first[t] is the first position that t sees; null: 0.
Block visible_block(const std::int32_t* first, std::int64_t t, std::int64_t end, std::int64_t key);

// One step of the online softmax for scores s [kRows,kTile]: s becomes exp(s − max), `max` and `sum` follow, and keep[row] is what
// earlier sums have to be multiplied by.
void softmax_step(float* s, const Block& block, float* max, float* sum, float* keep);

// s, the log-sum-exp already subtracted, becomes p = exp(s); dp, delta already subtracted, becomes p·dp.
void softmax_gradient(float* s, float* dp, const Block& block);

// In place over a row of n scores (a multiple of kCols), not normalized: returns the sum.
float softmax_row(float* s, std::int64_t n);

}  // namespace bhyt::cpu
