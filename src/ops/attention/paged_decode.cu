// Attention of single queries over pages, by mma.sync. A block has one sequence and one key/value head; its warps take pages in turns, each
// with its own two in shared memory. The query heads of the group are the rows of a product. Long sequences are split over several blocks,
// and the last to end puts their results together. Where there are few rows, clusters of blocks do, through each other's shared memory:
// such blocks are small, so that they are there before the kernel in front has ended, beside its blocks and those of the kernel behind.
#include <algorithm>

#include "core/cluster.cuh"
#include "core/memory.h"
#include "ops/attention/paged.cuh"

namespace bhyt::cuda {

namespace {

using namespace flash;

constexpr int kStages = 2, kRows = 16, kNT = kPage / 8;
constexpr float kLowest = -3e38f;  // below any score, and finite: less itself it is zero
constexpr int kMostSplits = 32;

template <int D>
constexpr int kPageBytes = 2 * tile_bytes<D>(kPage);  // keys and values
template <int D, int Warps>
constexpr int kShared = tile_bytes<D>(kRows) + (Warps * kStages) * kPageBytes<D>;

__device__ __forceinline__ void bring_near(const bf16* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A page's keys and values of head h.
template <int D>
__device__ __forceinline__ void bring_page_near(const PagedCall& a, std::int32_t page, int h) {
  static_assert(kPage == 32);  // a lane to a position
  const bf16* const at = a.pages + (static_cast<std::int64_t>(page) * kPage + lane()) * a.ld + static_cast<std::int64_t>(h) * D;
  const std::int64_t value_at = static_cast<std::int64_t>(a.kv_heads) * D;
  for (int c = 0; c < D; c += 64) {
    bring_near(at + c);
    bring_near(at + value_at + c);
  }
}

// Begins to copy a page's keys and values of one head into a warp's tiles; zeros for positions from `end` on.
template <int D>
__device__ __forceinline__ void load_page(unsigned tile, const bf16* page, std::int64_t ld, std::int64_t value_at, int end) {
  constexpr int kChunks = D / 8, kStep = 32 / kChunks;
  const int chunk = lane() % kChunks, begin = lane() / kChunks;
#pragma unroll 2
  for (int r = 0; r < kPage; r += kStep) {
    const bool real = begin + r < end;
    const unsigned to = tile + place<D>(begin + r, chunk);
    const bf16* from = page + (real ? begin + r : 0) * ld + chunk * 8;
    copy_async16(to, from, real);
    copy_async16(to + tile_bytes<D>(kPage), from + value_at, real);
  }
}

// A row's unfinished result: its sum and what that is relative to, in front of it.
template <int D>
constexpr int kPart = D + 2;

// Begins to copy the queries of key/value head h: row r of the product is query head h·group + r, zeros behind the group's.
template <int D>
__device__ __forceinline__ void load_queries(unsigned tile, const PagedCall& a, int row, int h, int group) {
  for (int i = threadIdx.x; i < kRows * (D / 8); i += blockDim.x) {
    const int r = i / (D / 8), chunk = i % (D / 8);
    const bf16* from = a.q + row * a.ldq + (static_cast<std::int64_t>(h) * group + (r < group ? r : 0)) * D + chunk * 8;
    copy_async16(tile + place<D>(r, chunk), from, r < group);
  }
}

// No weight for positions from `end` on, of a page's scores.
__device__ __forceinline__ void mask_from(int end, int page, float (&s)[1][kNT][4]) {
#pragma unroll
  for (int n = 0; n < kNT; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (page * kPage + 8 * n + lane() % 4 * 2 + e % 2 >= end) s[0][n][e] = -INFINITY;
}

// What a warp has of its rows so far.
template <int D>
struct Running {
  float o[1][D / 8][4], base[2] = {kLowest, kLowest}, sum[2] = {0, 0};
  __device__ Running() { clear(o); }

  __device__ __forceinline__ void add(float (&s)[1][kNT][4], unsigned values, float c) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = base[r];
#pragma unroll
      for (int n = 0; n < kNT; ++n) top = fmaxf(top, fmaxf(s[0][n][2 * r], s[0][n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float shrink = exp2_fast((base[r] - top) * c);
      base[r] = top;
      sum[r] *= shrink;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[0][n][2 * r] *= shrink;
        o[0][n][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kNT; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) sum[r] += s[0][n][i] = exp2_fast((s[0][n][i] - top) * c);
    }
    multiply_columns<D>(o, Packed(s), values);
  }

  // The unfinished results of the first `rows` rows, to this warp's place.
  __device__ __forceinline__ void keep(float* warps, int warp, int rows) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = sum[r];
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      const int row = lane() / 4 + 8 * r;
      if (row >= rows) continue;
      float* const part = warps + (warp * kRows + row) * kPart<D>;
      if (lane() % 4 == 0) {
        part[0] = base[r];
        part[1] = all;
      }
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) part[2 + 8 * n + lane() % 4 * 2 + e] = o[0][n][2 * r + e];
    }
  }
};

// Puts `n` unfinished results of `rows` rows together; from: a row's results lie `stride` floats apart, rows `between`.
template <int D>
__device__ __noinline__ void join(const float* from, int n, int stride, int between, int rows, float c, float* to, int to_between,
                                  bf16* out) {
  for (int i = threadIdx.x; i < rows * D; i += blockDim.x) {
    const int row = i / D, column = i % D;
    const float* part = from + row * between;
    float base = kLowest, sum = 0, o = 0;
    for (int k = 0; k < n; ++k) base = fmaxf(base, part[k * stride]);
    for (int k = 0; k < n; ++k) {
      const float shrink = exp2_fast((part[k * stride] - base) * c);
      sum = fmaf(part[k * stride + 1], shrink, sum);
      o = fmaf(part[k * stride + 2 + column], shrink, o);
    }
    if (out) {
      store1(out + row * D + column, o / sum);
    } else {
      float* const own = to + row * to_between;
      if (column == 0) {
        own[0] = base;
        own[1] = sum;
      }
      own[2 + column] = o;
    }
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Puts the first `n` warps' unfinished results together, which the blocks of a cluster have in turns, each at the same place of its shared
// memory. A block has its share of the columns, four threads a column.
template <int D, int Warps, int Cluster>
__device__ __forceinline__ void join_cluster(const float* warps, int n, int rows, float c, bf16* out) {
  constexpr int kMost = Warps * Cluster / 4, kColumns = 8 * Warps;
  arrive_in_cluster();
  const int quarter = threadIdx.x % 4, first = static_cast<int>(block_of_cluster()) * kColumns + static_cast<int>(threadIdx.x) / 4;
  wait_for_cluster();
  static_assert(D % 8 == 0);  // a warp has eight columns: all of its lanes go through this together
  for (int i = first; i < rows * D; i += Cluster * kColumns) {
    float base[kMost], sums[kMost], os[kMost], top = kLowest, sum = 0, o = 0;
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int of = 4 * k + quarter;
      const float* const part = warps + (of / Cluster * kRows + i / D) * kPart<D>;
      base[k] = kLowest;
      sums[k] = os[k] = 0;
      if (of < n) {
        base[k] = read_there(shared_address(part), of % Cluster);
        sums[k] = read_there(shared_address(part + 1), of % Cluster);
        os[k] = read_there(shared_address(part + 2 + i % D), of % Cluster);
      }
    }
#pragma unroll
    for (int k = 0; k < kMost; ++k) top = fmaxf(top, base[k]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const float shrink = exp2_fast((base[k] - top) * c);
      sum = fmaf(sums[k], shrink, sum);
      o = fmaf(os[k], shrink, o);
    }
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, by);
      o += __shfl_xor_sync(0xffffffffu, o, by);
    }
    if (quarter == 0) store1(out + i, o / sum);
  }
  arrive_in_cluster();
  wait_for_cluster();  // nobody leaves before the others have read
}
#else
template <int D, int Warps, int Cluster>
__device__ __forceinline__ void join_cluster(const float*, int, int, float, bf16*) {}
#endif

// Puts the warps' unfinished results together, and those of the other blocks of this row and head if this is the last of them to end.
// row: counted from the first of the call.
template <int D, int Warps>
__device__ __forceinline__ void join_splits(const PagedCall& a, int row, const float* warps, int group, float c, float* parts,
                                            unsigned* counters, bf16* out) {
  const int h = blockIdx.x, splits = gridDim.z, split = blockIdx.z;
  float* const own_parts = parts + ((static_cast<std::int64_t>(row) * a.kv_heads + h) * splits) * group * kPart<D>;
  join<D>(warps, Warps, kRows * kPart<D>, kPart<D>, group, c, own_parts + static_cast<std::int64_t>(split) * group * kPart<D>, kPart<D>,
          splits == 1 ? out : nullptr);
  if (splits == 1) return;
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  unsigned* const counter = counters + row * a.kv_heads + h;
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == static_cast<unsigned>(splits) - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  join<D>(own_parts, splits, group * kPart<D>, kPart<D>, group, c, nullptr, 0, out);
  if (threadIdx.x == 0) *counter = 0;
}

// Cluster: how many blocks put their results together by themselves; all splits then, if it is not one.
template <int D, int Warps, int Cluster>
__global__ void __launch_bounds__(32 * Warps) decode_kernel(const PagedCall a, int first, float* parts, unsigned* counters) {
  extern __shared__ __align__(256) char shared[];
  const int h = blockIdx.x, row = first + static_cast<int>(blockIdx.y), splits = gridDim.z, split = blockIdx.z;
  const int group = a.heads / a.kv_heads, warp = warp_index();
  const unsigned q_tile = shared_address(shared), own = q_tile + tile_bytes<D>(kRows) + warp * (kStages * kPageBytes<D>);
  let_next_begin();
  const int seen = a.at.positions[row] + 1, pages = (seen + kPage - 1) / kPage;
  const std::int32_t* const table = a.at.pages_of(row);
  const std::int64_t value_at = static_cast<std::int64_t>(a.kv_heads) * D;
  const auto begin_page = [&](int page, int stage) {
    if (page < pages)
      load_page<D>(own + stage * kPageBytes<D>,
                   a.pages + static_cast<std::int64_t>(table[page]) * kPage * a.ld + static_cast<std::int64_t>(h) * D, a.ld, value_at,
                   seen - page * kPage);
  };
  // A cluster's warps with one page lie in all of its blocks.
  const int start = Cluster > 1 ? warp * splits + split : split * Warps + warp, stride = splits * Warps;
  // Pages must not be read before the wait, for those of a beginning that sequences share may be written in the same step; but they may
  // come near. Positions and table are the host's.
  for (int page = start; page < min(pages, start + 2 * stride); page += stride) bring_page_near<D>(a, table[page], h);
  wait_for_previous();
  begin_page(start, 0);
  load_queries<D>(q_tile, a, row, h, group);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  const HeldRows<D, 1> left(Rows<D, 1>{q_tile});
  Running<D> run;
  const float c = a.scale * kLog2e;
  for (int page = start, stage = 0; page < pages; page += stride, stage ^= 1) {
    begin_page(page + stride, stage ^ 1);
    copy_commit();
    copy_wait<1>();
    __syncwarp();
    const unsigned tile = own + stage * kPageBytes<D>;
    float s[1][kNT][4];
    multiply_rows<D>(s, left, tile);
    if ((page + 1) * kPage > seen) mask_from(seen, page, s);
    run.add(s, tile + tile_bytes<D>(kPage), c);
    __syncwarp();
  }
  copy_wait<0>();
  __syncthreads();

  // The warps' results in shared memory, then one.
  float* const warps = reinterpret_cast<float*>(shared);
  run.keep(warps, warp, group);
  bf16* const out = a.out + row * a.ldo + static_cast<std::int64_t>(h) * group * D;
  if constexpr (Cluster > 1) return join_cluster<D, Warps, Cluster>(warps, min(pages, Warps * Cluster), group, c, out);
  __syncthreads();
  join_splits<D, Warps>(a, row - first, warps, group, c, parts, counters, out);
}

// Of blocks that have ended, by row and head; every call leaves zeros.
struct Counters {
  explicit Counters(Context& ctx) : memory(ctx, kMost * sizeof(unsigned)) { ctx.zero(memory.data(), kMost * sizeof(unsigned)); }
  static constexpr std::size_t kMost = 4096;
  Buffer memory;
};

// Into how many blocks the keys of a row and head are split: enough to fill the GPU, but only long ones, for putting the
// results together takes time.
int splits_for(Context& ctx, int blocks, std::int64_t longest) {
  constexpr std::int64_t kEnough = 768;  // positions for each
  const std::int64_t by_length = longest / kEnough, by_room = 2 * multiprocessors(ctx) / std::max(blocks, 1);
  return static_cast<int>(std::clamp<std::int64_t>(std::min(by_length, by_room), 1, kMostSplits));
}

// Whether it was launched: clusters of blocks, if the GPU has room for all of them at a time. (Clusters of two for eight rows took
// longer than blocks by themselves.)
bool by_clusters(Context& ctx, const PagedCall& call, int first, int n, std::int64_t longest, int head_dim) {
  constexpr int kCluster = 8;
  const int blocks = n * call.kv_heads;
  if (blocks * kCluster > multiprocessors(ctx) || splits_for(ctx, blocks, longest) > kCluster) return false;
  const auto launch = [&](auto kernel, int warps, int bytes) {
    if (!has_hopper_code(ctx, kernel)) return false;
    const dim3 grid(static_cast<unsigned>(call.kv_heads), static_cast<unsigned>(n), static_cast<unsigned>(kCluster));
    launch_early(ctx, kernel, {grid, kCluster}, 32 * warps, static_cast<std::size_t>(bytes), call, first, static_cast<float*>(nullptr),
                 static_cast<unsigned*>(nullptr));
    check_launch("attention_paged");
    return true;
  };
  if (head_dim == 64) return launch(decode_kernel<64, 4, kCluster>, 4, kShared<64, 4>);
  return launch(decode_kernel<128, 2, kCluster>, 2, kShared<128, 2>);
}

}  // namespace

