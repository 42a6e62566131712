// rows_product on ARM processors that multiply small matrices: BFMMLA takes two rows of four bf16 from either side, SMMLA two rows of eight
// int8. w is read as it lies; x is packed. bf16: every element of the result is two sums, of the columns that are 0 to 3 and 4 to 7 modulo
// 8, over kDepth columns at a time, whatever rows are worked on together. int8 (int8.h): sums of integers, exact in any order.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cpu {

bool has_mmla(DType weights);  // the processor has the instruction for weights of that type (bf16 or int8; x is bf16)

constexpr std::int64_t kMmlaRows = 8;  // of x that are worked on together
constexpr std::int64_t kMmlaOuts = 4;  // of w

// From one packed group of kMmlaRows rows of x to the next, in bytes.
constexpr std::int64_t mmla_distance(std::int64_t depth) { return (depth + 15) / 16 * 16 * 2 * kMmlaRows; }

// Products with weights of type W, bf16 or std::int8_t.
template <class W>
struct MmlaTask {
  std::int64_t rows = 0, outs = 0, depth = 0;
  bool alone = false;             // there is one row of x in the product
  const void* x = nullptr;        // packed groups
  const float* scales = nullptr;  // int8: [rows], from pack_mmla
  const W* w = nullptr;           // [outs, depth]
  std::int64_t ldw = 0;
  float* sums = nullptr;  // [rows, outs], written
  std::int64_t ldsums = 0;
};

// A group of 1 to kMmlaRows rows of x; for int8 what its integers are to be multiplied by goes to `scales`.
template <class W>
void pack_mmla(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bool alone, void* out, float* scales);

template <class W>
void run(const MmlaTask<W>& task);

}  // namespace bhyt::cpu
