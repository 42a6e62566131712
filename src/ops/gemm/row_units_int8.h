// rows_product of weights in int8 on processors with a matrix unit (AMX): as row_units.h, with tiles of 16 rows of w and 64 columns, and x
// in digits. Sums are integers, and so exact.
#pragma once

#include "ops/gemm/int8.h"
#include "ops/gemm/row_units.h"

namespace bhyt::cpu {

// Where rows of w are aligned to tiles.
constexpr bool kInt8Units = kInt8Vector == 64;

// How rows of x have to be taken: bytes without a sign.
constexpr const Digits& unit_digits(DType x) { return x == DType::bf16 ? kBytes : kSevenBits; }

// Bytes of the packed form of up to kTileRows rows of x.
constexpr std::int64_t packed_digits_size(std::int64_t depth) { return kTileRows * digits_distance(depth); }
// Writes kTileRows scales, of which those of the rows count.
void pack_digit_tiles(const Tensor& x, std::uint8_t* out, float* scales);

struct Int8UnitTask {
  Digits digits = kSevenBits;
  std::int64_t rows = 0, outs = 0, depth = 0;
  const std::uint8_t* x = nullptr;  // packed, packed_digits_size for each kTileRows rows
  const float* scales = nullptr;    // [rows up to kTileRows]
  const std::int8_t* w = nullptr;   // [outs, depth], int8_distance apart
  float* sums = nullptr;            // [outs, rows up to kTileRows], written
};

// In a thread that holds the MatrixUnit (attention/tile_bf16.h).
void run(const Int8UnitTask& task);

}  // namespace bhyt::cpu
