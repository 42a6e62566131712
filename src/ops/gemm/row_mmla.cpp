#include "ops/gemm/row_mmla.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "ops/gemm/int8.h"
#include "ops/gemm/row_tiles.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace bhyt::cpu {

namespace {

#if defined(__aarch64__)

#define ALWAYS_INLINE inline __attribute__((always_inline))

using Bytes = std::uint8_t __attribute__((vector_size(16)));
using Halves = std::uint64_t __attribute__((vector_size(16)));  // a row's part in an operand each

// sum [2,2] += a · bᵀ. By their names: as functions of the compiler they would have to be called from code for such processors.
struct Bf16 {
  using Element = bf16;
  using Sums = float __attribute__((vector_size(16)));
  static constexpr std::int64_t kStep = 8;  // columns in a vector of w
  ALWAYS_INLINE static void add_product(Sums& sum, const Bytes& a, const Bytes& b) {
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
  }
};
struct Int8 {
  using Element = std::int8_t;
  using Sums = std::int32_t __attribute__((vector_size(16)));
  static constexpr std::int64_t kStep = 16;
  ALWAYS_INLINE static void add_product(Sums& sum, const Bytes& a, const Bytes& b) {
    __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
  }
};

ALWAYS_INLINE Bytes load(const void* from) {
  Bytes v;
  memcpy(&v, from, sizeof v);
  return v;
}

// The rows of w of a tile. They lie far apart, so that memory is read in several places on and on.
template <class W>
struct Outs {
  const W* row[kMmlaOuts];

  ALWAYS_INLINE Outs from(std::int64_t column) const { return {{row[0] + column, row[1] + column, row[2] + column, row[3] + column}}; }
};

// What is left of the rows behind their last whole vector, with zeros behind it.
template <class K>
struct Ends {
  typename K::Element row[kMmlaOuts][K::kStep];

