#include "ops/gemm/row_tiles.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ops/gemm/row_vectors.h"

namespace bhyt::cpu {

namespace {

// V vectors, one behind the other.
template <int L, int V, class In>
ALWAYS_INLINE void load_vectors(const In* from, typename Vector<L>::Floats (&to)[V]) {
#if defined(__aarch64__)
  if constexpr (std::is_same_v<In, bf16> && V == 2) {
    // Zeros below each: a shift would do it too, but on some processors half as many in a cycle.
    const uint16x8_t halves = vld1q_u16(&from->bits), zero = vdupq_n_u16(0);
    to[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, halves));
    to[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, halves));
    return;
  }
#endif
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) load<L>(from + v * L, to[v]);
}

// Where sums go; the first block of the depth sets them, the others add.
struct Sums {
  float* at;
  std::int64_t ld;
  bool first;
  template <int L>
  ALWAYS_INLINE void put(int r, std::int64_t c, const typename Vector<L>::Floats& v) const {
    float& sum = at[r * ld + c];
    sum = first ? total<L>(v) : sum + total<L>(v);
  }
};

// A row that is shorter than a step, with zeros behind it.
template <int L, class W>
ALWAYS_INLINE const float* padded(const W* row, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < kRowGroups<L> * L; ++i) out[i] = i < n ? to_float(row[i]) : 0.0f;
  return out;
}

// Few rows, bound by reading w: two rows of it at a time that lie far apart, so that both are read on and on and the end of one is not
// waited for (four take a Neoverse-N1 a sixth to a quarter longer); one where it has sums enough to keep the processor busy, or two have
// too many for the registers.
template <int L, int R, class W>
constexpr int kFewOuts = L == 4 ? (R == 1 && std::is_same_v<W, float> ? 1 : 2) : (R == 1 || L == 16 ? 2 : 1);

// What is further in a row of w is asked for where processors do not look far ahead themselves.
template <int L, class W>
ALWAYS_INLINE void ask_ahead([[maybe_unused]] const W* w, [[maybe_unused]] std::int64_t n) {
#if defined(__x86_64__)
  constexpr std::int64_t kAhead = 1024 / sizeof(W), kLine = 64 / sizeof(W);
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < n; i += kLine) __builtin_prefetch(w + kAhead + i);
#endif
}

// V vectors of R rows of x and of C rows of w, which lie `apart`; each goes to the sum of its group.
template <int L, int R, int C, int V, class W>
ALWAYS_INLINE void few_vectors(const float* x, std::int64_t ldx, const W* w, std::int64_t apart,
                               typename Vector<L>::Floats (&acc)[R][C][kRowGroups<L>]) {
  typename Vector<L>::Floats a, b[C][V];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    ask_ahead<L>(w + c * apart, V * L);
    load_vectors<L, V>(w + c * apart, b[c]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      load<L>(x + r * ldx + v * L, a);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) add_product<L>(acc[r][c][v % kRowGroups<L>], a, b[c][v]);
    }
}

// C rows of w, `apart` from each other, whose sums are `outs` apart. At least two vectors at a time: of bf16 that is what a load brings.
// Eight steps of short vectors before the loop counts: on a Neoverse-N1, whose window is small, that is a tenth.
template <int L, int R, int C, class W>
ALWAYS_INLINE void few(std::int64_t k, const float* x, std::int64_t ldx, const W* w, std::int64_t apart, const Sums& sums,
                       std::int64_t outs) {
  constexpr int kGroups = kRowGroups<L>, kVectors = kGroups == 1 ? 2 : kGroups, kStep = kVectors * L, kSteps = kGroups == 1 ? 8 : 1;
  typename Vector<L>::Floats acc[R][C][kGroups] = {};
  std::int64_t p = 0;
  for (; p + kSteps * kStep <= k; p += kSteps * kStep)
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i) few_vectors<L, R, C, kVectors>(x + p + i * kStep, ldx, w + p + i * kStep, apart, acc);
  for (; p + kStep <= k; p += kStep) few_vectors<L, R, C, kVectors>(x + p, ldx, w + p, apart, acc);
  if (p < k) few_vectors<L, R, C, kGroups>(x + p, ldx, w + p, apart, acc);
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      typename Vector<L>::Floats sum = acc[r][c][0];
#pragma GCC unroll 4
      for (int g = 1; g < kRowGroups<L>; ++g) sum += acc[r][c][g];
      sums.put<L>(r, c * outs, sum);
    }
}

