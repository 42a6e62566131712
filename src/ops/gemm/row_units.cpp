#include "ops/gemm/row_units.h"

#include <algorithm>
#include <cstring>

#include "ops/attention/tile_bf16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bhyt::cpu {

namespace {

// A stretch of the depth: tiles of w from `w` on, tiles of x from `x` on, `steps` of them. Sums go to c.
struct Stretch {
  const bf16* w;
  std::int64_t ldw;
  const bf16* x;
  std::int64_t next_x;  // from 16 rows of x to the next 16
  std::int64_t steps;
  float* c;  // [outs, rows]
  std::int64_t ldc;
};

// One tile of sums, by plain loops: stands in for the unit in tests.
void plain_tile(const Stretch& s) {
  for (std::int64_t t = 0; t < s.steps; ++t)
    for (std::int64_t o = 0; o < kTileRows; ++o)
      for (std::int64_t p = 0; p < kTileDepth; ++p) {
        const float w = to_float(s.w[o * s.ldw + t * kTileDepth + p]);
        const bf16* const x = s.x + t * kTileSize + p / 2 * 2 * kTileRows + p % 2;
        for (std::int64_t r = 0; r < kTileRows; ++r) s.c[o * s.ldc + r] += w * to_float(x[2 * r]);
      }
}

#if defined(__x86_64__)

#define FOR_UNIT __attribute__((target("amx-tile,amx-bf16"), noinline))
// GCC's tile loads and stores do not say that they touch memory.
#define UNIT_FENCE __asm__ volatile("" ::: "memory")

constexpr std::int64_t kAhead = 16;  // tiles of w that are asked for before they are needed

// 16 rows of w, 16 of x: bound by reading w. Processors foresee 16 rows that are read side by side, but neither more nor what is behind the
// end of a page: both are asked for, at the end of the depth the beginning of the next 16 rows.
FOR_UNIT void unit_tile(const Stretch& s) {
  const auto row_of_w = static_cast<std::size_t>(s.ldw) * sizeof(bf16), row_of_c = static_cast<std::size_t>(s.ldc) * sizeof(float);
  UNIT_FENCE;
  _tile_loadd(0, s.c, row_of_c);
  for (std::int64_t t = 0; t < s.steps; ++t) {
    const std::int64_t later = t + kAhead;
    const bf16* const ahead = later < s.steps ? s.w + later * kTileDepth : s.w + kTileRows * s.ldw + (later - s.steps) * kTileDepth;
    for (std::int64_t r = 0; r < kTileRows; ++r) __builtin_prefetch(ahead + r * s.ldw, 0, 2);
    _tile_loadd(4, s.w + t * kTileDepth, row_of_w);
    _tile_loadd(6, s.x + t * kTileSize, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, s.c, row_of_c);
  UNIT_FENCE;
}

// 32 rows of w, 32 of x: every tile is used twice.
FOR_UNIT void unit_square(const Stretch& s) {
  const auto row_of_w = static_cast<std::size_t>(s.ldw) * sizeof(bf16), row_of_c = static_cast<std::size_t>(s.ldc) * sizeof(float);
  float* const below = s.c + kTileRows * s.ldc;
  UNIT_FENCE;
  _tile_loadd(0, s.c, row_of_c);
  _tile_loadd(1, s.c + kTileRows, row_of_c);
  _tile_loadd(2, below, row_of_c);
  _tile_loadd(3, below + kTileRows, row_of_c);
  for (std::int64_t t = 0; t < s.steps; ++t) {
    const bf16* const w = s.w + t * kTileDepth;
    const bf16* const x = s.x + t * kTileSize;
    _tile_loadd(4, w, row_of_w);
    _tile_loadd(6, x, 64);
    _tile_loadd(5, w + kTileRows * s.ldw, row_of_w);
    _tile_loadd(7, x + s.next_x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, s.c, row_of_c);
  _tile_stored(1, s.c + kTileRows, row_of_c);
  _tile_stored(2, below, row_of_c);
  _tile_stored(3, below + kTileRows, row_of_c);
  UNIT_FENCE;
}

#endif

// The part of a stretch that tile (i, j) of its sums comes from.
Stretch tile_of(const Stretch& s, std::int64_t i, std::int64_t j) {
  Stretch one = s;
  one.w += i * kTileRows * s.ldw;
  one.x += j * s.next_x;
  one.c += i * kTileRows * s.ldc + j * kTileRows;
  return one;
}

// `down` × `across` tiles of sums.
void tiles(const Stretch& s, int down, int across) {
#if defined(__x86_64__)
  const bool unit = has_matrix_unit();
  if (unit && down == 2 && across == 2) return unit_square(s);
  if (unit && down == 1 && across == 1) return unit_tile(s);
#endif
  if (down == 1 && across == 1) return plain_tile(s);
  for (int i = 0; i < down; ++i)
    for (int j = 0; j < across; ++j) tiles(tile_of(s, i, j), 1, 1);
}

// Sums of a tile whose part of w ends inside it, in rows or in columns: from a copy with zeros behind.
void cut_tile(const Stretch& s, std::int64_t outs, std::int64_t columns) {
  alignas(64) bf16 copy[kTileSize] = {};
  for (std::int64_t o = 0; o < outs; ++o) std::copy_n(s.w + o * s.ldw, columns, copy + o * kTileDepth);
  Stretch one = s;
  one.w = copy;
  one.ldw = kTileDepth;
  one.steps = 1;
  tiles(one, 1, 1);
}

// The depth of some tiles, of which the last may be cut.
void whole_depth(const Stretch& s, std::int64_t depth, int down, int across) {
  tiles(s, down, across);
  if (depth % kTileDepth == 0) return;
  for (int i = 0; i < down; ++i)
    for (int j = 0; j < across; ++j) {
      Stretch end = tile_of(s, i, j);
      end.w += s.steps * kTileDepth;
      end.x += s.steps * kTileSize;
      cut_tile(end, kTileRows, depth % kTileDepth);
    }
}

// The last rows of w where they are fewer than a tile's.
void last_rows(Stretch s, std::int64_t outs, std::int64_t depth) {
  for (std::int64_t at = 0; at < depth; at += kTileDepth, s.w += kTileDepth, s.x += kTileSize)
    cut_tile(s, outs, std::min(kTileDepth, depth - at));
}

}  // namespace

void pack_tiles(const bf16* x, std::int64_t ldx, std::int64_t rows, std::int64_t depth, bf16* out) {
  std::fill_n(out, packed_size(kTileRows, depth), bf16{0});
  for (std::int64_t r = 0; r < rows; ++r) {
    const bf16* const row = x + r * ldx;
    for (std::int64_t p = 0; p + 1 < depth; p += 2) memcpy(out + p * kTileRows + 2 * r, row + p, 2 * sizeof(bf16));
    if (depth % 2 == 1) out[(depth - 1) * kTileRows + 2 * r] = row[depth - 1];
  }
}

void run(const UnitTask& t) {
  const std::int64_t across = t.ldsums / kTileRows, next_x = packed_size(kTileRows, t.depth);
  std::fill_n(t.sums, (t.outs + kTileRows - 1) / kTileRows * kTileRows * t.ldsums, 0.0f);
  for (std::int64_t out = 0; out < t.outs;) {
    const std::int64_t left = t.outs - out;
    const int down = across > 1 && left >= 2 * kTileRows ? 2 : 1;
    for (std::int64_t j = 0; j < across;) {
      const int wide = across - j >= 2 ? 2 : 1;
      const Stretch s{.w = t.w + out * t.ldw,
                      .ldw = t.ldw,
                      .x = t.x + j * next_x,
                      .next_x = next_x,
                      .steps = t.depth / kTileDepth,
                      .c = t.sums + out * t.ldsums + j * kTileRows,
                      .ldc = t.ldsums};
      if (left >= kTileRows)
        whole_depth(s, t.depth, down, wide);
      else
        for (int one = 0; one < wide; ++one) last_rows(tile_of(s, 0, one), left, t.depth);
      j += wide;
    }
    out += down * kTileRows;
  }
}

}  // namespace bhyt::cpu
