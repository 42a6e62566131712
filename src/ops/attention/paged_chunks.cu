// Attention of pieces of a prompt over pages, by mma.sync. A block has some positions of a piece and one key/value head: 64 rows of a
// product, the query heads of the group for each position. Tiles of two pages stream through shared memory, two at a time.
#include <vector>

#include "ops/attention/paged.cuh"

namespace bhyt::cuda {

namespace {

using namespace flash;

constexpr int kRows = 64, kKeys = 2 * kPage, kNT = kKeys / 8;
constexpr float kLowest = -3e38f;

template <int D>
constexpr int kTileBytes = tile_bytes<D>(kKeys);
template <int D>
constexpr int kShared = tile_bytes<D>(kRows) + 4 * kTileBytes<D>;

// Which rows a block has: the first of them and how many.
constexpr int kMostBlocks = 440;  // in one launch: its parameters stay below 4 KB
struct Blocks {
  std::int32_t row[kMostBlocks];
  std::int32_t rows[kMostBlocks];
};

// Begins to copy the keys and values of positions key … key+63 of one head; zeros from `end` on.
template <int D>
__device__ __forceinline__ void load_keys(unsigned tile, const PagedCall& a, const std::int32_t* table, int h, int key, int end) {
  constexpr int kChunks = D / 8, kStep = kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks, begin = threadIdx.x / kChunks;
  const std::int64_t value_at = static_cast<std::int64_t>(a.kv_heads) * D;
#pragma unroll
  for (int i = 0; i < kKeys / kStep; ++i) {
    const int r = begin + i * kStep, at = key + r;
    const bool real = at < end;
    const std::int64_t row = real ? static_cast<std::int64_t>(table[at / kPage]) * kPage + at % kPage : 0;
    const bf16* from = a.pages + row * a.ld + static_cast<std::int64_t>(h) * D + chunk * 8;
    const unsigned to = tile + place<D>(r, chunk);
    copy_async16(to, from, real);
    copy_async16(to + 2 * kTileBytes<D>, from + value_at, real);
  }
  copy_commit();
}

// Begins to copy the group's queries of `n` positions; zeros behind them.
template <int D>
__device__ __forceinline__ void load_queries(unsigned tile, const PagedCall& a, int first, int n, int h, int group) {
  constexpr int kChunks = D / 8;
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int r = i / kChunks, chunk = i % kChunks;
    const bool real = r < n * group;
    const bf16* from = a.q + (first + (real ? r / group : 0)) * a.ldq + (static_cast<std::int64_t>(h) * group + r % group) * D + chunk * 8;
    copy_async16(tile + place<D>(r, chunk), from, real);
  }
  copy_commit();
}

// No weight for positions behind `sees` in tile t, of the scores of a lane's row r.
__device__ __forceinline__ void mask_behind(int sees, int t, int r, float (&s)[1][kNT][4]) {
#pragma unroll
  for (int i = 0; i < kNT; ++i)
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (t * kKeys + 8 * i + lane() % 4 * 2 + e > sees) s[0][i][2 * r + e] = -INFINITY;
}

// A warp's rows of `n` positions from `first` on, of the group behind key/value head h.
template <int D>
__device__ __forceinline__ void store_rows(const PagedCall& a, const float (&o)[1][D / 8][4], float (&sum)[2], int first, int n, int h,
                                           int group, int warp) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    const int row = warp * 16 + lane() / 4 + 8 * r;
    if (row >= n * group) continue;
    bf16* const to = a.out + (first + row / group) * a.ldo + (static_cast<std::int64_t>(h) * group + row % group) * D;
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
      *reinterpret_cast<unsigned*>(to + 8 * i + lane() % 4 * 2) = pack(o[0][i][2 * r] / sum[r], o[0][i][2 * r + 1] / sum[r]);
  }
}

