#include "ops/gemm/row_units_int8.h"

#include <algorithm>
#include <cstring>

#include "core/threads.h"
#include "ops/attention/tile_bf16.h"
#include "ops/gemm/row_tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kColumns = 64;                        // of w in a tile
constexpr std::int64_t kBytesOfTile = kTileRows * kColumns;  // of w, of a digit of x, and of sums
constexpr std::int64_t kSumsOfTile = kTileRows * kTileRows;

// Tiles of w from `w` on, `steps` of them, and of each digit of x from `x` on. Sums are added to c: [outs, rows of x] of each digit.
struct Stretch {
  const std::int8_t* w;
  std::int64_t ldw;
  const std::uint8_t* x;
  std::int64_t steps;
  std::int32_t* c;
};

// By plain loops: stands in for the unit in tests.
template <int D>
void plain_tiles(const Stretch& s) {
  for (std::int64_t t = 0; t < s.steps * D; ++t)
    for (std::int64_t o = 0; o < kTileRows; ++o)
      for (std::int64_t p = 0; p < kColumns; ++p) {
        const std::int32_t w = s.w[o * s.ldw + t / D * kColumns + p];
        const std::uint8_t* const x = s.x + t * kBytesOfTile + p / 4 * 4 * kTileRows + p % 4;
        for (std::int64_t r = 0; r < kTileRows; ++r) s.c[t % D * kSumsOfTile + o * kTileRows + r] += w * x[4 * r];
      }
}

#if defined(__x86_64__)

#define FOR_UNIT __attribute__((target("amx-tile,amx-int8"), noinline))
// GCC's tile loads and stores do not say that they touch memory.
#define UNIT_FENCE __asm__ volatile("" ::: "memory")

constexpr std::int64_t kAhead = 16;  // tiles of w that are asked for before they are needed

// 16 rows of w, 16 of x: bound by reading w where there are no more of x. Where rows lie far apart (rows_apart) each is read on
// and on, into the one behind it: rows are shorter than those of bf16, and processors do not foresee that many that are near each other.
template <int D>
FOR_UNIT void unit_tiles(const Stretch& s) {
  const auto row_of_w = static_cast<std::size_t>(s.ldw);
  UNIT_FENCE;
  _tile_loadd(0, s.c, 64);
  _tile_loadd(1, s.c + kSumsOfTile, 64);
  if constexpr (D == 3) _tile_loadd(2, s.c + 2 * kSumsOfTile, 64);
  const std::uint8_t* x = s.x;
  for (std::int64_t t = 0; t < s.steps; ++t, x += D * kBytesOfTile) {
    const std::int8_t* const w = s.w + t * kColumns;
    for (std::int64_t r = 0; r < kTileRows; ++r) __builtin_prefetch(w + r * s.ldw + kAhead * kColumns, 0, 2);
    _tile_loadd(4, w, row_of_w);
    _tile_loadd(5, x, 64);
    _tile_dpbsud(0, 4, 5);
    _tile_loadd(6, x + kBytesOfTile, 64);
    _tile_dpbsud(1, 4, 6);
    if constexpr (D == 3) {
      _tile_loadd(7, x + 2 * kBytesOfTile, 64);
      _tile_dpbsud(2, 4, 7);
    }
  }
  _tile_stored(0, s.c, 64);
  _tile_stored(1, s.c + kSumsOfTile, 64);
  if constexpr (D == 3) _tile_stored(2, s.c + 2 * kSumsOfTile, 64);
  UNIT_FENCE;
}

