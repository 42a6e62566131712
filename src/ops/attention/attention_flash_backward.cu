// Flash attention by mma.sync, backward. Every gradient has one owner, so the result is the same in every run: one kernel owns queries and
// writes dQ, one owns keys and writes dK and dV, and both compute the scores they need again from lse.
//   P = exp(scale·QKᵀ - lse)   dV = Pᵀ·dO   dS = P∘(dO·Vᵀ - delta)   dQ = scale·dS·K   dK = scale·dSᵀ·Q
#include <type_traits>

#include "ops/attention/attention.cuh"
#include "ops/attention/flash.cuh"

namespace bhyt::cuda {

namespace flash {
namespace {

constexpr int kDeltaThreads = 256;

// delta: D/8 lanes for each row of each head.
template <int D>
__global__ void delta_kernel(const Call a) {
  constexpr int kLanes = D / 8;
  const std::int64_t rows = static_cast<std::int64_t>(a.batch) * a.seq * a.heads;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * (kDeltaThreads / kLanes) + threadIdx.x / kLanes;
  const std::int64_t row = min(i, rows - 1), n = row / a.heads, h = row % a.heads, column = h * D + threadIdx.x % kLanes * 8;
  float o[8], g[8], sum = 0;
  Vec<bf16>::load(a.out + n * a.ld_out + column, o);
  Vec<bf16>::load(a.dout + n * a.ld_dout + column, g);
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += o[k] * g[k];
#pragma unroll
  for (int k = kLanes / 2; k > 0; k >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, k);
  if (i < rows && threadIdx.x % kLanes == 0) a.delta[(n / a.seq * a.heads + h) * a.seq + n % a.seq] = sum;
}

// A block owns 128 queries of one head, a warp 32; key tiles stream through shared memory and are taken 32 keys at a time.
template <int D>
struct ByQuery {
  static constexpr int kMT = 2, kQueries = 16 * kMT * kWarps, kKeys = D == 64 ? 64 : 32, kPart = 32, kNT = kPart / 8;
  static constexpr int kTile = tile_bytes<D>(kKeys), kTiles = tile_bytes<D>(2 * kQueries) + 4 * kTile;
  static constexpr int kBytes = kTiles + kQueries * 4;  // the tiles, then `first` of the queries
  static_assert(kQueries == kThreads);
  using Left = std::conditional_t<D == 64, HeldRows<D, kMT>, Rows<D, kMT>>;
};

template <int D, bool Documents>
__global__ void __launch_bounds__(kThreads, 2) query_kernel(const Call a) {
  using At = ByQuery<D>;
  constexpr int kMT = At::kMT, kNT = At::kNT, kKeys = At::kKeys, kTile = At::kTile;
  extern __shared__ __align__(256) char shared[];
  const unsigned q_tile = shared_address(shared), g_tile = q_tile + tile_bytes<D>(At::kQueries),
                 k_tile = g_tile + tile_bytes<D>(At::kQueries), v_tile = k_tile + 2 * kTile;
  // The last queries see the most keys: they begin first.
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * At::kQueries;
  const int h = blockIdx.x, b = blockIdx.z, kv = h / (a.heads / a.kv_heads);
  const std::int64_t sequence = static_cast<std::int64_t>(b) * a.seq, column = static_cast<std::int64_t>(h) * D;
  const bf16* q = a.qkv + sequence * a.ld + column;
  const bf16* k = q + static_cast<std::int64_t>(a.heads + kv - h) * D;
  const std::int32_t* first = Documents ? a.first + sequence : nullptr;
  const int begin = Documents ? first[q0] / kKeys : 0, end = (min(q0 + At::kQueries, a.seq) - 1) / kKeys + 1;
  const auto load_keys = [&](int n) {
    load_tile<D, kKeys>(k_tile + n % 2 * kTile, k, a.ld, n * kKeys, a.seq, a.kv_heads * D, 2 * kTile);
    copy_commit();
  };
  load_tile<D, At::kQueries>(q_tile, q, a.ld, q0, a.seq);
  load_tile<D, At::kQueries>(g_tile, a.dout + sequence * a.ld_dout + column, a.ld_dout, q0, a.seq);
  copy_commit();
  load_keys(begin);

  const int warp = warp_index(), mine = warp * tile_bytes<D>(16 * kMT);
  int* firsts = reinterpret_cast<int*>(shared + At::kTiles);
  if (Documents) firsts[threadIdx.x] = first[min(q0 + static_cast<int>(threadIdx.x), a.seq - 1)];
  const Queries<Documents, kMT> queries(q0 + warp * 16 * kMT, a.seq, firsts + warp * 16 * kMT);
  const float c = a.scale * kLog2e;
  float lse[kMT][2], delta[kMT][2];
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t at = (static_cast<std::int64_t>(b) * a.heads + h) * a.seq + min(queries.position(m, r), a.seq - 1);
      lse[m][r] = a.lse[at] * kLog2e;
      delta[m][r] = a.delta[at];
    }
  float dq[kMT][D / 8][4];
  clear(dq);
  copy_wait<1>();
  __syncthreads();
  const typename At::Left left(Rows<D, kMT>{q_tile + mine}), left_g(Rows<D, kMT>{g_tile + mine});

