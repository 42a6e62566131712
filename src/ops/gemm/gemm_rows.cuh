// Products of up to 64 rows by weights, y = x wᵀ in bf16, on Hopper: a step of many sequences, where reading the weights is most of the
// work. A block multiplies 128 rows of w by all rows of x, step by step of 64 columns: one thread asks the tensor memory accelerator for
// tiles, two warpgroups multiply them. Weights are asked for before the kernel in front has ended. Where w has few rows, clusters of blocks
// divide the columns and put their sums together through each other's shared memory. How the work is divided does not depend on the rows of
// x: a row has the same bits whatever rows come with it.
//
// What becomes of the sums is an Out, which gemm_rows.cu (y itself) and ops/linear/fused.cu have: out(row, block, item, sums) for each of
// its `kItems` items of a row and block; sums(row, column, v) are eight of them, columns counted in the block.
#pragma once

#include <algorithm>

#include "core/cluster.cuh"
#include "core/wgmma.cuh"
#include "ops/gemm/rows_cuda.h"

namespace bhyt::cuda::rows {

using namespace wgmma;

constexpr int kOwned = 2 * kRows;  // rows of w of a block at a time, one tile for each warpgroup
constexpr int kWorkers = 256, kThreads = kWorkers + 32;
constexpr int kMostSplits = 4;

// Shared memory: the stages, a tile of x behind two of w; the sums, a row of x behind the other; the barriers.
constexpr int kStages = 7, kStage = 3 * kTile;
constexpr int kLd = kOwned + 4;  // floats from row to row: neither writing nor reading them meets a bank twice
constexpr int kSums = kStages * kStage, kBarriers = kSums + kRows * kLd * 4, kBytes = kBarriers + 16 * kStages;

struct Call {
  int rows;    // of x
  int steps;   // of 64 columns of w
  int blocks;  // of two tiles of w, which follow those of the block before by `next` rows; the second lies `second` rows behind the first
  int next, second;
};
struct Maps {
  CUtensorMap w, x;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The warps that multiply, among themselves.
__device__ __forceinline__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kWorkers) : "memory"); }

// The part of a block: steps [begin, begin + own) of every grid'th of the blocks of w.
struct Part {
  int splits = gridDim.z, split = blockIdx.z, begin, own, tiles;
  __device__ __forceinline__ explicit Part(const Call& a)
      : begin(a.steps * split / splits),
        own(a.steps * (split + 1) / splits - begin),
        tiles((a.blocks - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x)) {}
  __device__ __forceinline__ int block(int tile) const { return static_cast<int>(blockIdx.x) + tile * static_cast<int>(gridDim.x); }
};

struct Ring {
  unsigned stages, barriers;
  __device__ __forceinline__ unsigned stage(int step) const { return stages + step % kStages * kStage; }
  __device__ __forceinline__ unsigned full(int step) const { return barriers + 8 * (step % kStages); }
  __device__ __forceinline__ unsigned empty(int step) const { return full(step) + 8 * kStages; }
  __device__ __forceinline__ static int parity(int step) { return step / kStages % 2; }
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), kWorkers);
    }
    barriers_ready();
  }
};

// One thread: asks for all tiles, those of w as far ahead as there is room before it waits for the kernel that makes x.
__device__ __forceinline__ void load(const Call& a, const Maps& maps, const Part& part, const Ring& ring) {
  for (const CUtensorMap* map : {&maps.w, &maps.x}) asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
  const std::uint64_t policy = evict_first();
  const int steps = part.tiles * part.own, ahead = min(steps, kStages);
  const auto column = [&](int step) { return (part.begin + step % part.own) * 64; };
  const auto ask_w = [&](int step) {
    const int row = part.block(step / part.own) * a.next;
    barrier_arrive(ring.full(step), kStage);
    load_tile(ring.stage(step), maps.w, column(step), row, 0, ring.full(step), policy);
    load_tile(ring.stage(step) + kTile, maps.w, column(step), row + a.second, 0, ring.full(step), policy);
  };
  const auto ask_x = [&](int step) { load_tile(ring.stage(step) + 2 * kTile, maps.x, column(step), 0, 0, ring.full(step)); };
  for (int step = 0; step < ahead; ++step) ask_w(step);
  wait_for_previous();
  for (int step = 0; step < ahead; ++step) ask_x(step);
  for (int step = ahead; step < steps; ++step) {
    barrier_wait(ring.empty(step), ring.parity(step) ^ 1);
    ask_w(step);
    ask_x(step);
  }
}

// The sums of this block, in shared memory.
__device__ __forceinline__ void keep(const Block& c, float* sums) {
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[(8 * n + column + e % 2) * kLd + row + e / 2 * 8] = c[0][n][e];
}

