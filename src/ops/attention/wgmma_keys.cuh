// A block that owns keys in the backward of attention on Hopper, and what the kernel that owns queries leaves for it.
#pragma once

#include "ops/attention/wgmma.cuh"

namespace bhyt::cuda::wgmma {

// What the key kernel needs of every query, in the order in which it streams them: for each head, 64 queries at a time, lse (for
// exponentials of base 2), delta, and with documents `first`. Positions past the end have zeros, so that they add nothing.
constexpr int kPlanes = 3;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ float* stats_of(const flash::Call& a, int b, int h, int tile) {
  return a.delta + ((static_cast<std::int64_t>(b) * a.heads + h) * tiles_of(a.seq) + tile) * (kPlanes * kRows);
}

// A block that owns keys of one key/value head: which tiles of queries see them, where these lie, who sees what. The queries of all heads
// of the group stream past; scores are kept transposed, keys by queries.
template <class S, bool Documents>
struct Keys {
  static constexpr int kStatBytes = (Documents ? 3 : 2) * kRows * 4;
  const flash::Call& a;
  const Maps& maps;
  const char* shared;
  unsigned base = shared_address(shared);
  Ring<S> ring{base + S::kBarriers};
  int k0 = static_cast<int>(blockIdx.y) * S::kOwned, last = a.seq - 1;
  int kv = blockIdx.x, b = blockIdx.z, heads = a.heads / a.kv_heads;
  int warp = flash::warp_index(), group = warp / 4, r0 = k0 + group * kRows;  // the warpgroup's keys
  // The queries that see some of the block's keys, in whole tiles, for each head of the group.
  int q_end =
      Documents ? flash::end_of_view(a.first + static_cast<std::int64_t>(b) * a.seq, min(k0 + S::kOwned - 1, last), k0, a.seq) : a.seq;
  int tiles = tiles_of(q_end - k0), steps = tiles * heads;
  bool loads = warp == 0 && flash::lane() == 0;  // of the first warpgroup, whose keys all tiles see
  int load_tile_at = 0, load_head = kv * heads;  // of the step that is asked for next
  int place = -1;                                // of the step among the tiles of its head

  __device__ __forceinline__ Keys(const flash::Call& call, const Maps& where, const char* memory) : a(call), maps(where), shared(memory) {}
  __device__ __forceinline__ unsigned stage(int step) const { return base + S::kStream + step % S::kStages * 2 * kTile; }
  __device__ __forceinline__ std::uint64_t queries(int step) const { return descriptor(stage(step)); }
  __device__ __forceinline__ std::uint64_t douts(int step) const { return descriptor(stage(step) + kTile); }
  // Of this lane's first query: lse, and further on delta and `first`.
  __device__ __forceinline__ const float* stats(int step) const {
    return reinterpret_cast<const float*>(shared + S::kStats + step % S::kStages * S::kStat) + flash::lane() % 4 * 2;
  }

  __device__ __forceinline__ void load_queries(int step) {
    if (step >= steps) return;
    ring.claim(step);
    const int h = load_head, tile = k0 / kRows + load_tile_at;
    if (++load_tile_at == tiles) {
      load_tile_at = 0;
      ++load_head;
    }
    const unsigned to = stage(step), full = ring.full(step);
    barrier_arrive(full, 2 * kTile + kStatBytes);
    load_tile(to, maps.qkv, h * 64, tile * kRows, b, full);
    load_tile(to + kTile, maps.dout, h * 64, tile * kRows, b, full);
    load_bytes(base + S::kStats + step % S::kStages * S::kStat, stats_of(a, b, h, tile), kStatBytes, full);
  }
  // The loading thread begins with the block's keys and values, and the first queries.
  __device__ __forceinline__ void start() {
    if (loads) ring.init();
    __syncthreads();
    if (loads) {
      barrier_arrive(ring.owned(), 2 * S::kGroups * kTile);
      for (int g = 0; g < S::kGroups; ++g) {
        load_tile(base + 2 * g * kTile, maps.qkv, (a.heads + kv) * 64, k0 + g * kRows, b, ring.owned());
        load_tile(base + (2 * g + 1) * kTile, maps.qkv, (a.heads + a.kv_heads + kv) * 64, k0 + g * kRows, b, ring.owned());
      }
      for (int step = 0; step < S::kLead; ++step) load_queries(step);
    }
    __syncwarp();
  }
  // The step after this one that has queries from the warpgroup's first key on.
  __device__ __forceinline__ int step_after(int step) {
    for (;;) {
      ++step;
      if (++place == tiles) place = 0;
      if (step >= steps || place >= group) return step;
      ring.wait(step);
      ring.release(step);
    }
  }

  // Scores that a query must not see.
  __device__ __forceinline__ void mask(Block& s, int step) const {
    const std::int32_t* first = reinterpret_cast<const std::int32_t*>(stats(step)) + 2 * kRows;
    const int row = warp % 4 * 16 + flash::lane() / 4, column = flash::lane() % 4 * 2;
    if (place == group) {
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (row + i / 2 * 8 > 8 * n + column + i % 2) s[0][n][i] = -INFINITY;
    }
    if (Documents && first[kRows - 1 - column] > r0) {
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (r0 + row + i / 2 * 8 < first[8 * n + i % 2]) s[0][n][i] = -INFINITY;
    }
  }
  // Scores to P, where columns are queries.
  __device__ __forceinline__ void exponentials(Block& s, int step, float c) const {
    const float* stat = stats(step);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(stat + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[0][n][i] = flash::exp2_fast(fmaf(s[0][n][i], c, i % 2 == 0 ? -lse.x : -lse.y));
    }
  }
  // V·dOᵀ to dS, likewise.
  __device__ __forceinline__ Left gradient(Block& ds, const Block& p, int step) const {
    const float* stat = stats(step) + kRows;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = *reinterpret_cast<const float2*>(stat + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - (i % 2 == 0 ? delta.x : delta.y));
    }
    return Left(ds);
  }
};

#endif

}  // namespace bhyt::cuda::wgmma