  for (int n = begin; n < end; ++n) {
    copy_wait<0>();
    __syncthreads();  // tile n is there, and nobody reads tile n-1 any more
    if (n + 1 < end) load_keys(n + 1);
#pragma unroll 1
    for (int part = 0; part < kKeys; part += At::kPart) {
      const int k0 = n * kKeys + part;
      if (!queries.see(k0, At::kPart)) continue;
      const unsigned skip = n % 2 * kTile + tile_bytes<D>(part);
      float p[kMT][kNT][4], ds[kMT][kNT][4];
      multiply_rows<D>(p, left, k_tile + skip);
      multiply_rows<D>(ds, left_g, v_tile + skip);
      if (!queries.all_see(k0, At::kPart)) queries.hide(p, k0);
#pragma unroll
      for (int m = 0; m < kMT; ++m)
#pragma unroll
        for (int j = 0; j < kNT; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) ds[m][j][i] = exp2_fast(fmaf(p[m][j][i], c, -lse[m][i / 2])) * (ds[m][j][i] - delta[m][i / 2]);
      multiply_columns<D>(dq, Packed(ds), k_tile + skip);
    }
  }
  scale_by(dq, a.scale);
  store_rows<D>(dq, shared + mine, a.dqkv + sequence * a.ld_dqkv + column, a.ld_dqkv, queries.begin, a.seq);
}

// A block owns keys of one key/value head, a warp 32 or 16 of them (dK and dV fill its registers); the queries of all heads of the group
// stream through shared memory. Scores are kept transposed, keys by queries, so that they are left factors as they are.
template <int D>
struct ByKey {
  static constexpr int kMT = D == 64 ? 2 : 1, kKeys = 16 * kMT * kWarps, kQueries = 64, kPart = D == 64 ? 32 : 64, kNT = kPart / 8;
  static constexpr int kTile = tile_bytes<D>(kQueries), kStats = 3 * kQueries * 4;  // lse, delta, first of a tile's queries
  static constexpr int kBytes = tile_bytes<D>(2 * kKeys) + 4 * kTile + 2 * kStats;
};

// f(element, its column's value, indices) for all elements of c; values: one for each column.
template <int MT, int NT, class F>
__device__ __forceinline__ void each_column(float (&c)[MT][NT][4], const float* values, const F& f) {
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const float2 v = *reinterpret_cast<const float2*>(values + 8 * n + lane() % 4 * 2);
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) f(c[m][n][i], i % 2 == 0 ? v.x : v.y, m, n, i);
  }
}

