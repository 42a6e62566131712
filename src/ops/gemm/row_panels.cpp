#include "ops/gemm/row_panels.h"

#include <algorithm>
#include <cstring>

namespace bhyt::cpu {

namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))

using Four = float __attribute__((vector_size(16)));

constexpr std::int64_t kLanes = 4;
constexpr std::int64_t kTileFloats = kPanelRows * kPanelOuts;
constexpr std::int64_t kPanelFour = kPanelOuts / kLanes;  // vectors of a row of a tile

ALWAYS_INLINE Four load(const float* from) {
  Four v;
  memcpy(&v, from, sizeof v);
  return v;
}
ALWAYS_INLINE Four load(const bf16* from) { return Four{to_float(from[0]), to_float(from[1]), to_float(from[2]), to_float(from[3])}; }
ALWAYS_INLINE void store(float* to, Four v) { memcpy(to, &v, sizeof v); }

ALWAYS_INLINE void transpose(Four (&r)[4]) {
  const Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Four c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// Four rows of a panel of N: for each subsum, step by step, N values side by side.
template <std::int64_t N, class In>
ALWAYS_INLINE void pack_four(const In* const (&rows)[4], std::int64_t steps, float* out) {
  for (std::int64_t t = 0; t < steps; ++t)
#pragma GCC unroll 4
    for (std::int64_t g = 0; g < kSubsums; g += kLanes) {
      Four v[4];
      for (int l = 0; l < 4; ++l) v[l] = load(rows[l] + t * kSubsums + g);
      transpose(v);
      for (int l = 0; l < 4; ++l) store(out + ((g + l) * steps + t) * N, v[l]);
    }
}

// A block of the depth of up to N rows. What would be beyond the last row repeats it: nobody reads those sums.
template <std::int64_t N, class In>
void pack_block(const In* in, std::int64_t ld, std::int64_t n, const DepthBlock<kLanes>& b, float* out) {
  for (std::int64_t q = 0; q < N; q += 4) {
    const In* rows[4];
    for (std::int64_t l = 0; l < 4; ++l) rows[l] = in + std::min(q + l, n - 1) * ld + b.at;
    if (b.whole()) {
      pack_four<N>(rows, b.size() / kSubsums, out + q);
      continue;
    }
    float end[4][kSubsums] = {};
    for (std::int64_t l = 0; l < 4; ++l)
      for (std::int64_t i = 0; i < b.size(); ++i) end[l][i] = to_float(rows[l][i]);
    const float* const padded[4] = {end[0], end[1], end[2], end[3]};
    pack_four<N>(padded, 1, out + q);
  }
}

#if defined(__aarch64__)

// One column of vectors: a vector of w times eight rows of x, whose values are the lanes of v24 and v25.
#define COLUMN_LOW(b, c0, c1, c2, c3) \
  "fmla v" c0 ".4s, v" b              \
  ".4s, v24.s[0]\n"                   \
  "fmla v" c1 ".4s, v" b              \
  ".4s, v24.s[1]\n"                   \
  "fmla v" c2 ".4s, v" b              \
  ".4s, v24.s[2]\n"                   \
  "fmla v" c3 ".4s, v" b ".4s, v24.s[3]\n"
#define COLUMN_HIGH(b, c4, c5, c6, c7) \
  "fmla v" c4 ".4s, v" b               \
  ".4s, v25.s[0]\n"                    \
  "fmla v" c5 ".4s, v" b               \
  ".4s, v25.s[1]\n"                    \
  "fmla v" c6 ".4s, v" b               \
  ".4s, v25.s[2]\n"                    \
  "fmla v" c7 ".4s, v" b ".4s, v25.s[3]\n"
#define ZERO(a, b, c, d) "movi v" a ".4s, #0\nmovi v" b ".4s, #0\nmovi v" c ".4s, #0\nmovi v" d ".4s, #0\n"

// Subsums of a tile one after the other, to parts [kSubsums, kPanelRows, kPanelOuts]; v0 to v23 are one of them. In assembly because of the
// order: every register is loaded for the next step right behind its last use in this one, which is worth a tenth and which compilers undo.
void subsums(std::int64_t steps, const float* x, const float* w, float* parts) {
  std::int64_t left = kSubsums, step = 0;
  asm volatile(
      "ldp q24, q25, [%[x]], #32\n"
      "ldp q26, q27, [%[w]]\n"
      "ldr q28, [%[w], #32]\n"
      "add %[w], %[w], #48\n"
      "2:\n"  // clang-format off
      ZERO("0", "1", "2", "3") ZERO("4", "5", "6", "7") ZERO("8", "9", "10", "11")
      ZERO("12", "13", "14", "15") ZERO("16", "17", "18", "19") ZERO("20", "21", "22", "23")
      "mov %[step], %[steps]\n"
      "1:\n"
      COLUMN_LOW("26", "0", "3", "6", "9") COLUMN_HIGH("26", "12", "15", "18", "21")
      "ldr q26, [%[w]], #48\n"
      COLUMN_LOW("27", "1", "4", "7", "10") COLUMN_HIGH("27", "13", "16", "19", "22")
      "ldr q27, [%[w], #-32]\n"
      COLUMN_LOW("28", "2", "5", "8", "11")
      "ldr q24, [%[x]], #32\n"
      COLUMN_HIGH("28", "14", "17", "20", "23")
      "ldr q25, [%[x], #-16]\n"
      "ldr q28, [%[w], #-16]\n"
      "subs %[step], %[step], #1\n"
      "b.ne 1b\n"
      "stp q0, q1, [%[parts]]\n"
      "stp q2, q3, [%[parts], #32]\n"
      "stp q4, q5, [%[parts], #64]\n"
      "stp q6, q7, [%[parts], #96]\n"
      "stp q8, q9, [%[parts], #128]\n"
      "stp q10, q11, [%[parts], #160]\n"
      "stp q12, q13, [%[parts], #192]\n"
      "stp q14, q15, [%[parts], #224]\n"
      "stp q16, q17, [%[parts], #256]\n"
      "stp q18, q19, [%[parts], #288]\n"
      "stp q20, q21, [%[parts], #320]\n"
      "stp q22, q23, [%[parts], #352]\n"
      "add %[parts], %[parts], #384\n"
      "subs %[left], %[left], #1\n"
      "b.ne 2b\n"  // clang-format on
      : [x] "+r"(x), [w] "+r"(w), [parts] "+r"(parts), [left] "+r"(left), [step] "=&r"(step)
      : [steps] "r"(steps)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17",
        "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28");
}

#else

void subsums(std::int64_t steps, const float* x, const float* w, float* parts) {
  for (std::int64_t s = 0; s < kSubsums; ++s, parts += kTileFloats) {
    std::fill_n(parts, kTileFloats, 0.0f);
    for (std::int64_t t = 0; t < steps; ++t, x += kPanelRows, w += kPanelOuts)
      for (std::int64_t r = 0; r < kPanelRows; ++r)
        for (std::int64_t c = 0; c < kPanelOuts; ++c) parts[r * kPanelOuts + c] += x[r] * w[c];
  }
}

#endif

// Vector v of a tile: its subsums added in the order of row_tiles.h, groups one after the other and then lanes as a tree.
ALWAYS_INLINE Four total(const float* parts, std::int64_t v) {
  Four lane[4];
#pragma GCC unroll 4
  for (std::int64_t l = 0; l < kLanes; ++l) {
    lane[l] = load(parts + l * kTileFloats + v * kLanes);
#pragma GCC unroll 4
    for (std::int64_t g = 1; g < kRowGroups<kLanes>; ++g) lane[l] += load(parts + (g * kLanes + l) * kTileFloats + v * kLanes);
  }
#if defined(__aarch64__)
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
#else
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
#endif
}

// The totals of a tile to their place, rows × outs of them.
void put_tile(const float* parts, bool first, std::int64_t rows, std::int64_t outs, float* sums, std::int64_t ld) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float row[kPanelOuts];
    float* const to = sums + r * ld;
    for (std::int64_t c = 0; c < kPanelFour; ++c) store(row + c * kLanes, total(parts, r * kPanelFour + c));
    if (!first)
      for (std::int64_t c = 0; c < outs; ++c) to[c] += row[c];
    else if (outs == kPanelOuts)
      memcpy(to, row, sizeof row);
    else
      std::copy_n(row, outs, to);
  }
}