// A block of the depth of C rows of w, from row `out` on, `outs` apart.
template <int L, int R, int C, class W>
ALWAYS_INLINE void few_outs(const RowTask<W>& t, std::int64_t out, std::int64_t outs, const DepthBlock<L>& b) {
  const W* const w = t.w + out * t.ldw + b.at;
  const Sums sums{t.sums + out, t.ldsums, b.at == 0};
  if (b.whole()) {
    few<L, R, C>(b.size(), t.x + b.at, t.ldx, w, outs * t.ldw, sums, outs);
    return;
  }
  for (int c = 0; c < C; ++c) padded<L>(w + c * outs * t.ldw, b.size(), t.panel + c * b.kStep);
  few<L, R, C>(b.width(), t.x + b.at, t.ldx, t.panel, b.kStep, sums, outs);
}
template <int L, int R, int C, class W>
ALWAYS_INLINE void few_outs(const RowTask<W>& t, std::int64_t out, std::int64_t outs) {
  for (DepthBlock<L> b{t.depth}; b.there(); b.at += b.size()) few_outs<L, R, C>(t, out, outs, b);
}

template <int L, int R, class W>
ALWAYS_INLINE void task_of_few(const RowTask<W>& t) {
  constexpr int C = kFewOuts<L, R, W>;
  const std::int64_t apart = rows_apart(t.outs, C);
  std::int64_t out = 0;
  for (; out < apart; ++out) few_outs<L, R, C>(t, out, apart);
  for (out = apart * C; out + C <= t.outs; out += C) few_outs<L, R, C>(t, out, 1);
  for (; out < t.outs; ++out) few_outs<L, R, 1>(t, out, 1);
}

template <int L, class W>
ALWAYS_INLINE void task_of_few(const RowTask<W>& t) {
  static_assert(kManyRows == 4);
  if (t.rows == 3)
    task_of_few<L, 3>(t);
  else if (t.rows == 2)
    task_of_few<L, 2>(t);
  else if (t.rows == 1)
    task_of_few<L, 1>(t);
}

// The vectors of a block that belong to one sum, side by side.
template <int L, class In>
ALWAYS_INLINE void part_groups(const In* in, std::int64_t size, float* out) {
  const std::int64_t group = size / kRowGroups<L>;
  for (std::int64_t p = 0; p < size; p += kRowGroups<L> * L)
#pragma GCC unroll 4
    for (int g = 0; g < kRowGroups<L>; ++g) {
      typename Vector<L>::Floats v;
      load<L>(in + p + g * L, v);
      memcpy(out + g * group + p / kRowGroups<L>, &v, sizeof v);
    }
}

template <int L, class In>
ALWAYS_INLINE void part_block(const In* row, const DepthBlock<L>& b, float* out) {
  float end[b.kStep];
  if (b.whole())
    part_groups<L>(row + b.at, b.size(), out);
  else
    part_groups<L>(padded<L>(row + b.at, b.size(), end), b.width(), out);
}

// R rows of x, their groups parted, times C rows of w as they lie, of which every group is gone through in turn: k columns each. The rows
// of w behind them are asked for.
template <int L, int R, int C, class W>
ALWAYS_INLINE void tile(std::int64_t k, const float* x, std::int64_t ldx, const W* w, std::int64_t ldw, const Sums& sums) {
  typename Vector<L>::Floats part[R][C];
  const std::int64_t group = k / kRowGroups<L>;
  for (int g = 0; g < kRowGroups<L>; ++g) {
    typename Vector<L>::Floats acc[R][C] = {};
    for (std::int64_t p = 0; p < group; p += L) {
      typename Vector<L>::Floats a[R], b;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) load<L>(x + r * ldx + g * group + p, a[r]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        if (p % (64 / sizeof(W)) == 0) __builtin_prefetch(w + (C + c) * ldw + g * group + p);
        load<L>(w + c * ldw + p * kRowGroups<L> + g * L, b);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) add_product<L>(acc[r][c], a[r], b);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < C; ++c) part[r][c] = g == 0 ? acc[r][c] : part[r][c] + acc[r][c];
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums.put<L>(r, c, part[r][c]);
}