// A warp's keys by the queries of one part of a tile, the first of them at q0: scores of keys that a query does not see become -∞.
template <bool Documents, int MT, int NT>
__device__ __forceinline__ void hide_from_queries(float (&s)[MT][NT][4], int key, int q0, const std::int32_t* first) {
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = 8 * n + lane() % 4 * 2 + e, begin = Documents ? first[i] : 0;
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int at = key + 16 * m + 8 * r + lane() / 4;
          if (at > q0 + i || at < begin) s[m][n][2 * r + e] = -INFINITY;
        }
    }
}

template <int D, bool Documents>
__global__ void __launch_bounds__(kThreads, 2) key_kernel(const Call a) {
  using At = ByKey<D>;
  constexpr int kMT = At::kMT, kNT = At::kNT, kQueries = At::kQueries, kTile = At::kTile;
  extern __shared__ __align__(256) char shared[];
  const unsigned k_tile = shared_address(shared), v_tile = k_tile + tile_bytes<D>(At::kKeys), q_tile = v_tile + tile_bytes<D>(At::kKeys),
                 g_tile = q_tile + 2 * kTile;
  char* stats = shared + tile_bytes<D>(2 * At::kKeys) + 4 * kTile;
  const int k0 = static_cast<int>(blockIdx.y) * At::kKeys;
  const int kv = blockIdx.x, b = blockIdx.z, group = a.heads / a.kv_heads;
  const std::int64_t sequence = static_cast<std::int64_t>(b) * a.seq, column = static_cast<std::int64_t>(a.heads + kv) * D;
  const bf16* k = a.qkv + sequence * a.ld + column;
  const std::int32_t* first = Documents ? a.first + sequence : nullptr;
  const int last = a.seq - 1;
  // The queries that see some of the block's keys, in whole tiles, for each head of the group.
  const int q_begin = k0 / kQueries * kQueries, q_end = Documents ? end_of_view(first, min(k0 + At::kKeys - 1, last), k0, a.seq) : a.seq;
  const int steps = (q_end - q_begin + kQueries - 1) / kQueries * group;
  const auto load_queries = [&](int step, int h, int q0) {
    const std::int64_t columns = static_cast<std::int64_t>(h) * D;
    load_tile<D, kQueries>(q_tile + step % 2 * kTile, a.qkv + sequence * a.ld + columns, a.ld, q0, a.seq);
    load_tile<D, kQueries>(g_tile + step % 2 * kTile, a.dout + sequence * a.ld_dout + columns, a.ld_dout, q0, a.seq);
    // Queries after the end: Q, dO, lse and delta are zeros and add nothing.
    const int i = threadIdx.x % kQueries, t = min(q0 + i, last);
    const unsigned to = shared_address(stats) + step % 2 * At::kStats + 4 * i;
    const std::int64_t at = (static_cast<std::int64_t>(b) * a.heads + h) * a.seq + t;
    if (threadIdx.x < kQueries) {
      copy_async4(to, a.lse + at, q0 + i <= last);
      if (Documents) copy_async4(to + 8 * kQueries, first + t, true);
    } else {
      copy_async4(to + 4 * kQueries, a.delta + at, q0 + i <= last);
    }
    copy_commit();
  };
  load_tile<D, At::kKeys>(k_tile, k, a.ld, k0, a.seq, a.kv_heads * D, tile_bytes<D>(At::kKeys));
  load_queries(0, kv * group, q_begin);

  const int warp = warp_index(), mine = warp * tile_bytes<D>(16 * kMT);
  const int w0 = k0 + warp * 16 * kMT, w1 = min(w0 + 16 * kMT - 1, last);  // the warp's keys
  const Rows<D, kMT> left{k_tile + mine}, left_v{v_tile + mine};
  const float c = a.scale * kLog2e;
  float dk[kMT][D / 8][4], dv[kMT][D / 8][4];
  clear(dk);
  clear(dv);

  for (int step = 0, tile = q_begin, h = kv * group; step < steps; ++step) {
    copy_wait<0>();
    __syncthreads();  // this step's queries are there, and nobody reads the ones before
    const int now = tile;
    tile += kQueries;
    if (tile >= q_end) {
      tile = q_begin;
      ++h;
    }
    if (step + 1 < steps) load_queries(step + 1, h, tile);
    const char* stat = stats + step % 2 * At::kStats;
#pragma unroll 1
    for (int part = 0; part < kQueries; part += At::kPart) {
      const int q0 = now + part;
      const float* lse = reinterpret_cast<const float*>(stat) + part;
      const float* delta = lse + kQueries;
      const std::int32_t* from = reinterpret_cast<const std::int32_t*>(stat) + 2 * kQueries + part;
      if (w0 > last || q0 > last || q0 + At::kPart <= w0 || (Documents && from[0] > w1)) continue;
      const unsigned skip = step % 2 * kTile + tile_bytes<D>(part);
      float p[kMT][kNT][4], ds[kMT][kNT][4];
      multiply_rows<D>(p, left, q_tile + skip);
      if (q0 < w1 || (Documents && from[At::kPart - 1] > w0)) hide_from_queries<Documents>(p, w0, q0, from);
      each_column(p, lse, [&](float& x, float l, int, int, int) { x = exp2_fast(fmaf(x, c, -l * kLog2e)); });
      multiply_columns<D>(dv, Packed(p), g_tile + skip);
      multiply_rows<D>(ds, left_v, g_tile + skip);
      each_column(ds, delta, [&](float& x, float d, int m, int n, int i) { x = p[m][n][i] * (x - d); });
      multiply_columns<D>(dk, Packed(ds), q_tile + skip);
    }
  }
  scale_by(dk, a.scale);
  bf16* to = a.dqkv + sequence * a.ld_dqkv + column;
  store_rows<D>(dk, shared + mine, to, a.ld_dqkv, w0, a.seq);
  store_rows<D>(dv, shared + tile_bytes<D>(At::kKeys) + mine, to + static_cast<std::int64_t>(a.kv_heads) * D, a.ld_dqkv, w0, a.seq);
}