// The task's rows of w stay in the cache while those of x go over them, a few at a time that stay there too.
template <class W>
void run_task(const PanelTask<W>& t) {
  constexpr std::int64_t kept = 64 << 10;  // elements of x
  float* const parts = t.scratch;
  float* const panels = parts + kSubsums * kTileFloats;
  const std::int64_t distance = panel_distance(t.depth);
  for (DepthBlock<kLanes> b{t.depth}; b.there(); b.at += b.size()) {
    const std::int64_t width = b.width(), together = std::max(kept / width / kPanelRows, std::int64_t{1}) * kPanelRows;
    for (std::int64_t out = 0; out < t.outs; out += kPanelOuts)
      pack_block<kPanelOuts>(t.w + out * t.ldw, t.ldw, std::min(kPanelOuts, t.outs - out), b, panels + out * width);
    for (std::int64_t begin = 0; begin < t.rows; begin += together)
      for (std::int64_t out = 0; out < t.outs; out += kPanelOuts)
        for (std::int64_t row = begin; row < std::min(begin + together, t.rows); row += kPanelRows) {
          subsums(width / kSubsums, t.x + row / kPanelRows * distance + b.at * kPanelRows, panels + out * width, parts);
          put_tile(parts, b.at == 0 && !t.add, std::min(kPanelRows, t.rows - row), std::min(kPanelOuts, t.outs - out),
                   t.sums + row * t.ldsums + out, t.ldsums);
        }
  }
}

template <class In>
void pack_rows(const In* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out) {
  for (DepthBlock<kLanes> b{depth}; b.there(); b.at += b.size()) pack_block<kPanelRows>(x, ldx, rows, b, out + b.at * kPanelRows);
}

}  // namespace

bool use_panels(std::int64_t rows) {
  constexpr std::int64_t enough = 3 * kPanelRows;  // fewer do not repay laying w out anew
  return row_lanes() == kLanes && rows >= enough;
}

void pack_panel(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out) {
  pack_rows(x, ldx, rows, depth, out);
}
void pack_panel(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out) { pack_rows(x, ldx, rows, depth, out); }

void run(const PanelTask<float>& task) { run_task(task); }
void run(const PanelTask<bf16>& task) { run_task(task); }

}  // namespace bhyt::cpu