// 32 rows of w, 16 of x in two digits: every tile is used twice.
FOR_UNIT void unit_pair(const Stretch& s) {
  const auto row_of_w = static_cast<std::size_t>(s.ldw);
  const std::int8_t* const below = s.w + kTileRows * s.ldw;
  UNIT_FENCE;
  _tile_loadd(0, s.c, 64);
  _tile_loadd(1, s.c + kSumsOfTile, 64);
  _tile_loadd(2, s.c + 2 * kSumsOfTile, 64);
  _tile_loadd(3, s.c + 3 * kSumsOfTile, 64);
  for (std::int64_t t = 0; t < s.steps; ++t) {
    const std::uint8_t* const x = s.x + t * 2 * kBytesOfTile;
    _tile_loadd(4, s.w + t * kColumns, row_of_w);
    _tile_loadd(6, x, 64);
    _tile_loadd(5, below + t * kColumns, row_of_w);
    _tile_loadd(7, x + kBytesOfTile, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  _tile_stored(0, s.c, 64);
  _tile_stored(1, s.c + kSumsOfTile, 64);
  _tile_stored(2, s.c + 2 * kSumsOfTile, 64);
  _tile_stored(3, s.c + 3 * kSumsOfTile, 64);
  UNIT_FENCE;
}

#endif

// `down` times 16 rows of w; two have two digits.
template <int D>
void tiles(const Stretch& s, int down) {
#if defined(__x86_64__)
  if (has_matrix_unit()) return down == 2 ? unit_pair(s) : unit_tiles<D>(s);
#endif
  for (int i = 0; i < down; ++i)
    plain_tiles<D>({.w = s.w + i * kTileRows * s.ldw, .ldw = s.ldw, .x = s.x, .steps = s.steps, .c = s.c + i * D * kSumsOfTile});
}

// The last rows of w where they are fewer than a tile's: from copies with zeros behind.
template <int D>
void last_rows(Stretch s, std::int64_t outs) {
  alignas(64) std::int8_t copy[kBytesOfTile] = {};
  Stretch one{.w = copy, .ldw = kColumns, .x = s.x, .steps = 1, .c = s.c};
  for (std::int64_t t = 0; t < s.steps; ++t, one.x += D * kBytesOfTile) {
    for (std::int64_t o = 0; o < outs; ++o) memcpy(copy + o * kColumns, s.w + o * s.ldw + t * kColumns, kColumns);
    tiles<D>(one, 1);
  }
}

// What 16 rows of x come to with a row of w, as numbers: int8_value of each, for every sum below is exact.
BHYT_CLONES void put_values(const std::int32_t* c, const Digits& digits, const Int8RowEnd& end, const float* scales, float* out) {
  const double none = -static_cast<double>(digits.offset) * end.sum, scale = end.scale;
  double whole[kTileRows];
  std::fill_n(whole, kTileRows, none);
  for (int d = 0; d < digits.count; ++d) {
    const double step = 1 << (d * digits.bits);
#pragma omp simd
    for (std::int64_t r = 0; r < kTileRows; ++r) whole[r] += step * c[d * kSumsOfTile + r];
  }
#pragma omp simd
  for (std::int64_t r = 0; r < kTileRows; ++r) out[r] = static_cast<float>(static_cast<double>(scales[r]) * scale * whole[r]);
}

// `outs` rows of w from row `out` on that lie `apart`, in `down` tiles, for the 16 rows of x of number j.
template <int D>
void tiles(const Int8UnitTask& t, std::int64_t out, std::int64_t outs, std::int64_t apart, int down, std::int64_t j) {
  const std::int64_t across = (t.rows + kTileRows - 1) / kTileRows, ldw = apart * int8_distance(t.depth);
  alignas(64) std::int32_t c[4 * kSumsOfTile] = {};
  const Stretch s{.w = t.w + out * int8_distance(t.depth),
                  .ldw = ldw,
                  .x = t.x + j * packed_digits_size(t.depth),
                  .steps = digits_width(t.depth) / kColumns,
                  .c = c};
  if (outs >= kTileRows)
    tiles<D>(s, down);
  else
    last_rows<D>(s, outs);
  for (std::int64_t o = 0; o < outs; ++o)
    put_values(c + o / kTileRows * D * kSumsOfTile + o % kTileRows * kTileRows, t.digits, int8_row_end(s.w + o * ldw, t.depth),
               t.scales + j * kTileRows, t.sums + ((out + o * apart) * across + j) * kTileRows);
}

template <int D>
void task(const Int8UnitTask& t) {
  const std::int64_t across = (t.rows + kTileRows - 1) / kTileRows;
  std::int64_t out = 0;
  if (across == 1) {
    const std::int64_t apart = rows_apart(t.outs, kTileRows);
    for (; out < apart; ++out) tiles<D>(t, out, kTileRows, apart, 1, 0);
    out = apart * kTileRows;
  }
  while (out < t.outs) {
    const int down = D == 2 && across > 1 && t.outs - out >= 2 * kTileRows ? 2 : 1;
    const std::int64_t outs = std::min(t.outs - out, down * kTileRows);
    for (std::int64_t j = 0; j < across; ++j) tiles<D>(t, out, outs, 1, down, j);
    out += outs;
  }
}

}  // namespace

// Rows that are not there keep what was in their place: their sums do not count.
void pack_digit_tiles(const Tensor& x, std::uint8_t* out, float* scales) {
  const Digits& digits = unit_digits(x.dtype);
  const std::int64_t depth = x.cols(), step = digits.count * kBytesOfTile;
  std::fill_n(scales, kTileRows, 0.0f);
  dispatch_float(x.dtype, [&]<class In>(In) {
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      const In* const row = x.as<In>() + r * x.ld;
      float inverse;
      scales[r] = int8_scale(row, depth, inverse);
      for (std::int64_t p = 0; p < depth; p += kColumns) {
        std::uint8_t some[kSevenBits.count * kColumns] = {};
        digits_of(row + p, std::min(kColumns, depth - p), inverse, digits, some, kColumns);
        for (std::int64_t i = 0; i < digits.count * kColumns; i += 4)
          memcpy(out + p / kColumns * step + i / kColumns * kBytesOfTile + i % kColumns * kTileRows + 4 * r, some + i, 4);
      }
    }
  });
}

void run(const Int8UnitTask& t) { t.digits.count == 2 ? task<2>(t) : task<3>(t); }

}  // namespace bhyt::cpu
