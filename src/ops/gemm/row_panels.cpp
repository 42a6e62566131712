#include "ops/gemm/row_panels.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/gemm/row_vectors.h"

namespace bhyt::cpu {

namespace {

// Three vectors of w times as many rows of x as leave registers for what is loaded.
template <int L>
constexpr int kRows = L == 8 ? 4 : 8;
constexpr int kVectors = 3;

// Tiles of sums that are kept while those of a tile are added up.
#if defined(__aarch64__)
template <int L>
constexpr std::int64_t kKeptTiles = kRowGroups<L> * L;
#else
constexpr int log2_of(int n) { return n == 1 ? 0 : 1 + log2_of(n / 2); }
template <int L>
constexpr std::int64_t kKeptTiles = log2_of(L) + 1;
#endif

// What four lanes belong to has smaller caches.
template <int L>
constexpr std::int64_t kTaskOuts = L == 4 ? kPanelTaskOuts / 2 : kPanelTaskOuts;
template <int L>
constexpr PanelShape kShape{.rows = kRows<L>,
                            .outs = kVectors * L,
                            .subsums = kRowGroups<L> * L,
                            .task_outs = kTaskOuts<L>,
                            .scratch = kKeptTiles<L> * kRows<L> * kVectors * L + kDepth * kTaskOuts<L> + kVectors * L};

// a0 b0 a1 b1 …, and the same of the upper halves.
template <int L, int... I>
ALWAYS_INLINE void interleave(typename Vector<L>::Floats& a, typename Vector<L>::Floats& b, std::integer_sequence<int, I...>) {
  const typename Vector<L>::Floats low = __builtin_shufflevector(a, b, (I % 2 * L + I / 2)...);
  b = __builtin_shufflevector(a, b, (I % 2 * L + L / 2 + I / 2)...);
  a = low;
}

// Each row with the one half of all further on, log2(L) times.
template <int L, int Done = 1>
ALWAYS_INLINE void transpose(typename Vector<L>::Floats (&r)[L]) {
  if constexpr (Done < L) {
    typename Vector<L>::Floats next[L];
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; ++i) {
      next[2 * i] = r[i];
      next[2 * i + 1] = r[i + L / 2];
      interleave<L>(next[2 * i], next[2 * i + 1], std::make_integer_sequence<int, L>());
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) r[i] = next[i];
    transpose<L, 2 * Done>(r);
  }
}

// K rows of a panel of N: for each subsum, step by step, N values side by side.
template <int K, class In>
ALWAYS_INLINE void pack_steps(const In* const (&rows)[K], std::int64_t steps, std::int64_t subsums, std::int64_t n, float* out) {
  for (std::int64_t t = 0; t < steps; ++t)
    for (std::int64_t g = 0; g < subsums; g += K) {
      typename Vector<K>::Floats v[K];
#pragma GCC unroll 16
      for (int l = 0; l < K; ++l) load<K>(rows[l] + t * subsums + g, v[l]);
      transpose<K>(v);
#pragma GCC unroll 16
      for (int l = 0; l < K; ++l) memcpy(out + ((g + l) * steps + t) * n, &v[l], sizeof v[l]);
    }
}

// A block of the depth of up to n rows, K at a time. What would be beyond the last row repeats it: nobody reads those sums.
template <int L, int K, class In>
ALWAYS_INLINE void pack_block(const In* in, std::int64_t ld, std::int64_t have, std::int64_t n, const DepthBlock<L>& b, float* out) {
  constexpr std::int64_t kSubsums = kShape<L>.subsums;
  for (std::int64_t q = 0; q < n; q += K) {
    const In* rows[K];
    for (std::int64_t l = 0; l < K; ++l) rows[l] = in + std::min(q + l, have - 1) * ld + b.at;
    if (b.whole()) {
      pack_steps<K>(rows, b.size() / kSubsums, kSubsums, n, out + q);
      continue;
    }
    float end[K][kSubsums] = {};
    const float* padded[K];
    for (std::int64_t l = 0; l < K; ++l) {
      for (std::int64_t i = 0; i < b.size(); ++i) end[l][i] = to_float(rows[l][i]);
      padded[l] = end[l];
    }
    pack_steps<K>(padded, 1, kSubsums, n, out + q);
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

// Subsums of a tile one after the other, to parts [subsums, rows, outs]; v0 to v23 are one of them. In assembly because of the
// order: every register is loaded for the next step right behind its last use in this one, which is worth a tenth and which compilers undo.
void subsums(std::int64_t steps, const float* x, const float* w, float* parts) {
  std::int64_t left = kShape<4>.subsums, step = 0;
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

// Their sums, in the order of row_tiles.h: lanes as a tree of neighbours.
template <int L, int V>
void add_up(std::int64_t steps, const float* x, const float* w, float* tile) {
  static_assert(L == 4 && V == kVectors && kRowGroups<L> == 1);
  constexpr std::int64_t kTile = kRows<L> * V * L;
  subsums(steps, x, w, tile);
  for (std::int64_t i = 0; i < kTile; ++i) tile[i] = (tile[i] + tile[kTile + i]) + (tile[2 * kTile + i] + tile[3 * kTile + i]);
}

#else

constexpr int reversed(int i, int bits) { return bits == 0 ? 0 : (i & 1) << (bits - 1) | reversed(i >> 1, bits - 1); }

// A tile's sums as V vectors for each row of x.
template <int L, int V>
struct TileSums {
  static constexpr int kCount = kRows<L> * V;
  typename Vector<L>::Floats of[kRows<L>][V] = {};

  ALWAYS_INLINE void multiply(std::int64_t steps, const float* x, const float* w) {
    for (std::int64_t t = 0; t < steps; ++t, x += kRows<L>, w += V * L) {
      typename Vector<L>::Floats b[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) load<L>(w + v * L, b[v]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows<L>; ++r) {
        const typename Vector<L>::Floats a = x[r] - typename Vector<L>::Floats{};
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) add_product<L>(of[r][v], a, b[v]);
      }
    }
  }
  ALWAYS_INLINE void add(const float* tile) {
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) {
      typename Vector<L>::Floats other;
      load<L>(tile + i * L, other);
      of[i / V][i % V] = other + of[i / V][i % V];
    }
  }
  ALWAYS_INLINE void store(float* tile) const {
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) memcpy(tile + i * L, &of[i / V][i % V], sizeof of[0][0]);
  }
};

// The sums of all subsums of a tile, [rows, V * L], in the order of row_tiles.h: groups one after the other and then lanes as a tree, of
// which the branches that wait for their neighbour lie behind each other in `kept`.
template <int L, int V>
ALWAYS_INLINE void add_up(std::int64_t steps, const float* x, const float* w, float* kept) {
  constexpr std::int64_t kTile = kRows<L> * V * L;
  for (int i = 0; i < L; ++i)
    for (int g = 0; g < kRowGroups<L>; ++g) {
      const std::int64_t subsum = g * L + reversed(i, log2_of(L));
      TileSums<L, V> sums;
      sums.multiply(steps, x + subsum * steps * kRows<L>, w + subsum * steps * V * L);
      if (g > 0) sums.add(kept);
      if (g + 1 == kRowGroups<L>)
        for (int branch = i; branch & 1; branch >>= 1) sums.add(kept -= kTile);
      sums.store(kept);
      if (g + 1 == kRowGroups<L>) kept += kTile;
    }
}

#endif

// The sums of a tile, ld apart, to their place, rows × outs of them.
void put_tile(const float* tile, std::int64_t ld, bool first, std::int64_t rows, std::int64_t outs, float* sums, std::int64_t ldsums) {
  for (std::int64_t r = 0; r < rows; ++r, tile += ld, sums += ldsums)
    if (!first)
      for (std::int64_t c = 0; c < outs; ++c) sums[c] += tile[c];
    else
      std::copy_n(tile, outs, sums);
}

// The rows of x from `begin` on times V vectors of w in a panel, from row `out` on.
template <int L, int V, class W>
ALWAYS_INLINE void run_panel(const PanelTask<W>& t, const DepthBlock<L>& b, const float* panel, std::int64_t begin, std::int64_t end,
                             std::int64_t out) {
  for (std::int64_t row = begin; row < end; row += kRows<L>) {
    add_up<L, V>(b.width() / kShape<L>.subsums, t.x + row / kRows<L> * kShape<L>.distance(t.depth) + b.at * kRows<L>, panel, t.scratch);
    put_tile(t.scratch, V * L, b.at == 0 && !t.add, std::min<std::int64_t>(kRows<L>, end - row),
             std::min<std::int64_t>(V * L, t.outs - out), t.sums + row * t.ldsums + out, t.ldsums);
  }
}

// The task's rows of w stay in the cache while those of x go over them, a few at a time that stay there too.
template <int L, class W>
ALWAYS_INLINE void run_task(const PanelTask<W>& t) {
  constexpr std::int64_t kept = 64 << 10;  // elements of x
  constexpr std::int64_t kOuts = kShape<L>.outs;
  float* const panels = t.scratch + kKeptTiles<L> * kRows<L> * kOuts;
  for (DepthBlock<L> b{t.depth}; b.there(); b.at += b.size()) {
    const std::int64_t width = b.width(), together = std::max<std::int64_t>(kept / width / kRows<L>, 1) * kRows<L>;
    for (std::int64_t out = 0; out < t.outs; out += kOuts)
      pack_block<L, L>(t.w + out * t.ldw, t.ldw, std::min(kOuts, t.outs - out), kOuts, b, panels + out * width);
    for (std::int64_t begin = 0; begin < t.rows; begin += together)
      for (std::int64_t out = 0; out < t.outs; out += kOuts)
        run_panel<L, kVectors>(t, b, panels + out * width, begin, std::min(begin + together, t.rows), out);
  }
}

template <int L, class In>
ALWAYS_INLINE void pack_rows(const In* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out) {
  for (DepthBlock<L> b{depth}; b.there(); b.at += b.size())
    pack_block<L, std::min(L, kRows<L>)>(x, ldx, rows, kRows<L>, b, out + b.at * kRows<L>);
}

#if defined(__x86_64__)
template <class W>
FOR_AVX512 void run_avx512(const PanelTask<W>& t) {
  run_task<16>(t);
}
template <class W>
FOR_AVX2 void run_avx2(const PanelTask<W>& t) {
  run_task<8>(t);
}
template <class In>
FOR_AVX512 void pack_avx512(const In* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out) {
  pack_rows<16>(x, ldx, rows, depth, out);
}
template <class In>
FOR_AVX2 void pack_avx2(const In* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, float* out) {
  pack_rows<8>(x, ldx, rows, depth, out);
}
#endif

template <class W>
void run_any(const PanelTask<W>& t, [[maybe_unused]] int lanes) {
#if defined(__x86_64__)
  if (lanes == 16) return run_avx512(t);
  if (lanes == 8) return run_avx2(t);
#endif
  run_task<4>(t);
}

template <class In>
void pack_any(const In* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, [[maybe_unused]] int lanes, float* out) {
#if defined(__x86_64__)
  if (lanes == 16) return pack_avx512(x, ldx, rows, depth, out);
  if (lanes == 8) return pack_avx2(x, ldx, rows, depth, out);
#endif
  pack_rows<4>(x, ldx, rows, depth, out);
}

}  // namespace

PanelShape panel_shape(int lanes) { return lanes == 16 ? kShape<16> : lanes == 8 ? kShape<8> : kShape<4>; }

bool use_panels(std::int64_t rows) {
  constexpr std::int64_t enough = 24;  // fewer do not repay laying w out anew
  return rows >= enough;
}

void pack_panel(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, int lanes, float* out) {
  pack_any(x, ldx, rows, depth, lanes, out);
}
void pack_panel(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, int lanes, float* out) {
  pack_any(x, ldx, rows, depth, lanes, out);
}

void run(const PanelTask<float>& task, int lanes) { run_any(task, lanes); }
void run(const PanelTask<bf16>& task, int lanes) { run_any(task, lanes); }

}  // namespace bhyt::cpu
