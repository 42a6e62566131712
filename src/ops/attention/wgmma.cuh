// Building blocks of attention on Hopper's tensor cores (core/wgmma.cuh), head width 64: blocks of warpgroups that share a stream of tiles,
// and barriers that count their bytes. A tile has the layout of flash::place<64>.
#pragma once

#include "core/wgmma.cuh"
#include "ops/attention/flash.cuh"

namespace bhyt::cuda::wgmma {

using Left = flash::Packed<1, 8>;

// A block: Groups warpgroups that share the stream of tiles, of which Stages are in shared memory; Blocks of them run on one
// multiprocessor, so that the exponentials of one hide behind the products of another.
template <int Groups, int Blocks, int Stages>
struct Shape {
  static constexpr int kGroups = Groups, kThreads = 128 * Groups, kBlocks = Blocks, kStages = Stages;
  static constexpr int kOwned = kRows * Groups;
  static constexpr int kLead = Stages - 2;         // how many steps before its use a tile is asked for
  static_assert(Stages >= 3 && Stages >= Groups);  // fewer would wait for each other for ever
  // Shared memory: owned tiles, two for each warpgroup; the stages, two tiles each; their statistics; the barriers.
  static constexpr int kStream = 2 * Groups * kTile, kStats = kStream + 2 * Stages * kTile, kStat = 1024;
  static constexpr int kBarriers = kStats + Stages * kStat, kBytes = kBarriers + 8 * (2 * Stages + 1);
};

// Where kernels find the matrices; passed as they are in a kernel's parameters.
struct Maps {
  CUtensorMap qkv, dout;
};

__host__ __device__ __forceinline__ int tiles_of(int seq) { return (seq + kRows - 1) / kRows; }

// Describes the rows of all sequences, or of all heads of them, in tiles.
inline bool make_map(CUtensorMap& map, const bf16* matrix, std::int64_t columns, std::int64_t ld, const flash::Call& a) {
  return make_map(map, matrix, columns, ld, a.seq, a.batch);
}

template <class S, class Kernel>
void launch(Context& ctx, Kernel kernel, int heads, const flash::Call& call, const Maps& maps) {
  BHYT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  const dim3 grid(static_cast<unsigned>(heads), blocks_for(call.seq, S::kOwned), static_cast<unsigned>(call.batch));
  kernel<<<grid, S::kThreads, S::kBytes, stream(ctx)>>>(call, maps);
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void pin(Left& p) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(p.a[k][0][i])::"memory");
}

// The stages, filled by one thread and freed by all.
template <class S>
struct Ring {
  unsigned barriers;
  __device__ __forceinline__ unsigned full(int step) const { return barriers + 8 * (step % S::kStages); }
  __device__ __forceinline__ unsigned empty(int step) const { return barriers + 8 * (S::kStages + step % S::kStages); }
  __device__ __forceinline__ unsigned owned() const { return barriers + 16 * S::kStages; }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), S::kThreads);
    }
    barrier_init(owned(), 1);
    barriers_ready();
  }
  // Until the step's tiles are there.
  __device__ __forceinline__ void wait(int step) const { barrier_wait(full(step), step / S::kStages % 2); }
  // This thread has read the step's tiles. (One arrival of a warp after a __syncwarp would do, but is no faster, and racecheck does not
  // follow it.)
  __device__ __forceinline__ void release(int step) const { barrier_arrive(empty(step)); }
  // For the filling thread: until all have read what lies where the step's tiles go.
  __device__ __forceinline__ void claim(int step) const {
    if (step >= S::kStages) barrier_wait(empty(step), (step / S::kStages + 1) % 2);
  }
};

// A block that owns queries of one head, forward and backward: which tiles of keys its warpgroups see, where they lie, who sees what.
template <class S, bool Documents>
struct Queries {
  const flash::Call& a;
  const Maps& maps;
  unsigned base;
  Ring<S> ring;
  // The last queries see the most keys: they begin first.
  int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * S::kOwned, h = blockIdx.x, b = blockIdx.z, kv = h / (a.heads / a.kv_heads);
  int warp = flash::warp_index(), group = warp / 4, r0 = q0 + group * kRows, w0 = r0 + warp % 4 * 16;  // its queries, the warp's
  const std::int32_t* first = Documents ? a.first + static_cast<std::int64_t>(b) * a.seq : nullptr;
  int begin = Documents ? first[q0] / kRows : 0, end = (min(q0 + S::kOwned, a.seq) - 1) / kRows + 1;
  int steps = end - begin, mine = min(r0 / kRows + 1, end) - begin;
  bool loads = warp == S::kGroups * 4 - 4 && flash::lane() == 0;  // of the last warpgroup, which sees all tiles
  // Tiles before this one are not seen whole by all queries of the warpgroup.
  int whole = Documents ? (first[min(r0 + kRows, a.seq) - 1] + kRows - 1) / kRows : 0;
  int from[2];  // where the documents of queries lane/4 and lane/4 + 8 begin

  __device__ __forceinline__ Queries(const flash::Call& call, const Maps& where, const char* shared)
      : a(call), maps(where), base(shared_address(shared)), ring{base + S::kBarriers} {
#pragma unroll
    for (int r = 0; r < 2; ++r) from[r] = Documents ? first[position(r)] : 0;
  }
  __device__ __forceinline__ int position(int r) const { return min(w0 + 8 * r + flash::lane() / 4, a.seq - 1); }
  __device__ __forceinline__ unsigned stage(int step) const { return base + S::kStream + step % S::kStages * 2 * kTile; }
  __device__ __forceinline__ std::uint64_t keys(int step) const { return descriptor(stage(step)); }
  __device__ __forceinline__ std::uint64_t values(int step) const { return descriptor(stage(step) + kTile); }

  // The loading thread begins with what the block owns, which load_owned(warpgroup, row) asks for, and the first keys.
  template <class Load>
  __device__ __forceinline__ void start(int owned_bytes, Load load_owned) const {
    if (loads) ring.init();
    __syncthreads();
    if (loads) {
      barrier_arrive(ring.owned(), owned_bytes);
      for (int g = 0; g < S::kGroups; ++g) load_owned(g, q0 + g * kRows);
      for (int step = 0; step < S::kLead; ++step) load_keys(step);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void load_keys(int step) const {
    if (step >= steps) return;
    ring.claim(step);
    const unsigned full = ring.full(step);
    barrier_arrive(full, 2 * kTile);
    load_tile(stage(step), maps.qkv, (a.heads + kv) * 64, (begin + step) * kRows, b, full);
    load_tile(stage(step) + kTile, maps.qkv, (a.heads + a.kv_heads + kv) * 64, (begin + step) * kRows, b, full);
  }
  // Scores that a query must not see.
  __device__ __forceinline__ void mask(Block& s, int step) const {
    const int tile = begin + step;
    if (tile * kRows != r0 && !(Documents && tile < whole)) return;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = tile * kRows + 8 * n + flash::lane() % 4 * 2 + i % 2, own = w0 + 8 * (i / 2) + flash::lane() / 4;
        if (at > own || (Documents && at < from[i / 2])) s[0][n][i] = -INFINITY;
      }
  }
};

#endif

}  // namespace bhyt::cuda::wgmma