// A block of C rows of w from row `out` on, for R rows of x from `row` on.
template <int L, int R, int C, class W>
ALWAYS_INLINE void tile(const RowTask<W>& t, std::int64_t row, std::int64_t out, const DepthBlock<L>& b) {
  const float* const x = t.x + row * t.ldx + b.at;
  const W* const w = t.w + out * t.ldw + b.at;
  const Sums sums{t.sums + row * t.ldsums + out, t.ldsums, b.at == 0};
  if (b.whole()) return tile<L, R, C>(b.size(), x, t.ldx, w, t.ldw, sums);
  for (int c = 0; c < C; ++c) padded<L>(w + c * t.ldw, b.size(), t.panel + c * b.kStep);
  tile<L, R, C>(b.width(), x, t.ldx, t.panel, b.kStep, sums);
}

// A block of all rows of w, for R rows of x, which the nearest cache keeps.
template <int L, int R, int C, class W>
ALWAYS_INLINE void rows_of_x(const RowTask<W>& t, std::int64_t row, const DepthBlock<L>& b) {
  std::int64_t out = 0;
  for (; out + C <= t.outs; out += C) tile<L, R, C>(t, row, out, b);
  for (; out < t.outs; ++out) tile<L, R, 1>(t, row, out, b);
}

// Widening w again for every four rows of x takes less than laying it out for them.
template <int L, int C, class W>
ALWAYS_INLINE void task_of_many(const RowTask<W>& t) {
  for (DepthBlock<L> b{t.depth}; b.there(); b.at += b.size()) {
    std::int64_t row = 0;
    for (; row + 4 <= t.rows; row += 4) rows_of_x<L, 4, C>(t, row, b);
    if (t.rows - row == 3)
      rows_of_x<L, 3, C>(t, row, b);
    else if (t.rows - row == 2)
      rows_of_x<L, 2, C>(t, row, b);
    else if (t.rows - row == 1)
      rows_of_x<L, 1, C>(t, row, b);
  }
}

// Many rows and short vectors: w is widened in registers, which is little beside eight rows of sums. The nearest cache keeps a few columns
// of x, a step of all rows after the other, while rows of w go over them; sums wait in memory for the next ones, lane by lane.
constexpr std::int64_t kNearColumns = 512, kNearRows = 8, kNearFloats = kNearColumns * kNearRows;
static_assert(kNearFloats + kManyOuts * 4 * kNearRows <= kPanelFloats);
template <int L>
constexpr int kNearStep = 2 * L;

// Steps of R rows of x in the panel times C rows of w. The rows of w behind them are asked for.
template <int L, int R, int C, class W>
ALWAYS_INLINE void near_steps(std::int64_t steps, const float* x, const W* w, std::int64_t ldw,
                              typename Vector<L>::Floats (&acc)[R][C][1]) {
  for (std::int64_t p = 0; p < steps * kNearStep<L>; p += kNearStep<L>) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) __builtin_prefetch(w + (C + c) * ldw + p);
    few_vectors<L, R, C, 2>(x + p * R, kNearStep<L>, w + p, ldw, acc);
  }
}

// Columns [from, from + k) of a whole block of the depth: of R rows of x, which are in the panel, and C rows of w from row `out` on.
template <int L, int R, int C, class W>
ALWAYS_INLINE void near_outs(const RowTask<W>& t, std::int64_t out, const DepthBlock<L>& b, std::int64_t from, std::int64_t k) {
  const W* const w = t.w + out * t.ldw + b.at + from;
  float* const waiting = t.panel + kNearFloats + out * R * L;
  typename Vector<L>::Floats acc[R][C][1] = {};
  // Each by itself here and below: taken as a whole, GCC would keep them in memory.
  if (from > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) load<L>(waiting + i * L, acc[i / C][i % C][0]);
  }
  const std::int64_t steps = k / kNearStep<L>, p = steps * kNearStep<L>;
  near_steps<L, R, C>(steps, t.panel, w, t.ldw, acc);
  if (p < k) few_vectors<L, R, C, 1>(t.panel + p * R, kNearStep<L>, w + p, t.ldw, acc);
  if (from + k < b.size()) {
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) memcpy(waiting + i * L, &acc[i / C][i % C][0], sizeof acc[0][0][0]);
    return;
  }
  const Sums sums{t.sums + out, t.ldsums, b.at == 0};
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums.put<L>(r, c, acc[r][c][0]);
}

