// Tiles in bf16 for attention on processors with a matrix unit (AMX). A product takes its second operand in pairs of rows, element (i, j)
// at [i/2][j][i%2], as the unit wants it. Tiles have kTile positions; heads are padded with zeros to a multiple of kUnit.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/attention/tile.h"

namespace bhyt::cpu {

constexpr std::int64_t kUnit = 32;  // what every size of a product is a multiple of

bool has_matrix_unit();  // of the processor, and given to this process

// The unit belongs to the calling thread, set up for bf16_product, while this lives.
struct MatrixUnit {
  MatrixUnit();
  ~MatrixUnit();
  MatrixUnit(const MatrixUnit&) = delete;
  MatrixUnit& operator=(const MatrixUnit&) = delete;
};

// c [m,n] += a·b with a [m,k] and b [k,n] in pairs; rows of c and b follow each other without a gap. Sums in fp32.
void bf16_product(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a, std::int64_t lda, const bf16* b, float* c);

// out [kTile,width] = rows of `in` [n,d], the rest zero.
void copy_tile(const bf16* in, std::int64_t ld, std::int64_t n, std::int64_t d, bf16* out, std::int64_t width);
// out = the rows of `in` [kTile,width] in pairs.
void pair_rows(const bf16* in, std::int64_t width, bf16* out);
// out = `in` [kTile,width], transposed to [width,kTile], in pairs.
void transpose_pairs(const bf16* in, std::int64_t width, bf16* out);
// out [width,kTile] = what transpose_pairs made, its pairs taken apart.
void part_pairs(const bf16* in, std::int64_t width, bf16* out);

// Scores s [kRows,kTile], of which n columns count, rounded; zeros behind them.
void round_rows(const float* s, std::int64_t n, bf16* out);
// The same in pairs.
void round_pairs(const float* s, std::int64_t n, bf16* out);
// kRows rows of `width`, each times its factor.
void multiply_rows(float* rows, std::int64_t width, const float* by);

}  // namespace bhyt::cpu
