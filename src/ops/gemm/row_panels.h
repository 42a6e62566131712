// Another way to the sums of row_tiles.h, bit for bit, for products of many rows: every lane there is a sum of its own here, and vectors go
// across the rows of w. It takes laying both operands out anew, which many rows repay.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/gemm/row_tiles.h"

namespace bhyt::cpu {

// What depends on the lanes of a vector.
struct PanelShape {
  std::int64_t rows, outs;  // of x and of w that are multiplied at once: their sums fill the registers
  std::int64_t subsums;     // of an element: the columns that are equal modulo it
  std::int64_t task_outs;   // of w in a task, at most
  std::int64_t scratch;     // floats that a worker needs for a task's rows of w and the sums of a tile

  // From one packed panel of x to the next. Sums are read a step ahead, so behind the last panel there is room for one.
  constexpr std::int64_t distance(std::int64_t depth) const { return (depth + subsums - 1) / subsums * subsums * rows + rows; }
  // A depth whose sums are complete at once: they can go where they belong.
  bool in_one_block(std::int64_t depth) const { return depth <= kDepth && depth % subsums == 0; }
};
constexpr std::int64_t kPanelTaskOuts = 48;  // the largest task_outs

PanelShape panel_shape(int lanes);

// Whether products of as many rows should take this way.
bool use_panels(std::int64_t rows);

// Up to PanelShape::rows rows of x [rows, depth], ldx apart, as `run` wants them.
void pack_panel(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, int lanes, float* out);
void pack_panel(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, int lanes, float* out);

template <class W>
struct PanelTask {
  std::int64_t rows = 0, outs = 0, depth = 0;
  const float* x = nullptr;  // packed panels
  const W* w = nullptr;      // [outs, depth]
  std::int64_t ldw = 0;
  float* sums = nullptr;  // [rows, outs], written or added to
  std::int64_t ldsums = 0;
  bool add = false;
  float* scratch = nullptr;  // PanelShape::scratch
};

void run(const PanelTask<float>& task, int lanes);  // for which x was packed
void run(const PanelTask<bf16>& task, int lanes);

}  // namespace bhyt::cpu
