// rows_product in bf16 on processors with a matrix unit (AMX). w is the unit's first operand and is read as it lies: a tile is 16 rows of
// it, 32 columns wide. x is its second one, packed: 16 rows of x side by side, their columns in pairs. Every element of the result is
// summed over the depth in one chain, whatever tiles are worked on together.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cpu {

constexpr std::int64_t kTileRows = 16, kTileDepth = 32;
constexpr std::int64_t kTileSize = kTileRows * kTileDepth;

// Elements of the packed form of x [rows, depth].
constexpr std::int64_t packed_size(std::int64_t rows, std::int64_t depth) {
  return (rows + kTileRows - 1) / kTileRows * kTileRows * ((depth + kTileDepth - 1) / kTileDepth * kTileDepth);
}
// Up to kTileRows rows of x; `out` has packed_size(kTileRows, depth).
void pack_tiles(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bf16* out);

struct UnitTask {
  std::int64_t rows = 0, outs = 0, depth = 0;
  const bf16* x = nullptr;  // packed
  const bf16* w = nullptr;  // [outs, depth]
  std::int64_t ldw = 0;
  float* sums = nullptr;    // [outs up to kTileRows, rows up to kTileRows], written
  std::int64_t ldsums = 0;  // rows up to kTileRows
};

// In a thread that holds the MatrixUnit (attention/tile_bf16.h).
void run(const UnitTask& task);

}  // namespace bhyt::cpu
