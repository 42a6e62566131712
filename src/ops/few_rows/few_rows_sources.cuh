// Where the kernels of few_rows.cu have their weights from.
#pragma once

#include <type_traits>

#include "core/bulk_copy.cuh"
#include "ops/few_rows/few_rows.cuh"

namespace bhyt::cuda::few {

// The weights of a product.
template <class W>
struct WeightMatrix {
  const W* data;
  const float* scales;  // of rows of bytes
  int ld, tiles, round;
};

// Weights row by row, as bf16 lies in memory: each lane fetches its own pieces of a lower and of an upper row, tile after tile of its
// block, step after step of its warp's eighth of the columns. It reads what it has fetched itself, so that nobody waits for anybody.
template <class R, class W, int Batch, class Out>
struct RowSource {
  const WeightMatrix<W>& w;
  const Out& out;
  const R ring;
  int tile, step = 0, steps;
  const W *low, *high;
  const std::uint64_t policy = evict_first();

  __device__ __forceinline__ RowSource(const WeightMatrix<W>& matrix, const Out& to, char* memory, int in_tile)
      : w(matrix), out(to), ring(memory), tile(blockIdx.x), steps(in_tile) {
    point();
  }
  __device__ __forceinline__ void point() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const TileRows rows = out.rows(tile);
    const int column = warp * steps * Layout<W>::kStep + lane % 4 * Layout<W>::kLane;
    low = w.data + wide_product(rows.low + lane / 4, w.ld) + column;
    high = w.data + wide_product(rows.high + lane / 4, w.ld) + column;
  }
  // A batch of steps, which does not reach beyond a tile, as one group.
  __device__ __forceinline__ void fetch(int stage) {
    if (tile < w.tiles) {
#pragma unroll
      for (int i = 0; i < Batch; ++i) {
        fetch16_of_256(ring.chunk(stage + i, 0), low + i * Layout<W>::kStep, policy);
        fetch16_of_256(ring.chunk(stage + i, 1), high + i * Layout<W>::kStep, policy);
      }
      low += Batch * Layout<W>::kStep;
      high += Batch * Layout<W>::kStep;
      step += Batch;
      if (step == steps) {
        step = 0;
        tile += gridDim.x;
        if (tile < w.tiles) point();
      }
    }
    close_group();
  }
  // Until the oldest batch is there.
  __device__ __forceinline__ void wait(int) { wait_for_groups<R::kStages / Batch - 1>(); }
};

// Weights in the order of tiles (few_rows_tiles): what a warp multiplies of a tile lies together, step after step, as the lanes read it.
// Hopper's tensor memory accelerator (TMA) brings a batch at a time, which takes little code before a row of x can be read.
template <class R, class W, int Batch, class Out>
struct TileSource {
  static constexpr int kBatchBytes = Batch * R::kStep;
  const R ring;
  const std::uint64_t policy = evict_first();
  const char* next;
  std::int64_t over;                      // from the end of a tile's part to the next one's beginning
  int left, step = 0, steps, parity = 0;  // left: of its tiles
  unsigned barriers;                      // of this warp: one for each batch in the ring

  __device__ __forceinline__ TileSource(const WeightMatrix<W>& w, const Out&, char* memory, int in_tile)
      : ring(memory),
        left((w.tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x)),
        steps(in_tile) {
    const int warp = threadIdx.x / 32;
    const int of_warp = in_tile * R::kStep;
    next = reinterpret_cast<const char*>(w.data) + wide_product(static_cast<int>(blockIdx.x) * kWarps + warp, of_warp);
    over = wide_product(static_cast<int>(gridDim.x) * kWarps - 1, of_warp);
    __shared__ std::uint64_t memory_of_barriers[kWarps][R::kStages / Batch];
    barriers = shared_address(memory_of_barriers[warp]);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < R::kStages / Batch; ++i) barrier_init(barriers + i * 8, 1);
      barriers_ready();
    }
#endif
  }
  __device__ __forceinline__ void fetch(int stage) {
    __syncwarp();  // all lanes have read what was there
    if (left > 0) {
#if __CUDA_ARCH__ >= 900
      if (threadIdx.x % 32 == 0) {
        const unsigned barrier = barriers + stage / Batch * 8;
        barrier_arrive(barrier, kBatchBytes);
        load_bytes(ring.place + stage * R::kStep, next, kBatchBytes, barrier, policy);
      }
#else  // as much shared memory as Hopper's, but no code for it in the build: large Blackwells
#pragma unroll
      for (int i = 0; i < 2 * Batch; ++i) fetch16_of_256(ring.chunk(stage, i), next + i * 512 + threadIdx.x % 32 * 16, policy);
#endif
      next += kBatchBytes;
      step += Batch;
      if (step == steps) {
        step = 0;
        --left;
        next += over;
      }
    }
#if __CUDA_ARCH__ < 900
    close_group();
#endif
  }
  __device__ __forceinline__ void wait(int stage) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(barriers + stage / Batch * 8, parity);
    if (stage + Batch == R::kStages) parity ^= 1;
#else
    wait_for_groups<R::kStages / Batch - 1>();
#endif
  }
};

template <class R, class W, int Batch, class Out>
using Source = std::conditional_t<Layout<W>::kBytes, TileSource<R, W, Batch, Out>, RowSource<R, W, Batch, Out>>;

}  // namespace bhyt::cuda::few
