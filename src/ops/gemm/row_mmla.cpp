#include "ops/gemm/row_mmla.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/error.h"
#include "ops/gemm/row_tiles.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace bhyt::cpu {

namespace {

std::atomic<int> without = 0;

constexpr std::int64_t kStep = 8, kHalf = 4;  // columns: of a vector of w, and of a sum

#if defined(__aarch64__)

#define ALWAYS_INLINE inline __attribute__((always_inline))

using Four = float __attribute__((vector_size(16)));
using Halves = std::uint16_t __attribute__((vector_size(16)));
using Quarters = std::uint64_t __attribute__((vector_size(16)));  // four columns each

bool has_mmla() {
  static const bool yes = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return yes;
}

ALWAYS_INLINE Halves load(const bf16* from) {
  Halves v;
  memcpy(&v, from, sizeof v);
  return v;
}

// sum [2,2] += a [2,4] · bᵀ [4,2]. By its name: as a function of the compiler it would have to be called from code for such processors.
ALWAYS_INLINE void add_product(Four& sum, const Halves& a, const Halves& b) {
  __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
}

// The rows of w of a tile. They lie far apart, so that memory is read in several places on and on; where a task has fewer than kMmlaOuts
// left, the last one is there several times.
struct Outs {
  const bf16* row[kMmlaOuts];

  ALWAYS_INLINE Outs from(std::int64_t column) const { return {{row[0] + column, row[1] + column, row[2] + column, row[3] + column}}; }
};

// What is left of the rows behind their last whole vector, with zeros behind it.
struct Ends {
  bf16 row[kMmlaOuts][kStep];

  ALWAYS_INLINE Outs of(const Outs& w, std::int64_t n) {
    memset(row, 0, sizeof row);
    for (int c = 0; c < kMmlaOuts; ++c) std::copy_n(w.row[c], n, row[c]);
    return {{row[0], row[1], row[2], row[3]}};
  }
};

// One row of x alone. A vector is taken as two rows of four columns, on either side; of the four sums two are right.
ALWAYS_INLINE void step(const bf16* x, const Outs& w, std::int64_t column, Four (&acc)[kMmlaOuts]) {
  const Halves a = load(x + column);
#pragma GCC unroll 4
  for (int c = 0; c < kMmlaOuts; ++c) add_product(acc[c], a, load(w.row[c] + column));
}

ALWAYS_INLINE void tile_of_one(std::int64_t depth, const bf16* x, const Outs& w, float (&out)[kMmlaRows][kMmlaOuts]) {
  Four acc[kMmlaOuts] = {};
  std::int64_t p = 0;
  for (; p + kStep <= depth; p += kStep) step(x, w, p, acc);
  if (p < depth) {
    Ends ends;
    step(x + p, ends.of(w.from(p), depth - p), 0, acc);
  }
#pragma GCC unroll 4
  for (int c = 0; c < kMmlaOuts; ++c) out[0][c] = acc[c][0] + acc[c][3];
}

// P pairs of rows of x.
template <int P>
ALWAYS_INLINE void step(const bf16* x, const Outs& w, std::int64_t column, Four (&acc)[2][P][2]) {
  Halves b[2][2];
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    const auto first = reinterpret_cast<Quarters>(load(w.row[2 * c] + column)),
               second = reinterpret_cast<Quarters>(load(w.row[2 * c + 1] + column));
    b[0][c] = reinterpret_cast<Halves>(__builtin_shufflevector(first, second, 0, 2));
    b[1][c] = reinterpret_cast<Halves>(__builtin_shufflevector(first, second, 1, 3));
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half)
#pragma GCC unroll 4
    for (int r = 0; r < P; ++r) {
      const Halves a = load(x + (half * P + r) * kStep);
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) add_product(acc[half][r][c], a, b[half][c]);
    }
}

template <int P>
ALWAYS_INLINE void tile_of_pairs(std::int64_t depth, const bf16* x, const Outs& w, float (&out)[kMmlaRows][kMmlaOuts]) {
  Four acc[2][P][2] = {};
  std::int64_t p = 0;
  for (; p + kStep <= depth; p += kStep, x += 2 * P * kStep) step<P>(x, w, p, acc);
  if (p < depth) {
    Ends ends;
    step<P>(x, ends.of(w.from(p), depth - p), 0, acc);
  }
#pragma GCC unroll 4
  for (int r = 0; r < P; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const Four sum = acc[0][r][c] + acc[1][r][c];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) out[2 * r + i / 2][2 * c + i % 2] = sum[i];
    }
}