template <int D>
void backward(Context& ctx, const Call& call) {
  const std::int64_t rows = static_cast<std::int64_t>(call.batch) * call.seq * call.heads;
  delta_kernel<D><<<blocks_for(rows, kDeltaThreads / (D / 8)), kDeltaThreads, 0, stream(ctx)>>>(call);
  const unsigned batch = static_cast<unsigned>(call.batch);
  const dim3 queries(static_cast<unsigned>(call.heads), blocks_for(call.seq, ByQuery<D>::kQueries), batch);
  const dim3 keys(static_cast<unsigned>(call.kv_heads), blocks_for(call.seq, ByKey<D>::kKeys), batch);
  launch(ctx, call.first ? query_kernel<D, true> : query_kernel<D, false>, queries, ByQuery<D>::kBytes, call);
  launch(ctx, call.first ? key_kernel<D, true> : key_kernel<D, false>, keys, ByKey<D>::kBytes, call);
}

}  // namespace
}  // namespace flash

bool attention_flash_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                              const Tensor& dout, const Tensor& dqkv, const AttentionShape& s) {
  if (!flash::takes(s, qkv, out) || !flash::takes(s, dqkv, dout)) return false;
  flash::Call call = flash::call_of(s, qkv, out, lse, first);
  call.dout = dout.as<bf16>();
  call.ld_dout = static_cast<int>(dout.ld);
  call.dqkv = dqkv.as<bf16>();
  call.ld_dqkv = static_cast<int>(dqkv.ld);
  call.delta = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(s.batch * s.heads * s.seq) * sizeof(float)));
  if (s.head_dim == 64)
    flash::backward<64>(ctx, call);
  else
    flash::backward<128>(ctx, call);
  check_launch("attention_flash_backward");
  return true;
}

}  // namespace bhyt::cuda