  ALWAYS_INLINE Outs<typename K::Element> of(const Outs<typename K::Element>& w, std::int64_t n) {
    memset(row, 0, sizeof row);
    for (int c = 0; c < kMmlaOuts; ++c) std::copy_n(w.row[c], n, row[c]);
    return {{row[0], row[1], row[2], row[3]}};
  }
};

// One row of x alone, in bf16. A vector is taken as two rows of four columns, on either side; of the four sums two are right.
ALWAYS_INLINE void step_of_one(const bf16* x, const Outs<bf16>& w, std::int64_t column, Bf16::Sums (&acc)[kMmlaOuts]) {
  const Bytes a = load(x + column);
#pragma GCC unroll 4
  for (int c = 0; c < kMmlaOuts; ++c) Bf16::add_product(acc[c], a, load(w.row[c] + column));
}

ALWAYS_INLINE void tile_of_one(std::int64_t depth, const bf16* x, const Outs<bf16>& w, float (&out)[kMmlaOuts]) {
  Bf16::Sums acc[kMmlaOuts] = {};
  std::int64_t p = 0;
  for (; p + Bf16::kStep <= depth; p += Bf16::kStep) step_of_one(x, w, p, acc);
  if (p < depth) {
    Ends<Bf16> ends;
    step_of_one(x + p, ends.of(w.from(p), depth - p), 0, acc);
  }
#pragma GCC unroll 4
  for (int c = 0; c < kMmlaOuts; ++c) out[c] = acc[c][0] + acc[c][3];
}

// Sums of P pairs, for the halves of vectors apart or together; int8 has no order to keep, and registers for more pairs if they are.
template <class K, int P>
constexpr int kApart = std::is_same_v<K, Bf16> || P <= 4 ? 2 : 1;
template <class K, int P>
using PairSums = typename K::Sums[kApart<K, P>][P][2];

template <class K, int P>
ALWAYS_INLINE void step(const std::uint8_t* x, const Outs<typename K::Element>& w, std::int64_t column, PairSums<K, P>& acc) {
  Bytes b[2][2];
#pragma GCC unroll 2
  for (int c = 0; c < 2; ++c) {
    const auto first = reinterpret_cast<Halves>(load(w.row[2 * c] + column));
    const auto second = reinterpret_cast<Halves>(load(w.row[2 * c + 1] + column));
    b[0][c] = reinterpret_cast<Bytes>(__builtin_shufflevector(first, second, 0, 2));
    b[1][c] = reinterpret_cast<Bytes>(__builtin_shufflevector(first, second, 1, 3));
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
    for (int r = 0; r < P; ++r) {
      const Bytes a = load(x + 16 * (half * P + r));
#pragma GCC unroll 2
      for (int c = 0; c < 2; ++c) K::add_product(acc[half % kApart<K, P>][r][c], a, b[half][c]);
    }
}

// out [P,2]: the sums of each pair with two pairs of rows of w. Ahead: asks for w half a kilobyte before it is needed.
template <class K, int P, bool Ahead = false>
ALWAYS_INLINE void tile_of_pairs(std::int64_t depth, const std::uint8_t* x, const Outs<typename K::Element>& w,
                                 typename K::Sums (&out)[P][2]) {
  PairSums<K, P> acc = {};
  std::int64_t p = 0;
  for (; Ahead && p + 2 * K::kStep <= depth; p += 2 * K::kStep, x += 64 * P) {
#pragma GCC unroll 4
    for (int c = 0; c < kMmlaOuts; ++c) __builtin_prefetch(w.row[c] + p + 512 / sizeof(typename K::Element));
    step<K, P>(x, w, p, acc);
    step<K, P>(x + 32 * P, w, p + K::kStep, acc);
  }
  for (; p + K::kStep <= depth; p += K::kStep, x += 32 * P) step<K, P>(x, w, p, acc);
  if (p < depth) {
    Ends<K> ends;
    step<K, P>(x, ends.of(w.from(p), depth - p), 0, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < P; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) out[r][c] = kApart<K, P> == 2 ? acc[0][r][c] + acc[kApart<K, P> - 1][r][c] : acc[0][r][c];
}

// Functions of their own: in larger ones GCC keeps sums in memory.
#define FOR_BF16 __attribute__((target("arch=armv8.2-a+bf16"), noinline))
#define FOR_INT8 __attribute__((target("arch=armv8.2-a+i8mm"), noinline))

FOR_BF16 void one_row(std::int64_t depth, const bf16* x, const Outs<bf16>& w, float (&out)[kMmlaOuts]) { tile_of_one(depth, x, w, out); }
template <int P>
FOR_BF16 void pairs(std::int64_t depth, const std::uint8_t* x, const Outs<bf16>& w, Bf16::Sums (&out)[P][2]) {
  tile_of_pairs<Bf16, P>(depth, x, w, out);
}
template <int P>
FOR_INT8 void pairs(std::int64_t depth, const std::uint8_t* x, const Outs<std::int8_t>& w, Int8::Sums (&out)[P][2]) {
  tile_of_pairs<Int8, P>(depth, x, w, out);
}
FOR_INT8 void long_pair(std::int64_t depth, const std::uint8_t* x, const Outs<std::int8_t>& w, Int8::Sums (&out)[1][2]) {
  tile_of_pairs<Int8, 1, true>(depth, x, w, out);
}

// Which they are. The last tile has those that are left over; where these are fewer than kMmlaOuts, the last one again.
template <class W>
struct TileOuts {
  std::int64_t out[kMmlaOuts];
  Outs<W> w;
  int there = kMmlaOuts;

  TileOuts(const MmlaTask<W>& t, std::int64_t tile) {
    const std::int64_t apart = t.outs / kMmlaOuts, last = t.outs - 1;
    const bool whole = tile < apart;
    if (!whole) there = static_cast<int>(t.outs % kMmlaOuts);
#pragma GCC unroll 4
    for (int c = 0; c < kMmlaOuts; ++c) {
      out[c] = whole ? tile + c * apart : std::min(kMmlaOuts * apart + c, last);
      w.row[c] = t.w + out[c] * t.ldw;
    }
  }
};

template <class W>
std::int64_t tiles_of(const MmlaTask<W>& t) {
  return t.outs / kMmlaOuts + (t.outs % kMmlaOuts != 0);
}

template <class W>
const std::uint8_t* group_of(const MmlaTask<W>& t, std::int64_t row) {
  return static_cast<const std::uint8_t*>(t.x) + row / kMmlaRows * mmla_distance(t.depth);
}

// Columns [begin, end) of the depth.
struct Part {
  std::int64_t begin, end;
};

void put(const MmlaTask<bf16>& t, std::int64_t row, std::int64_t out, const Part& part, float sum) {
  float& place = t.sums[row * t.ldsums + out];
  place = part.begin == 0 ? sum : place + sum;
}

void put_one(const MmlaTask<bf16>& t, std::int64_t tile, const Part& part) {
  const TileOuts<bf16> outs(t, tile);
  float sums[kMmlaOuts];
  one_row(part.end - part.begin, static_cast<const bf16*>(t.x) + part.begin, outs.w.from(part.begin), sums);
#pragma GCC unroll 4
  for (int c = 0; c < kMmlaOuts; ++c)
    if (c < outs.there) put(t, 0, outs.out[c], part, sums[c]);
}

// A tile with the group from `row` on, of P pairs of rows.
template <int P>
void put_pairs(const MmlaTask<bf16>& t, std::int64_t row, std::int64_t tile, const Part& part) {
  const TileOuts<bf16> outs(t, tile);
  Bf16::Sums sums[P][2];
  pairs(part.end - part.begin, group_of(t, row) + part.begin * 4 * P, outs.w.from(part.begin), sums);
  const std::int64_t rows = t.rows - row;
#pragma GCC unroll 8
  for (int r = 0; r < 2 * P; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kMmlaOuts; ++c)
      if (r < rows && c < outs.there) put(t, row + r, outs.out[c], part, sums[r / 2][c / 2][r % 2 * 2 + c % 2]);
}

// The same with P rows, of which a pair is the low bytes and the high ones.
template <int P>
void put_pairs(const MmlaTask<std::int8_t>& t, std::int64_t row, std::int64_t tile, const Part& part) {
  const TileOuts<std::int8_t> outs(t, tile);
  Int8::Sums sums[P][2];
  // A row of x that is long does not stay near beside those of w, and waiting for it memory would rest.
  constexpr std::int64_t kLong = 4096;
  bool ahead = false;
  if constexpr (P == 1) {
    ahead = t.depth > kLong;
    if (ahead) long_pair(part.end, group_of(t, row), outs.w, sums);
  }
  if (!ahead) pairs(part.end, group_of(t, row), outs.w, sums);
#pragma GCC unroll 4
  for (int c = 0; c < kMmlaOuts; ++c) {
    if (c >= outs.there) break;
    const Int8RowEnd end = int8_row_end(outs.w.row[c], t.depth);
#pragma GCC unroll 8
    for (int r = 0; r < P; ++r) {
      const Int8::Sums& both = sums[r][c / 2];
      const std::int64_t whole = both[c % 2] + std::int64_t{256} * both[2 + c % 2] - std::int64_t{kSignedBytes.offset} * end.sum;
      t.sums[(row + r) * t.ldsums + outs.out[c]] = int8_value(whole, t.scales[row + r], end.scale);
    }
  }
}

// Tiles [begin, end) with one group.
struct Tiles {
  std::int64_t begin, end;
};

template <int P, class W>
void put_tiles(const MmlaTask<W>& t, std::int64_t row, const Tiles& tiles, const Part& part) {
  for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) put_pairs<P>(t, row, tile, part);
}

void put_group(const MmlaTask<bf16>& t, std::int64_t row, const Tiles& tiles, const Part& part) {
  if (t.alone) {
    for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) put_one(t, tile, part);
    return;
  }
  switch ((std::min(kMmlaRows, t.rows - row) + 1) / 2) {
    case 1: return put_tiles<1>(t, row, tiles, part);
    case 2: return put_tiles<2>(t, row, tiles, part);
    case 3: return put_tiles<3>(t, row, tiles, part);
    default: return put_tiles<4>(t, row, tiles, part);
  }
}

void put_group(const MmlaTask<std::int8_t>& t, std::int64_t row, const Tiles& tiles, const Part& part) {
  switch (std::min(kMmlaRows, t.rows - row)) {
    case 1: return put_tiles<1>(t, row, tiles, part);
    case 2: return put_tiles<2>(t, row, tiles, part);
    case 3: return put_tiles<3>(t, row, tiles, part);
    case 4: return put_tiles<4>(t, row, tiles, part);
    case 5: return put_tiles<5>(t, row, tiles, part);
    case 6: return put_tiles<6>(t, row, tiles, part);
    case 7: return put_tiles<7>(t, row, tiles, part);
    default: return put_tiles<8>(t, row, tiles, part);
  }
}

// Few rows of x: a tile's rows of w from end to end, as memory gives them quickest. Many: a part of the task's rows of w, which stays in
// the cache, for one group after the other, whose part stays nearer.
template <class W>
void run_task(const MmlaTask<W>& t) {
  const std::int64_t part = std::is_same_v<W, bf16> ? kDepth : t.depth;  // sums of integers need no parts
  const Tiles all{0, tiles_of(t)};
  if (t.rows <= kMmlaRows && part < t.depth) {
    for (std::int64_t tile = 0; tile < all.end; ++tile)
      for (std::int64_t at = 0; at < t.depth; at += part) put_group(t, 0, {tile, tile + 1}, {at, std::min(at + part, t.depth)});
    return;
  }
  for (std::int64_t at = 0; at < t.depth; at += part)
    for (std::int64_t row = 0; row < t.rows; row += kMmlaRows) put_group(t, row, all, {at, std::min(at + part, t.depth)});
}

#else

template <class W>
void run_task(const MmlaTask<W>&) {
  throw Error("the processor multiplies no small matrices");
}

#endif

// Rows of elements, side by side in pieces of 8 bytes: for each piece of the columns, row by row. Zeros behind `bytes` up to `width`.
void interleave(const std::uint8_t* in, std::int64_t ld, std::int64_t rows, std::int64_t bytes, std::int64_t width, std::int64_t packed,
                std::uint8_t* out) {
  const std::int64_t whole = bytes / 8 * 8;
  if (width > whole || packed > rows) std::fill_n(out, width * packed, std::uint8_t{0});
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint8_t* const row = in + r * ld;
    for (std::int64_t p = 0; p < whole; p += 8) memcpy(out + p * packed + 8 * r, row + p, 8);
    std::copy_n(row + whole, bytes - whole, out + whole * packed + 8 * r);
  }
}

}  // namespace