#define FOR_MMLA __attribute__((target("arch=armv8.2-a+bf16")))

// A tile of a group of `rows` rows: out [kMmlaRows, kMmlaOuts].
FOR_MMLA void tile(bool alone, std::int64_t rows, std::int64_t depth, const bf16* x, const Outs& w, float (&out)[kMmlaRows][kMmlaOuts]) {
  if (alone) return tile_of_one(depth, x, w, out);
  const std::int64_t pairs = (rows + 1) / 2;
  if (pairs == 4)
    tile_of_pairs<4>(depth, x, w, out);
  else if (pairs == 3)
    tile_of_pairs<3>(depth, x, w, out);
  else if (pairs == 2)
    tile_of_pairs<2>(depth, x, w, out);
  else
    tile_of_pairs<1>(depth, x, w, out);
}

// The part [at, at + depth) of the depth, of kMmlaOuts rows of w from `out` on, `apart` from each other, for the group from `row` on.
void add_tile(const MmlaTask& t, std::int64_t row, std::int64_t out, std::int64_t apart, std::int64_t at, std::int64_t depth) {
  std::int64_t outs[kMmlaOuts];
  Outs w;
  for (int c = 0; c < kMmlaOuts; ++c) {
    outs[c] = std::min(out + c * apart, t.outs - 1);
    w.row[c] = t.w + outs[c] * t.ldw + at;
  }
  const std::int64_t rows = std::min(kMmlaRows, t.rows - row), packed = t.alone ? 1 : (rows + 1) / 2 * 2;
  float sums[kMmlaRows][kMmlaOuts];
  tile(t.alone, rows, depth, t.x + row / kMmlaRows * mmla_distance(t.depth) + at * packed, w, sums);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const to = t.sums + (row + r) * t.outs;
    for (int c = 0; c < kMmlaOuts; ++c) {
      if (c > 0 && outs[c] == outs[c - 1]) break;
      to[outs[c]] = at == 0 ? sums[r][c] : to[outs[c]] + sums[r][c];
    }
  }
}

#else

bool has_mmla() { return false; }

void add_tile(const MmlaTask&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  throw Error("BFMMLA on a processor without it");
}

#endif

}  // namespace

bool use_mmla() { return has_mmla() && without == 0; }

WithoutMmla::WithoutMmla() { ++without; }
WithoutMmla::~WithoutMmla() { --without; }

void pack_mmla(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bool alone, bf16* out) {
  const std::int64_t packed = alone ? 1 : (rows + 1) / 2 * 2, whole = depth / kHalf * kHalf;
  if (depth % kStep != 0 || packed != rows) std::fill_n(out, (depth + kStep - 1) / kStep * kStep * packed, bf16{0});
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* const row = x + r * ldx;
    // Columns in fours: for each, pair by pair, two rows side by side.
    for (std::int64_t p = 0; p < whole; p += kHalf) memcpy(out + p * packed + r * kHalf, row + p, kHalf * sizeof(bf16));
    std::copy_n(row + whole, depth - whole, out + whole * packed + r * kHalf);
  }
}

// Few rows of x: a tile's rows of w from end to end, as memory gives them quickest. Many: a part of the task's rows of w, which stays in
// the cache, for one group after the other, whose part stays nearer.
void run(const MmlaTask& t) {
  const auto each_part = [&](auto&& f) {
    for (std::int64_t at = 0; at < t.depth; at += kDepth) f(at, std::min(kDepth, t.depth - at));
  };
  const auto each_tile = [&](auto&& f) {
    const std::int64_t apart = t.outs / kMmlaOuts;
    for (std::int64_t out = 0; out < apart; ++out) f(out, apart);
    if (t.outs % kMmlaOuts != 0) f(apart * kMmlaOuts, 1);
  };
  if (t.rows <= kMmlaRows)
    each_tile([&](std::int64_t out, std::int64_t apart) {
      each_part([&](std::int64_t at, std::int64_t depth) { add_tile(t, 0, out, apart, at, depth); });
    });
  else
    each_part([&](std::int64_t at, std::int64_t depth) {
      for (std::int64_t row = 0; row < t.rows; row += kMmlaRows)
        each_tile([&](std::int64_t out, std::int64_t apart) { add_tile(t, row, out, apart, at, depth); });
    });
}

}  // namespace bhyt::cpu
