// What becomes of the products of few_rows.cu.
#pragma once

#include "ops/attention/paged.h"
#include "ops/few_rows/few_rows.cuh"

namespace bhyt::cuda::few {

// Where a lane's four sums belong: rows low + row and high + row of w, rows `at` and at + 1 of x.
struct Lane {
  int row = static_cast<int>(threadIdx.x) % 32 / 4, at = static_cast<int>(threadIdx.x) % 4 * 2;
};

// What becomes of a tile's sums. ask() begins to load what store() needs beside them, before they are known. kAfterNorms: the products come
// after norms of the stream.

// q, k and v: the two halves of a head's rotation are the lower and the upper rows of a tile.
struct QkvOut {
  static constexpr bool kAfterNorms = true;
  bf16 *q, *pages;
  std::int64_t ldq, ld_pages;
  const float* rope;
  const std::int32_t *positions, *sequences, *table;
  int table_width, heads, kv_heads, d;

  __device__ TileRows rows(int tile) const { return tile_rows(tile, d); }
  struct Asked {
    float cosine[2], sine[2];
    std::int64_t at[2];  // rows of the pages
  };
  __device__ Asked ask(int tile, int n) const {
    const Lane lane;
    const int per_head = d / kTile, head = tile / per_head, j = tile % per_head * 8 + lane.row;
    constexpr int kPage = static_cast<int>(kPageTokens);
    Asked a{};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = lane.at + e;
      if (i >= n) break;
      const int position = positions[i];
      const float* const turns = rope + static_cast<std::int64_t>(position) * d + j;
      if (head < heads + kv_heads) a.cosine[e] = turns[0], a.sine[e] = turns[d / 2];
      if (head >= heads)
        a.at[e] = static_cast<std::int64_t>(table[static_cast<std::int64_t>(sequences[i]) * table_width + position / kPage]) * kPage +
                  position % kPage;
    }
    return a;
  }
  __device__ void store(int tile, const float (&c)[4], int n, const Asked& a) const {
    const Lane lane;
    const int per_head = d / kTile, head = tile / per_head, j = tile % per_head * 8 + lane.row;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = lane.at + e;
      if (i >= n) return;
      float low = c[e], high = c[2 + e];
      if (head < heads + kv_heads) {
        const float turned = low * a.cosine[e] - high * a.sine[e];
        high = high * a.cosine[e] + low * a.sine[e];
        low = turned;
      }
      bf16* to = head < heads ? q + i * ldq + static_cast<std::int64_t>(head) * d
                              : pages + a.at[e] * ld_pages + static_cast<std::int64_t>(head - heads) * d;
      to += j;
      store1(to, low);
      store1(to + d / 2, high);
    }
  }
};

// Onto a residual; Normed: then z, the norm of that.
template <bool Normed>
struct LinearOut {
  static constexpr bool kAfterNorms = false;
  const bf16* residual;
  bf16 *y, *z;
  std::int64_t ld_residual, ldy, ldz;
  Site site;
  float* moments;  // of y, or null; centred: about each tile's mean, with these
  int tiles;       // of a row of y
  bool centred;

  __device__ TileRows rows(int tile) const {
    return {static_cast<std::int64_t>(tile) * kTile, static_cast<std::int64_t>(tile) * kTile + 8};
  }
  struct Asked {
    bf16 residual[4];  // widened at last: that would wait for them
    float gamma[2], beta[2], shift;
    RowScale scale[2];
  };
  __device__ Asked ask(int tile, int n) const {
    const Lane lane;
    Asked a{};
    const int column = tile * kTile + lane.row;
    [[maybe_unused]] const NormParams& p = site.p;
    if constexpr (Normed) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a.gamma[half] = p.gamma ? p.gamma[column + 8 * half] : 1.f;
        a.beta[half] = p.beta ? p.beta[column + 8 * half] : 0.f;
      }
      a.shift = value_or(p.shift, 0.f);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = lane.at + e;
      if (i >= n) break;
      if (residual)
        for (int half = 0; half < 2; ++half) a.residual[2 * half + e] = residual[i * ld_residual + column + 8 * half];
      if constexpr (Normed) a.scale[e] = row_scale(p, kept_stats(p, i));
    }
    return a;
  }
  __device__ void store(int tile, const float (&c)[4], int n, const Asked& a) const {
    const Lane lane;
    float v[4];
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = lane.at + e, column = tile * kTile + 8 * half + lane.row;
        v[2 * half + e] = rounded<bf16>(c[2 * half + e] + to_float(a.residual[2 * half + e]));
        if (i >= n) continue;
        store1(y + i * ldy + column, v[2 * half + e]);
        if constexpr (!Normed) continue;
        const float f = mapped(site.map, fmaf(a.scale[e].a, v[2 * half + e] - a.scale[e].mean, a.shift));
        store1(z + i * ldz + column, site.p.out_factor * fmaf(a.gamma[half], f, a.beta[half]));
      }
    if constexpr (!Normed)
      if (moments) keep_moments(tile, v, n);
  }
  // The sum over a tile's columns; lanes with the same rows of x have them.
  static __device__ __forceinline__ float of_tile(float low, float high) {
    float s = low + high;
#pragma unroll
    for (int offset = 16; offset >= 4; offset /= 2) s += __shfl_xor_sync(0xffffffffu, s, offset);
    return s;
  }
  __device__ void keep_moments(int tile, const float (&v)[4], int n) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float mean = centred ? of_tile(v[e], v[2 + e]) / kTile : 0.f, low = v[e] - mean, high = v[2 + e] - mean,
                  square = of_tile(low * low, high * high);
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
    for (int k = 0; k < 8; ++k) v[k] -= mean, square = fmaf(v[k], v[k], square);
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
  std::int64_t ld, width;

  __device__ TileRows rows(int tile) const { return {static_cast<std::int64_t>(tile) * 8, width + static_cast<std::int64_t>(tile) * 8}; }
  struct Asked {};
  __device__ Asked ask(int, int) const { return {}; }
  __device__ void store(int tile, const float (&c)[4], int n, Asked) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (const int i = lane.at + e; i < n)
        store1(h + i * ld + static_cast<std::int64_t>(tile) * 8 + lane.row, c[e] / (1.f + __expf(-c[e])) * c[2 + e]);
  }
};

// The last tile may begin inside the one before it.
struct LogitsOut {
  static constexpr bool kAfterNorms = true;
  float* logits;
  std::int64_t ld, vocab;

  __device__ TileRows rows(int tile) const {
    const std::int64_t low = min(static_cast<std::int64_t>(tile) * kTile, vocab - kTile);
    return {low, low + 8};
  }
  struct Asked {};
  __device__ Asked ask(int, int) const { return {}; }
  __device__ void store(int tile, const float (&c)[4], int n, Asked) const {
    const Lane lane;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (const int i = lane.at + e % 2; i < n) logits[i * ld + rows(tile).low + e / 2 * 8 + lane.row] = c[e];
  }
};

}  // namespace bhyt::cuda::few