template <int D>
__global__ void __launch_bounds__(kThreads, 2) chunk_kernel(const PagedCall a, const Blocks blocks) {
  extern __shared__ __align__(256) char shared[];
  const int h = blockIdx.x, group = a.heads / a.kv_heads, first = blocks.row[blockIdx.y], n = blocks.rows[blockIdx.y], warp = warp_index();
  const unsigned q_tile = shared_address(shared), stream = q_tile + tile_bytes<D>(kRows);
  const std::int32_t* const table = a.at.pages_of(first);
  const int position = a.at.positions[first], end = position + n;  // of the keys that the last row sees
  load_queries<D>(q_tile, a, first, n, h, group);
  load_keys<D>(stream, a, table, h, 0, end);
  copy_wait<1>();
  __syncthreads();
  const HeldRows<D, 1> left(Rows<D, 1>{q_tile + warp * tile_bytes<D>(16)});
  float o[1][D / 8][4], base[2] = {kLowest, kLowest}, sum[2] = {0, 0};
  clear(o);
  int sees[2];  // the last position that each of this lane's two rows sees
#pragma unroll
  for (int r = 0; r < 2; ++r) sees[r] = position + min((warp * 16 + lane() / 4 + 8 * r) / group, n - 1);
  const float c = a.scale * kLog2e;
  const int tiles = (end + kKeys - 1) / kKeys;
  for (int t = 0; t < tiles; ++t) {
    copy_wait<0>();
    __syncthreads();  // nobody reads the tile before any more
    if (t + 1 < tiles) load_keys<D>(stream + (t + 1) % 2 * kTileBytes<D>, a, table, h, (t + 1) * kKeys, end);
    const unsigned keys = stream + t % 2 * kTileBytes<D>;
    float s[1][kNT][4];
    multiply_rows<D>(s, left, keys);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if ((t + 1) * kKeys > position) mask_behind(sees[r], t, r, s);
      float top = base[r];
#pragma unroll
      for (int i = 0; i < kNT; ++i) top = fmaxf(top, fmaxf(s[0][i][2 * r], s[0][i][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float shrink = exp2_fast((base[r] - top) * c);
      base[r] = top;
      sum[r] *= shrink;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        o[0][i][2 * r] *= shrink;
        o[0][i][2 * r + 1] *= shrink;
      }
#pragma unroll
      for (int i = 0; i < kNT; ++i)
#pragma unroll
        for (int e = 2 * r; e < 2 * r + 2; ++e) sum[r] += s[0][i][e] = exp2_fast((s[0][i][e] - top) * c);
    }
    multiply_columns<D>(o, Packed(s), keys + 2 * kTileBytes<D>);
  }
  store_rows<D>(a, o, sum, first, n, h, group, warp);
}

}  // namespace

void attention_paged_chunks(Context& ctx, const PagedCall& call, std::span<const PagedPiece> pieces, int head_dim) {
  const std::int64_t positions = kRows / (call.heads / call.kv_heads);
  Blocks blocks;
  int count = 0;
  const auto launch = [&] {
    if (count == 0) return;
    const auto start = [&](auto kernel, int bytes) {
      BHYT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
      kernel<<<dim3(static_cast<unsigned>(call.kv_heads), static_cast<unsigned>(count)), kThreads, bytes, stream(ctx)>>>(call, blocks);
    };
    if (head_dim == 64)
      start(chunk_kernel<64>, kShared<64>);
    else
      start(chunk_kernel<128>, kShared<128>);
    count = 0;
  };
  for (const PagedPiece& p : pieces)
    for (std::int64_t at = 0; at < p.rows; at += positions) {
      blocks.row[count] = static_cast<std::int32_t>(p.row + at);
      blocks.rows[count] = static_cast<std::int32_t>(std::min(positions, p.rows - at));
      if (++count == kMostBlocks) launch();
    }
  launch();
  check_launch("attention_paged");
}

}  // namespace bhyt::cuda
