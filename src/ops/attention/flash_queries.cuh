// Queries and the keys they see, for the flash kernels that own queries (attention_flash.cu, and the one of attention_flash_backward.cu
// that writes dQ): a block owns 128 queries of one head, a warp 32 of them, and tiles of keys stream through shared memory.
#pragma once

#include "ops/attention/flash.cuh"

namespace bhyt::cuda::flash {

// A warp's 16·MT queries from `begin` on, and the keys they see.
template <bool Documents, int MT>
struct Queries {
  int begin, last;    // last < begin: there are none
  const int* firsts;  // in shared memory: where the past begins for each of them, non-decreasing

  __device__ __forceinline__ Queries(int from, int seq, const int* f) : begin(from), last(min(from + 16 * MT, seq) - 1), firsts(f) {}
  // Of the row of elements 2r and 2r+1 of the fragments m.
  __device__ __forceinline__ int position(int m, int r) const { return begin + 16 * m + 8 * r + lane() / 4; }
  // Whether some query sees some of the keys key … key+n-1; whether all see all of them.
  __device__ __forceinline__ bool see(int key, int n) const { return begin <= last && key <= last && (!Documents || key + n > firsts[0]); }
  __device__ __forceinline__ bool all_see(int key, int n) const {
    return key + n - 1 <= begin && (!Documents || key >= firsts[16 * MT - 1]);
  }
  // The scores of keys from `key` on: -∞ where the query does not see it.
  template <int NT>
  __device__ __forceinline__ void hide(float (&s)[MT][NT][4], int key) const {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int t = position(m, r), first = Documents ? firsts[t - begin] : 0;
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = key + 8 * n + lane() % 4 * 2 + e;
            if (at > t || at < first) s[m][n][2 * r + e] = -INFINITY;
          }
      }
  }
};

// A block's queries, and the tiles of Keys keys and values that they see: two of each are in shared memory, the one in use and the next.
template <int D, bool Documents, int Keys>
struct QueryBlock {
  static constexpr int kQueries = kThreads, kMT = kQueries / kWarps / 16, kTile = tile_bytes<D>(Keys), kStream = 4 * kTile;
  const Call& a;
  unsigned stream;  // where the tiles lie in shared memory: keys, then values
  // The last queries see the most keys: they begin first.
  int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries, h = blockIdx.x, b = blockIdx.z, kv = h / (a.heads / a.kv_heads);
  std::int64_t sequence = static_cast<std::int64_t>(b) * a.seq, column = static_cast<std::int64_t>(h) * D;
  const bf16* q = a.qkv + sequence * a.ld + column;
  const bf16* k = q + static_cast<std::int64_t>(a.heads + kv - h) * D;
  const std::int32_t* first = Documents ? a.first + sequence : nullptr;
  int begin = Documents ? first[q0] / Keys : 0, end = (min(q0 + kQueries, a.seq) - 1) / Keys + 1;  // the tiles they see

  __device__ __forceinline__ QueryBlock(const Call& call, unsigned at) : a(call), stream(at) {}
  // Of tile n, from row `part` on.
  __device__ __forceinline__ unsigned keys(int n, int part = 0) const { return stream + (n % 2 * kTile + tile_bytes<D>(part)); }
  __device__ __forceinline__ unsigned values(int n, int part = 0) const {
    return stream + 2 * kTile + (n % 2 * kTile + tile_bytes<D>(part));
  }
  __device__ __forceinline__ void load_keys(int n) const {
    load_tile<D, Keys>(keys(n), k, a.ld, n * Keys, a.seq, a.kv_heads * D, 2 * kTile);
    copy_commit();
  }
  // Until tile n is there; the next one is on its way then.
  __device__ __forceinline__ void wait_for_keys(int n) const {
    copy_wait<0>();
    __syncthreads();  // nobody reads tile n-1 any more
    if (n + 1 < end) load_keys(n + 1);
  }
  // A warp's part of the queries; firsts: room in shared memory for all of them, good after the next barrier.
  __device__ __forceinline__ Queries<Documents, kMT> queries_of(int warp, int* firsts) const {
    if (Documents) firsts[threadIdx.x] = first[min(q0 + static_cast<int>(threadIdx.x), a.seq - 1)];
    return {q0 + warp * 16 * kMT, a.seq, firsts + warp * 16 * kMT};
  }
  // Where a.lse and a.delta have query t.
  __device__ __forceinline__ std::int64_t place_of(int t) const { return (static_cast<std::int64_t>(b) * a.heads + h) * a.seq + t; }
};

}  // namespace bhyt::cuda::flash
