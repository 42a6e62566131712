// The inner part of rows_product: some rows of x times some rows of w. Every element of the result is summed in the same order whatever
// rows are worked on together: the depth is cut into blocks of kDepth; in a block every lane of a few vectors (kRowGroups) has its own sum,
// for the columns that are its own modulo the lanes of all; the vectors are added one after the other, then the lanes as a tree.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace bhyt::cpu {

constexpr std::int64_t kDepth = 2048;    // columns that stay in the cache while rows go over them
constexpr std::int64_t kPad = 64;        // rows of x are padded to multiples of it, with zeros: four vectors of any processor
constexpr std::int64_t kManyRows = 4;    // from here on x is laid out, or copied near, for four rows or eight at a time
constexpr std::int64_t kManyOuts = 128;  // of w in a task of many rows, at most
constexpr std::int64_t kPanelFloats = 4 * kDepth;
// Vectors that an element is summed in. Fewer make products of many rows quicker where vectors are short (row_panels.h), more those of few.
template <int L>
constexpr int kRowGroups = L == 4 ? 1 : 4;

int row_lanes();  // of this processor's vectors; what a context takes is in its Instructions (instructions.h)

// Whether long tasks are quicker for products of few rows, which read several rows of w together, far apart, each on and on (rows_apart).
#if defined(__aarch64__)
constexpr bool kReadsFar = true;
#else
constexpr bool kReadsFar = false;
#endif

// The blocks of the depth: whole ones, a shorter one of whole steps, and what is left. (No lambda over them: it would be compiled for the
// plainest processor, whatever the function around it is compiled for.)
template <int L>
struct DepthBlock {
  std::int64_t depth, at = 0;
  static constexpr std::int64_t kStep = kRowGroups<L> * L;
  inline __attribute__((always_inline)) bool there() const { return at < depth; }
  inline __attribute__((always_inline)) bool whole() const { return depth - at >= kStep; }  // else it has to be padded to kStep
  inline __attribute__((always_inline)) std::int64_t size() const {
    return whole() ? std::min(kDepth, (depth - at) / kStep * kStep) : depth - at;
  }
  inline __attribute__((always_inline)) std::int64_t width() const { return whole() ? size() : kStep; }
};

// From one packed row of x to the next. A depth is often a power of two, and rows would fall onto the same few lines of the cache.
constexpr std::int64_t row_distance(std::int64_t depth) { return (depth + kPad - 1) / kPad * kPad + 16; }

// How far apart `count` rows of w lie that are read together, of `outs` in all, so that each is the beginning of a long stretch; 0: there
// are too few. An odd number: with an even one they would often fall onto the same few lines of the cache.
constexpr std::int64_t rows_apart(std::int64_t outs, std::int64_t count) {
  const std::int64_t apart = outs / count;
  return apart % 2 == 0 && apart > 0 ? apart - 1 : apart;
}

// A row of x as `run` wants it: in fp32, padded; `many`: for a task of kManyRows or more.
void pack_row(const float* x, std::int64_t depth, bool many, int lanes, float* out);
void pack_row(const bf16* x, std::int64_t depth, bool many, int lanes, float* out);

template <class W>
struct RowTask {
  std::int64_t rows = 0, outs = 0, depth = 0;
  bool many = false;         // how x is packed; no more than kManyOuts then
  const float* x = nullptr;  // packed rows
  std::int64_t ldx = 0;
  const W* w = nullptr;  // [outs, depth]
  std::int64_t ldw = 0;
  float* sums = nullptr;  // [rows, outs], written
  std::int64_t ldsums = 0;
  float* panel = nullptr;  // kPanelFloats
};

void run(const RowTask<float>& task, int lanes);  // for which x was packed
void run(const RowTask<bf16>& task, int lanes);

}  // namespace bhyt::cpu