bool has_mmla([[maybe_unused]] DType weights) {
#if defined(__aarch64__)
  static const bool bf16_too = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0, int8_too = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return (weights == DType::bf16 && bf16_too) || (weights == DType::i8 && int8_too);
#else
  return false;
#endif
}

template <>
void pack_mmla<bf16>(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bool alone, void* out, float*) {
  interleave(reinterpret_cast<const std::uint8_t*>(x), 2 * ldx, rows, 2 * depth, (depth + 7) / 8 * 16, alone ? 1 : (rows + 1) / 2 * 2,
             static_cast<std::uint8_t*>(out));
}

template <>
void pack_mmla<std::int8_t>(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bool, void* out, float* scales) {
  constexpr std::int64_t kSome = 1024;  // columns at a time
  std::uint8_t bytes[2 * kMmlaRows][kSome];
  const std::int64_t width = (depth + 15) / 16 * 16;
  float inverse[kMmlaRows];
  for (std::int64_t r = 0; r < rows; ++r) scales[r] = int8_scale(x + r * ldx, depth, inverse[r]);
  for (std::int64_t at = 0; at < width; at += kSome) {
    const std::int64_t n = std::min(kSome, depth - at), wide = std::min(kSome, width - at);
    for (std::int64_t r = 0; r < rows; ++r) digits_of(x + r * ldx + at, n, inverse[r], kSignedBytes, bytes[2 * r], kSome);
    interleave(bytes[0], kSome, 2 * rows, n, wide, 2 * rows, static_cast<std::uint8_t*>(out) + at * 2 * rows);
  }
}

template <>
void run<bf16>(const MmlaTask<bf16>& t) {
  run_task(t);
}
template <>
void run<std::int8_t>(const MmlaTask<std::int8_t>& t) {
  run_task(t);
}

}  // namespace bhyt::cpu
