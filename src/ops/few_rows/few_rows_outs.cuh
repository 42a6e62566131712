// What becomes of the products of few_rows.cu.
#pragma once

#include <type_traits>

#include "ops/attention/paged.h"
#include "ops/few_rows/few_rows.cuh"

namespace bhyt::cuda::few {

// Where a lane's four sums belong: rows low + row and high + row of w, rows `at` and at + 1 of x.
struct Lane {
  int row = static_cast<int>(threadIdx.x) % 32 / 4, at = static_cast<int>(threadIdx.x) % 4 * 2;
  // The row of x that may be read for row at + e of n.
  __device__ __forceinline__ int row_of(int e, int n) const { return min(at + e, n - 1); }
};
// OfRows of an Out that needs nothing of them.
struct Nothing {
  template <class Out>
  __device__ explicit Nothing(const Out&) {}
  template <class Out>
  __device__ void ask(const Out&, int) {}
  __device__ void settle() {}
};

// OfTile of an Out whose columns are the lower rows of w.
struct Column {
  int column;
  __device__ __forceinline__ explicit Column(TileRows rows) : column(rows.low + Lane().row) { made_before(column); }
};

// What becomes of a tile's sums. OfTile is where they belong. OfRows is what an Out needs of a lane's rows of x: made of what is learned
// before the previous kernel has ended; ask() begins to load what that one wrote; settle() computes with it, while other warps still
// multiply. Out's ask() begins to load what store() needs beside the sums of a tile, before they are known. Loads do not depend on whether
// a row is there, or one would wait for the other. kAfterNorms: the products come after norms of the stream.

// q, k and v: the two halves of a head's rotation are the lower and the upper rows of a tile.
struct QkvOut {
  static constexpr bool kAfterNorms = true;
  static constexpr int kPage = static_cast<int>(kPageTokens);
  bf16 *q, *pages;
  int ldq, ld_pages;
  const float* rope;
  const std::int32_t *positions, *sequences, *table;
  int table_width, heads, kv_heads, d;

  __device__ TileRows rows(int tile) const { return tile_rows(tile, d); }
  struct OfRows {
    int positions[2] = {}, sequences[2] = {};

    __device__ explicit OfRows(const QkvOut&) {}
    __device__ __forceinline__ void ask(const QkvOut& out, int n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = Lane().row_of(e, n);
        positions[e] = out.positions[i];
        sequences[e] = out.sequences[i];
      }
    }
    __device__ void settle() {}
  };
  // Where the first of a lane's columns belongs in a row of q, or of the cache.
  struct OfTile {
    int column, pair;  // pair: of the head's columns, which are rotated together
    bool rotated, cached;
  };
  __device__ __forceinline__ OfTile of_tile(int tile) const {
    const int per_head = d / kTile, head = tile / per_head, pair = tile % per_head * 8 + Lane().row;
    OfTile t{.column = (head < heads ? head : head - heads) * d + pair,
             .pair = pair,
             .rotated = head < heads + kv_heads,
             .cached = head >= heads};
    made_before(t.column);
    made_before(t.pair);
    return t;
  }
  struct Asked {
    float cosine[2], sine[2];
    std::int32_t page[2];
  };
  __device__ Asked ask(const OfTile& t, int, const OfRows& of) const {
    Asked a{};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int position = of.positions[e];
      const float* const angles = rope + wide_product(position, d) + t.pair;
      if (t.rotated) {
        a.cosine[e] = angles[0];
        a.sine[e] = angles[d / 2];
      }
      if (t.cached) a.page[e] = table[wide_product(of.sequences[e], table_width) + position / kPage];
    }
    return a;
  }
  __device__ void store(const OfTile& t, const float (&c)[4], int n, const OfRows& of, const Asked& a) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = lane.at + e;
      if (i >= n) return;
      float low = c[e], high = c[2 + e];
      if (t.rotated) {
        const float rotated = low * a.cosine[e] - high * a.sine[e];
        high = high * a.cosine[e] + low * a.sine[e];
        low = rotated;
      }
      bf16* const to = (t.cached ? pages + wide_product(a.page[e] * kPage + of.positions[e] % kPage, ld_pages) : q + i * ldq) + t.column;
      store1(to, low);
      store1(to + d / 2, high);
    }
  }
};

// Onto a residual; Normed: then z, the norm of that. Two kernels: with the code for z in the one without, a step took 0.012 ms longer.
template <bool Normed>
struct LinearOut {
  static constexpr bool kAfterNorms = false;
  const bf16* residual;
  bf16 *y, *z;
  int ld_residual, ldy, ldz;
  Site site;
  float* moments;  // of y, or null; centred: about each tile's mean, with these
  int tiles;       // of a row of y
  bool centred;

  __device__ TileRows rows(int tile) const { return {tile * kTile, tile * kTile + 8}; }
  // What z of a lane's rows is made with, of a norm without a statistic, or with one that is given.
  struct Scales {
    const NormParams& p;
    Learned learned;
    float ms_correction, constant_correction, constant, ms[2] = {}, scale[2] = {};