// Eight of a row's sums, of all blocks of the cluster together.
struct Sums {
  const float* own;
  int splits;
  __device__ __forceinline__ void operator()(int row, int column, float (&v)[8]) const {
    const float* const at = own + row * kLd + column;
    const auto add = [&](const float4& low, const float4& high) {
      const float more[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += more[i];
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = 0;
    if (splits == 1) return add(reinterpret_cast<const float4*>(at)[0], reinterpret_cast<const float4*>(at)[1]);
    const unsigned address = shared_address(at);
#pragma unroll
    for (int p = 0; p < kMostSplits; ++p)
      if (p < splits) add(read4_there(address, p), read4_there(address + 16, p));
  }
};

// Every block of a cluster finishes its share of the items.
template <class Out>
__device__ __forceinline__ void finish(const Call& a, const Part& part, int block, const float* sums, const Out& out) {
  const Sums of{sums, part.splits};
  for (int i = part.split * kWorkers + static_cast<int>(threadIdx.x); i < a.rows * Out::kItems; i += part.splits * kWorkers)
    out(i / Out::kItems, block, i % Out::kItems, of);
}

template <class Out>
__device__ __forceinline__ void multiply(const Call& a, const Part& part, const Ring& ring, float* sums, const Out& out) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  int step = 0;
  for (int tile = 0; tile < part.tiles; ++tile) {
    Block c;
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[0][n][e] = 0;
    for (int k = 0; k < part.own; ++k, ++step) {
      barrier_wait(ring.full(step), ring.parity(step));
      pin(c);
      fence();
      const unsigned stage = ring.stage(step);
      add_rows(c, descriptor(stage + group * kTile), descriptor(stage + 2 * kTile));
      commit();
      if (k == 0) continue;
      wait<1>();
      barrier_arrive(ring.empty(step - 1));
    }
    wait<0>();
    pin(c);
    barrier_arrive(ring.empty(step - 1));
    keep(c, sums);
    if (part.splits > 1) return;  // it was the only tile; now the cluster meets
    meet_workers();
    finish(a, part, part.block(tile), sums, out);
    meet_workers();
  }
}

#endif

template <class Out>
__global__ void __launch_bounds__(kThreads, 1) product_kernel(const Call a, const __grid_constant__ Maps maps, const Out out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const unsigned base = shared_address(shared);
  const Ring ring{base, base + kBarriers};
  float* const sums = reinterpret_cast<float*>(shared + kSums);
  const Part part(a);
  if (threadIdx.x == kWorkers) ring.init();
  __syncthreads();
  let_next_begin();
  const bool works = threadIdx.x < kWorkers;
  if (works)
    multiply(a, part, ring, sums, out);
  else if (threadIdx.x == kWorkers)
    load(a, maps, part, ring);
  if (part.splits == 1) return;
  __syncwarp();
  arrive_in_cluster();
  wait_for_cluster();
  if (works) finish(a, part, part.block(0), sums, out);
  arrive_in_cluster();
  wait_for_cluster();  // nobody leaves before the others have read
#endif
}

// Into how many parts the columns of w are divided: as many as find a place at a time, each with a few steps. Some multiprocessors are left
// over where clusters lie, chip by chip; they count as four, so that every chip divides alike.
inline int splits_for(Context& ctx, int blocks, int steps) {
  constexpr int kFewest = 4, kLeftOver = 4;
  for (int splits = kMostSplits; splits > 1; --splits)
    if (steps / splits >= kFewest && blocks * splits <= multiprocessors(ctx) - kLeftOver) return splits;
  return 1;
}

// The two tiles of a block: rows that follow one another, or `half` rows apart.
template <class Out>
void launch(Context& ctx, const Tensor& x, const Tensor& w, const Out& out, std::int64_t half = 0) {
  static_assert(kOwned % Out::kItems == 0);  // of as many columns each
  Maps maps{};
  if (!make_map(maps.w, w.as<bf16>(), w.cols(), w.ld, w.rows(), 1) || !make_map(maps.x, x.as<bf16>(), x.cols(), x.ld, x.rows(), 1))
    fail("[gemm] the driver takes no tiles of " + shape_string(x).text() + " and " + shape_string(w).text());
  const int next = half > 0 ? kRows : kOwned;
  const Call call{.rows = static_cast<int>(x.rows()),
                  .steps = static_cast<int>(x.cols() / 64),
                  .blocks = static_cast<int>(blocks_for(half > 0 ? half : w.rows(), next)),
                  .next = next,
                  .second = half > 0 ? static_cast<int>(half) : kRows};
  const int splits = splits_for(ctx, call.blocks, call.steps);
  const dim3 grid(static_cast<unsigned>(splits > 1 ? call.blocks : std::min(call.blocks, multiprocessors(ctx))), 1,
                  static_cast<unsigned>(splits));
  launch_early(ctx, product_kernel<Out>, {grid, static_cast<unsigned>(splits)}, kThreads, std::size_t{kBytes}, call, maps, out);
  check_launch("gemm");
}

}  // namespace bhyt::cuda::rows