void attention_paged_decode(Context& ctx, const PagedCall& call, int first, int n, std::int64_t longest, int head_dim) {
  const int blocks = n * call.kv_heads;
  if (by_clusters(ctx, call, first, n, longest, head_dim)) return;
  const int splits = static_cast<std::size_t>(blocks) <= Counters::kMost ? splits_for(ctx, blocks, longest) : 1;
  float* parts = nullptr;
  unsigned* counters = nullptr;
  if (splits > 1) {
    parts = static_cast<float*>(
        ctx.scratch(static_cast<std::size_t>(n) * static_cast<std::size_t>(call.heads * splits * (head_dim + 2)) * sizeof(float)));
    counters = static_cast<unsigned*>(ctx.keep<Counters>().memory.data());
  }
  const dim3 grid(static_cast<unsigned>(call.kv_heads), static_cast<unsigned>(n), static_cast<unsigned>(splits));
  const auto launch = [&](auto kernel, int warps, int bytes) {
    launch_early(ctx, kernel, grid, 32 * warps, static_cast<std::size_t>(bytes), call, first, parts, counters);
  };
  // Where there are many blocks, or little shared memory, they are small.
  const bool many = blocks >= multiprocessors(ctx) ||
                    shared_bytes(ctx) < static_cast<std::size_t>(std::max(kShared<64, 8>, kShared<128, 4>)) + kStaticShared;
  if (head_dim == 64 && many)
    launch(decode_kernel<64, 3, 1>, 3, kShared<64, 3>);
  else if (head_dim == 64)
    launch(decode_kernel<64, 8, 1>, 8, kShared<64, 8>);
  else if (many)
    launch(decode_kernel<128, 2, 1>, 2, kShared<128, 2>);
  else
    launch(decode_kernel<128, 4, 1>, 4, kShared<128, 4>);
  check_launch("attention_paged");
}

void reserve_attention_paged(Context& ctx, std::int64_t, std::int64_t, const AttentionShape& s) {
  // Splits are made only while all blocks together stay below two for each multiprocessor.
  const auto most = static_cast<std::size_t>(2 * multiprocessors(ctx) + kMostSplits) * static_cast<std::size_t>(s.heads / s.kv_heads);
  ctx.scratch(most * static_cast<std::size_t>(s.head_dim + 2) * sizeof(float));
  ctx.keep<Counters>();
}

}  // namespace bhyt::cuda