    __device__ __forceinline__ explicit Scales(const LinearOut& out)
        : p(out.site.p),
          learned(p),
          ms_correction(value_or(p.ms_correction, 0.f)),
          constant_correction(value_or(p.constant_correction, 1.f)),
          constant(value_or(p.constant, 0.f)) {}
    __device__ __forceinline__ void ask(const LinearOut&, int n) {
      if (p.stat == Stat::given)
#pragma unroll
        for (int e = 0; e < 2; ++e) ms[e] = p.ms[Lane().row_of(e, n)];
    }
    __device__ __forceinline__ void settle() {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float unit =
            p.stat == Stat::given ? rsqrtf(given_square(p, ms[e], ms_correction, constant_correction * constant) + p.eps) : 1.f;
        scale[e] = p.factor * learned.scale * unit;
      }
    }
  };
  using OfRows = std::conditional_t<Normed, Scales, Nothing>;
  struct OfTile {
    int tile, column;
  };
  __device__ __forceinline__ OfTile of_tile(int tile) const {
    OfTile t{tile, tile * kTile + Lane().row};
    made_before(t.column);
    return t;
  }
  struct Asked {
    bf16 residual[4];  // widened at last: that would wait for them
    float gamma[2], beta[2];
  };
  __device__ Asked ask(const OfTile& t, int n, const OfRows&) const {
    const Lane lane;
    Asked a{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Normed) {
        a.gamma[half] = site.p.gamma ? site.p.gamma[t.column + 8 * half] : 1.f;
        a.beta[half] = site.p.beta ? site.p.beta[t.column + 8 * half] : 0.f;
      }
      if (residual)
#pragma unroll
        for (int e = 0; e < 2; ++e) a.residual[2 * half + e] = residual[lane.row_of(e, n) * ld_residual + t.column + 8 * half];
    }
    return a;
  }
  __device__ void store(const OfTile& t, const float (&c)[4], int n, [[maybe_unused]] const OfRows& of, const Asked& a) const {
    const Lane lane;
    [[maybe_unused]] float v[4], f[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = c[k] + to_float(a.residual[k]);
      // Rounded two at a time, which is one instruction.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 both = __bfloat1622float2(__floats2bfloat162_rn(v[2 * half], v[2 * half + 1]));
      v[2 * half] = both.x;
      v[2 * half + 1] = both.y;
    }
    if constexpr (Normed) {
#pragma unroll
      for (int k = 0; k < 4; ++k) f[k] = fmaf(of.scale[k % 2], v[k], of.learned.shift);
      apply_map(site.map, f);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int i = lane.at + k % 2, half = k / 2, column = t.column + 8 * half;
      if (i >= n) continue;
      store1(y + i * ldy + column, v[k]);
      if constexpr (Normed) store1(z + i * ldz + column, site.p.out_factor * fmaf(a.gamma[half], f[k], a.beta[half]));
    }
    if constexpr (!Normed)
      if (moments) keep_moments(t.tile, v, n);
  }
  // The sum over a tile's columns; lanes with the same rows of x have them.
  static __device__ __forceinline__ float sum_over_tile(float low, float high) {
    float s = low + high;
#pragma unroll
    for (int offset = 16; offset >= 4; offset /= 2) s += __shfl_xor_sync(0xffffffffu, s, offset);
    return s;
  }
  __device__ void keep_moments(int tile, const float (&v)[4], int n) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float mean = centred ? sum_over_tile(v[e], v[2 + e]) / kTile : 0.f, low = v[e] - mean, high = v[2 + e] - mean,
                  square = sum_over_tile(low * low, high * high);
      const int i = lane.at + e;
      if (lane.row == 0 && i < n) write_moments(i, tile, square, mean);
    }
  }
  // Of eight columns that a lane has of row i; its neighbour has the tile's others.
  __device__ __forceinline__ void keep_moments_of_eight(int i, int tile, float (&v)[8]) const {
    float mean = 0, square = 0;
    if (centred) {
#pragma unroll
      for (int k = 0; k < 8; ++k) mean += v[k] / kTile;
      mean += __shfl_xor_sync(0xffffffffu, mean, 1);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      v[k] -= mean;
      square = fmaf(v[k], v[k], square);
    }
    square += __shfl_xor_sync(0xffffffffu, square, 1);
    if (threadIdx.x % 2 == 0) write_moments(i, tile, square, mean);
  }
  __device__ __forceinline__ void write_moments(int i, int tile, float square, float mean) const {
    moments[i * tiles + tile] = square;
    if (centred) moments[(kRows + i) * tiles + tile] = mean;
  }
};

// gate and up are the lower and the upper rows of a tile.
struct SwigluOut {
  static constexpr bool kAfterNorms = true;
  bf16* h;
  int ld, width;

  __device__ TileRows rows(int tile) const { return {tile * 8, width + tile * 8}; }
  using OfRows = Nothing;
  using OfTile = Column;
  __device__ __forceinline__ OfTile of_tile(int tile) const { return Column(rows(tile)); }
  struct Asked {};
  __device__ Asked ask(OfTile, int, OfRows) const { return {}; }
  __device__ void store(OfTile t, const float (&c)[4], int n, OfRows, Asked) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (const int i = lane.at + e; i < n) store1(h + i * ld + t.column, __fdividef(c[e], 1.f + __expf(-c[e])) * c[2 + e]);
  }
};

// The last tile may begin inside the one before it.
struct LogitsOut {
  static constexpr bool kAfterNorms = true;
  float* logits;
  int ld, vocab;

  __device__ TileRows rows(int tile) const {
    const int low = min(tile * kTile, vocab - kTile);
    return {low, low + 8};
  }
  using OfRows = Nothing;
  using OfTile = Column;
  __device__ __forceinline__ OfTile of_tile(int tile) const { return Column(rows(tile)); }
  struct Asked {};
  __device__ Asked ask(OfTile, int, OfRows) const { return {}; }
  __device__ void store(OfTile t, const float (&c)[4], int n, OfRows, Asked) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (const int i = lane.at + e % 2; i < n) logits[i * ld + t.column + e / 2 * 8] = c[e];
  }
};

}  // namespace bhyt::cuda::few
