// Another way to the sums of row_tiles.h, bit for bit, for products of many rows where vectors have four lanes: every lane there is a sum
// of its own here, and vectors go across the rows of w. It takes laying both operands out anew, which many rows repay.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/gemm/row_tiles.h"

namespace bhyt::cpu {

constexpr std::int64_t kPanelRows = 8, kPanelOuts = 12;  // of x and of w that are multiplied at once: their sums fill the registers
constexpr std::int64_t kSubsums = kRowGroups<4> * 4;     // of an element: the columns that are equal modulo it
constexpr std::int64_t kPanelTaskOuts = 2 * kPanelOuts;  // of w in a task, at most

// A depth whose sums are complete at once: they can go where they belong.
constexpr bool in_one_block(std::int64_t depth) { return depth <= kDepth && depth % kSubsums == 0; }

// Whether products of as many rows should take this way.
bool use_panels(std::int64_t rows);

// From one packed panel of x to the next. Sums are read a step ahead, so behind the last panel there is room for one.
constexpr std::int64_t panel_distance(std::int64_t depth) { return (depth + kSubsums - 1) / kSubsums * kSubsums * kPanelRows + kPanelRows; }
// What a worker needs for a task's rows of w and the sums of a tile.
constexpr std::int64_t panel_scratch() { return kSubsums * kPanelRows * kPanelOuts + kDepth * kPanelTaskOuts + kPanelOuts; }

// Up to kPanelRows rows of x [rows, depth], ldx apart, as `run` wants them.
void pack_panel(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out);
void pack_panel(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out);

template <class W>
struct PanelTask {
  std::int64_t rows = 0, outs = 0, depth = 0;
  const float* x = nullptr;  // packed panels
  const W* w = nullptr;      // [outs, depth]
  std::int64_t ldw = 0;
  float* sums = nullptr;  // [rows, outs], written or added to
  std::int64_t ldsums = 0;
  bool add = false;
  float* scratch = nullptr;  // panel_scratch()
};

void run(const PanelTask<float>& task);
void run(const PanelTask<bf16>& task);

}  // namespace bhyt::cpu
