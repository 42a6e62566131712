// Weights in int8, one scale a row. A matrix [O,I] is a Tensor of int8 whose rows lie int8_distance(I) apart: the row's values, zeros, and
// at the end its scale (fp32) and the sum of its values (int32).
#pragma once

#include <cstring>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

constexpr std::int64_t kInt8Columns = 1 << 16;  // at most
// What rows are aligned to: the longest vector that is used.
#if defined(__aarch64__)
constexpr std::int64_t kInt8Vector = 16;
#else
constexpr std::int64_t kInt8Vector = 64;
#endif
constexpr std::int64_t int8_distance(std::int64_t cols) { return (cols + 8 + kInt8Vector - 1) / kInt8Vector * kInt8Vector; }
// A matrix over memory of rows · int8_distance(cols) bytes.
Tensor int8_matrix(void* memory, std::int64_t rows, std::int64_t cols);

// out = w [O,I], fp32 or bf16, rounded to 127 steps of each row's largest magnitude on either side of zero; by: fp32 [I] that columns are
// multiplied by first, or empty. On the CPU.
void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out);

namespace cpu {

void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out);

// The inner part of rows_product for such weights. A row of x is taken as integers, 16 bits of them where x is bf16 (which loses less than
// its own rounding did, for up to 16384 columns, whatever outliers a row has), 21 where it is fp32 (less than fp32 sums lose); their
// products with w are summed exactly. So the result has the same bits in any order, on any processor, however the integers are laid out.

// The integers' digits: `count` of `bits` each, the lowest first. What they stand for is `offset` more than the integer; `flip` turns a
// byte that has no sign into one that has. Digits of more than 8 bits take two bytes, and the highest has the sign.
struct Digits {
  int count, bits;
  std::int32_t offset;
  std::uint8_t flip;
  constexpr int bytes() const { return bits > 8 ? 2 : 1; }
};
constexpr Digits kSevenBits{3, 7, 1 << 20, 0}, kBytes{2, 8, 1 << 15, 0}, kSignedBytes{2, 8, -128, 0x80}, kWhole{1, 16, 0, 0},
    kElevenBits{2, 11, 0, 0};

// What the integers of a row are to be multiplied by; NaN where a value is not finite. inverse: what x is multiplied by to become them.
float int8_scale(const float* x, std::int64_t depth, float& inverse);
float int8_scale(const bf16* x, std::int64_t depth, float& inverse);
// The digits of n values of x, each digit `apart` bytes from the one before.
void digits_of(const float* x, std::int64_t n, float inverse, const Digits& digits, std::uint8_t* out, std::int64_t apart);
void digits_of(const bf16* x, std::int64_t n, float inverse, const Digits& digits, std::uint8_t* out, std::int64_t apart);

// What stands at the end of a row of w.
struct Int8RowEnd {
  float scale;
  std::int32_t sum;
};
inline Int8RowEnd int8_row_end(const std::int8_t* row, std::int64_t cols) {
  Int8RowEnd end;
  std::memcpy(&end, row + int8_distance(cols) - sizeof end, sizeof end);
  return end;
}
inline float int8_value(std::int64_t whole, float scale_of_x, float scale_of_w) {
  return static_cast<float>(static_cast<double>(scale_of_x) * static_cast<double>(scale_of_w) * static_cast<double>(whole));
}

// Columns of one digit of a row, and the bytes from one row to the next, enough for any digits.
constexpr std::int64_t digits_width(std::int64_t depth) { return (depth + kInt8Vector - 1) / kInt8Vector * kInt8Vector; }
constexpr std::int64_t digits_distance(std::int64_t depth) { return kElevenBits.count * kElevenBits.bytes() * digits_width(depth) + 64; }

// How Int8Task wants x of a type, for vectors of so many lanes of four bytes.
const Digits& int8_digits(DType x, int lanes);
// The digits of a row of x; returns what the integers are to be multiplied by.
float pack_digits(const float* x, std::int64_t depth, const Digits& digits, std::uint8_t* out);
float pack_digits(const bf16* x, std::int64_t depth, const Digits& digits, std::uint8_t* out);

struct Int8Task {
  Digits digits = kSevenBits;
  std::int64_t rows = 0, outs = 0, depth = 0;
  const std::uint8_t* x = nullptr;  // digits, digits_distance apart
  const float* scales = nullptr;    // [rows], from pack_digits
  const std::int8_t* w = nullptr;   // [outs, depth], int8_distance apart
  float* sums = nullptr;            // [rows, outs], written
};
void run(const Int8Task& task, int lanes);

}  // namespace cpu

}  // namespace bhyt
