// rows_product in bf16 on ARM processors that multiply small matrices of it: BFMMLA takes two rows of four columns from either side. w is
// read as it lies; x is packed. Every element of the result is two sums, of the columns that are 0 to 3 and 4 to 7 modulo 8, over kDepth
// columns at a time, whatever rows are worked on together.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cpu {

// Whether the processor has the instruction, and no WithoutMmla lives.
bool use_mmla();

// For tests of what processors without it do.
struct WithoutMmla {
  WithoutMmla();
  ~WithoutMmla();
  WithoutMmla(const WithoutMmla&) = delete;
  WithoutMmla& operator=(const WithoutMmla&) = delete;
};

constexpr std::int64_t kMmlaRows = 8;  // of x that are worked on together
constexpr std::int64_t kMmlaOuts = 4;  // of w

// From one packed group of kMmlaRows rows of x to the next, in elements.
constexpr std::int64_t mmla_distance(std::int64_t depth) { return (depth + 7) / 8 * 8 * kMmlaRows; }
// A group of 1 to kMmlaRows rows of x. `alone`: it is the product's only row.
void pack_mmla(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bool alone, bf16* out);

struct MmlaTask {
  std::int64_t rows = 0, outs = 0, depth = 0;
  bool alone = false;       // how x is packed
  const bf16* x = nullptr;  // packed groups
  const bf16* w = nullptr;  // [outs, depth]
  std::int64_t ldw = 0;
  float* sums = nullptr;  // [rows, outs], written
};

void run(const MmlaTask& task);

}  // namespace bhyt::cpu
