// Weights in int8, one scale a row. A matrix [O,I] is a Tensor of int8 whose rows lie int8_distance(I) apart: the row's values, zeros, and
// at the end its scale (fp32) and the sum of its values (int32).
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

constexpr std::int64_t int8_distance(std::int64_t cols) { return (cols + 8 + 63) / 64 * 64; }
// A matrix over memory of rows · int8_distance(cols) bytes.
Tensor int8_matrix(void* memory, std::int64_t rows, std::int64_t cols);

// out = w [O,I], fp32 or bf16, rounded to 127 steps of each row's largest magnitude on either side of zero; by: fp32 [I] that columns are
// multiplied by first, or empty. On the CPU.
void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out);

namespace cpu {

void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out);

// The inner part of rows_product for such weights. A row of x is taken as integers of 21 bits, in three digits of 7 bits, which loses less
// than fp32 sums do; their products with w are summed exactly. So the result has the same bits in any order, on any processor.
constexpr std::int64_t kDigits = 3, kDigitBits = 7;

constexpr std::int64_t digits_width(std::int64_t depth) { return (depth + 63) / 64 * 64; }  // of one digit of a row
constexpr std::int64_t digits_distance(std::int64_t depth) { return kDigits * digits_width(depth) + 64; }

// The digits of a row of x; returns what the integers are to be multiplied by.
float pack_digits(const float* x, std::int64_t depth, std::uint8_t* out);
float pack_digits(const bf16* x, std::int64_t depth, std::uint8_t* out);

struct Int8Task {
  std::int64_t rows = 0, outs = 0, depth = 0;
  const std::uint8_t* x = nullptr;  // digits, digits_distance apart
  const float* scales = nullptr;    // [rows], from pack_digits
  const std::int8_t* w = nullptr;   // [outs, depth], int8_distance apart
  float* sums = nullptr;            // [rows, outs], written
};
void run(const Int8Task& task);

}  // namespace cpu

}  // namespace bhyt
