// Weights of one byte on a GPU, int8 or fp8 (e4m3), one scale a row. A matrix [O,I] is a Tensor of that type: of every four columns the
// bytes lie in the order 2, 0, 3, 1, so that kernels unpack two neighbours at once; a row is filled up with zeros to 16 bytes; behind the
// last row, and room up to a multiple of 16 rows, lie the scales, fp32 [O].
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// A row of weights whose largest magnitude is no more is taken as zeros, as on the CPU: what it has to be multiplied by overflows.
constexpr float kLeastWeight = 1e-30f;

constexpr std::int64_t byte_distance(std::int64_t cols) { return (cols + 15) / 16 * 16; }
constexpr std::int64_t byte_rows(std::int64_t rows) { return (rows + 15) / 16 * 16; }
constexpr std::size_t byte_matrix_size(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(byte_rows(rows) * byte_distance(cols) + rows * static_cast<std::int64_t>(sizeof(float)));
}
// A matrix over memory of byte_matrix_size bytes; type: i8 or f8.
Tensor byte_matrix(void* memory, DType type, Device device, std::int64_t rows, std::int64_t cols);
inline float* byte_scales(const Tensor& w) { return reinterpret_cast<float*>(w.as<char>() + byte_rows(w.rows()) * w.ld); }

// out = w [O,I], fp32 or bf16, whose columns are multiplied by factor · by[i] first (by: fp32 [I], or empty), rounded to the nearest, ties
// to even: to 127 steps of each row's largest magnitude (int8), or as e4m3 with that magnitude at 448. A row with a value that is not
// finite has the scale NaN.
void round_to_bytes(Context& ctx, const Tensor& w, const Tensor& by, float factor, const Tensor& out);

// out [O,I], fp32 or bf16: what the bytes stand for.
void widen(Context& ctx, const Tensor& w, const Tensor& out);

namespace cuda {
void round_to_bytes(Context& ctx, const Tensor& w, const Tensor& by, float factor, const Tensor& out);
void widen(Context& ctx, const Tensor& w, const Tensor& out);
}  // namespace cuda

}  // namespace bhyt