template <int L, int R, class W>
ALWAYS_INLINE void near_rows(const RowTask<W>& t) {
  for (DepthBlock<L> b{t.depth}; b.there(); b.at += b.size()) {
    if (!b.whole()) {
      for (std::int64_t out = 0; out < t.outs; ++out) few_outs<L, R, 1>(t, out, 1, b);
      continue;
    }
    for (std::int64_t from = 0; from < b.size(); from += kNearColumns) {
      const std::int64_t k = std::min(kNearColumns, b.size() - from);
      for (std::int64_t p = 0; p < k; p += kNearStep<L>)  // rows of x have zeros behind their end
        for (int r = 0; r < R; ++r)
          memcpy(t.panel + p * R + r * kNearStep<L>, t.x + r * t.ldx + b.at + from + p, kNearStep<L> * sizeof(float));
      std::int64_t out = 0;
      for (; out + 2 <= t.outs; out += 2) near_outs<L, R, 2>(t, out, b, from, k);
      if (out < t.outs) near_outs<L, R, 1>(t, out, b, from, k);
    }
  }
}

// Eight rows or four at a time; returns what is left, fewer than kManyRows.
template <int L, class W>
ALWAYS_INLINE RowTask<W> near_task(RowTask<W> t) {
  for (std::int64_t rows; t.rows >= kManyRows; t.rows -= rows, t.x += rows * t.ldx, t.sums += rows * t.ldsums) {
    rows = t.rows >= kNearRows ? kNearRows : kManyRows;
    if (rows == kNearRows)
      near_rows<L, kNearRows>(t);
    else
      near_rows<L, kManyRows>(t);
  }
  return t;
}

// Vectors of L lanes; C rows of w beside four of x fill the registers.
template <int L, int C, class W>
ALWAYS_INLINE void task(const RowTask<W>& t) {
  if constexpr (kRowGroups<L> == 1)
    task_of_few<L>(t.many ? near_task<L>(t) : t);
  else if (t.many)
    task_of_many<L, C>(t);
  else
    task_of_few<L>(t);
}

template <int L, class In>
ALWAYS_INLINE void pack(const In* x, std::int64_t depth, bool many, float* out) {
  std::fill(out + depth, out + row_distance(depth), 0.0f);
  if (many)
    for (DepthBlock<L> b{depth}; b.there(); b.at += b.size()) part_block<L>(x, b, out + b.at);
  else
    for (std::int64_t i = 0; i < depth; ++i) out[i] = to_float(x[i]);
}

#if defined(__x86_64__)
int widest() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) return 16;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 8 : 4;
}
template <class W>
FOR_AVX512 void task_avx512(const RowTask<W>& t) {
  task<16, 4>(t);
}
template <class W>
FOR_AVX2 void task_avx2(const RowTask<W>& t) {
  task<8, 2>(t);
}
template <class In>
FOR_AVX512 void pack_avx512(const In* x, std::int64_t depth, bool many, float* out) {
  pack<16>(x, depth, many, out);
}
template <class In>
FOR_AVX2 void pack_avx2(const In* x, std::int64_t depth, bool many, float* out) {
  pack<8>(x, depth, many, out);
}
#endif

template <class W>
void any_task(const RowTask<W>& t, [[maybe_unused]] int lanes) {
#if defined(__x86_64__)
  if (lanes == 16) return task_avx512(t);
  if (lanes == 8) return task_avx2(t);
#endif
  task<4, 4>(t);
}

template <class In>
void any_pack(const In* x, std::int64_t depth, bool many, [[maybe_unused]] int lanes, float* out) {
#if defined(__x86_64__)
  if (lanes == 16) return pack_avx512(x, depth, many, out);
  if (lanes == 8) return pack_avx2(x, depth, many, out);
#endif
  pack<4>(x, depth, many, out);
}

}  // namespace

int row_lanes() {
#if defined(__x86_64__)
  static const int count = widest();
  return count;
#else
  return 4;
#endif
}

void pack_row(const float* x, std::int64_t depth, bool many, int lanes, float* out) { any_pack(x, depth, many, lanes, out); }
void pack_row(const bf16* x, std::int64_t depth, bool many, int lanes, float* out) { any_pack(x, depth, many, lanes, out); }

void run(const RowTask<float>& t, int lanes) { any_task(t, lanes); }
void run(const RowTask<bf16>& t, int lanes) { any_task(t, lanes); }

}  // namespace bhyt::cpu
