// Flash attention by mma.sync, backward. Every gradient has one owner, so the result is the same in every run: one kernel owns queries and
// writes dQ, one owns keys and writes dK and dV, and both compute the scores they need again from lse.
//   P = exp(scale·QKᵀ - lse)   dV = Pᵀ·dO   dS = P∘(dO·Vᵀ - delta)   dQ = scale·dS·K   dK = scale·dSᵀ·Q
#include <type_traits>

#include "ops/attention/attention.cuh"
#include "ops/attention/flash_queries.cuh"

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
  static constexpr int kKeys = D == 64 ? 64 : 32, kPart = 32, kNT = kPart / 8;
  template <bool Documents>
  using Block = QueryBlock<D, Documents, kKeys>;
  static constexpr int kQueries = Block<false>::kQueries, kMT = Block<false>::kMT;
  static constexpr int kTiles = tile_bytes<D>(2 * kQueries) + Block<false>::kStream;
  static constexpr int kBytes = kTiles + kQueries * 4;  // the tiles, then `first` of the queries
  using Left = std::conditional_t<D == 64, HeldRows<D, kMT>, Rows<D, kMT>>;
};

// Of a warp's queries: lse, for exponentials of base 2, and delta.
template <int MT>
struct RowStats {
  float lse[MT][2], delta[MT][2];
  template <class Block, class Queries>
  __device__ __forceinline__ RowStats(const Block& own, const Queries& queries) {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::int64_t at = own.place_of(min(queries.position(m, r), own.a.seq - 1));
        lse[m][r] = own.a.lse[at] * kLog2e;
        delta[m][r] = own.a.delta[at];
      }
  }
  // dS from the scores and dO·Vᵀ, which it takes the place of.
  template <int NT>
  __device__ __forceinline__ void gradient(const float (&s)[MT][NT][4], float (&ds)[MT][NT][4], float c) const {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) ds[m][j][i] = exp2_fast(fmaf(s[m][j][i], c, -lse[m][i / 2])) * (ds[m][j][i] - delta[m][i / 2]);
  }
};

template <int D, bool Documents>
__global__ void __launch_bounds__(kThreads, 2) query_kernel(const Call a) {
  using At = ByQuery<D>;
  constexpr int kMT = At::kMT, kNT = At::kNT, kKeys = At::kKeys, kPart = At::kPart;
  extern __shared__ __align__(256) char shared[];
  const unsigned q_tile = shared_address(shared), g_tile = q_tile + tile_bytes<D>(At::kQueries);
  const typename At::template Block<Documents> own(a, g_tile + tile_bytes<D>(At::kQueries));
  load_tile<D, At::kQueries>(q_tile, own.q, a.ld, own.q0, a.seq);
  load_tile<D, At::kQueries>(g_tile, a.dout + own.sequence * a.ld_dout + own.column, a.ld_dout, own.q0, a.seq);
  copy_commit();
  own.load_keys(own.begin);

  const int warp = warp_index(), mine = warp * tile_bytes<D>(16 * kMT);
  const auto queries = own.queries_of(warp, reinterpret_cast<int*>(shared + At::kTiles));
  const RowStats<kMT> stats(own, queries);
  float dq[kMT][D / 8][4];
  clear(dq);
  copy_wait<1>();
  __syncthreads();
  const typename At::Left left(Rows<D, kMT>{q_tile + mine}), left_g(Rows<D, kMT>{g_tile + mine});

  for (int n = own.begin; n < own.end; ++n) {
    own.wait_for_keys(n);
#pragma unroll 1
    for (int part = 0; part < kKeys; part += kPart) {
      const int k0 = n * kKeys + part;
      if (!queries.see(k0, kPart)) continue;
      float s[kMT][kNT][4], ds[kMT][kNT][4];
      multiply_rows<D>(s, left, own.keys(n, part));
      multiply_rows<D>(ds, left_g, own.values(n, part));
      if (!queries.all_see(k0, kPart)) queries.hide(s, k0);
      stats.gradient(s, ds, a.scale * kLog2e);
      multiply_columns<D>(dq, Packed(ds), own.keys(n, part));
    }
  }
  scale_by(dq, a.scale);
  store_rows<D>(dq, shared + mine, a.dqkv + own.sequence * a.ld_dqkv + own.column, a.ld_dqkv, queries.begin, a.seq);
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

// A block's keys, and the queries that see some of them, in whole tiles, for each head of the group: the steps of its loop.
template <int D, bool Documents>
struct KeyBlock {
  using At = ByKey<D>;
  static constexpr int kQueries = At::kQueries;
  const Call& a;
  const char* shared;  // tiles of the keys and values, then two each of Q and dO, then two times lse, delta and first
  unsigned k_tile = shared_address(shared), v_tile = k_tile + tile_bytes<D>(At::kKeys), q_tile = v_tile + tile_bytes<D>(At::kKeys);
  const char* stats = shared + tile_bytes<D>(2 * At::kKeys) + 4 * At::kTile;
  int k0 = static_cast<int>(blockIdx.y) * At::kKeys, kv = blockIdx.x, b = blockIdx.z, group = a.heads / a.kv_heads, last = a.seq - 1;
  std::int64_t sequence = static_cast<std::int64_t>(b) * a.seq, column = static_cast<std::int64_t>(a.heads + kv) * D;
  const bf16* k = a.qkv + sequence * a.ld + column;
  const std::int32_t* first = Documents ? a.first + sequence : nullptr;
  int begin = k0 / kQueries * kQueries, end = Documents ? end_of_view(first, min(k0 + At::kKeys - 1, last), k0, a.seq) : a.seq;
  int steps = (end - begin + kQueries - 1) / kQueries * group;

  __device__ __forceinline__ KeyBlock(const Call& call, const char* memory) : a(call), shared(memory) {}
  // Of a step's tile of queries, from row `part` on.
  __device__ __forceinline__ unsigned queries(int step, int part = 0) const {
    return q_tile + (step % 2 * At::kTile + tile_bytes<D>(part));
  }
  __device__ __forceinline__ unsigned douts(int step, int part = 0) const {
    return q_tile + 2 * At::kTile + (step % 2 * At::kTile + tile_bytes<D>(part));
  }
  __device__ __forceinline__ void load_keys() const {
    load_tile<D, At::kKeys>(k_tile, k, a.ld, k0, a.seq, a.kv_heads * D, tile_bytes<D>(At::kKeys));
  }
  // Of head h, from q0 on. Queries after the end: Q, dO, lse and delta are zeros and add nothing.
  __device__ __forceinline__ void load_queries(int step, int h, int q0) const {
    const std::int64_t columns = static_cast<std::int64_t>(h) * D;
    load_tile<D, kQueries>(queries(step), a.qkv + sequence * a.ld + columns, a.ld, q0, a.seq);
    load_tile<D, kQueries>(douts(step), a.dout + sequence * a.ld_dout + columns, a.ld_dout, q0, a.seq);
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
  }
};

template <int D, bool Documents>
__global__ void __launch_bounds__(kThreads, 2) key_kernel(const Call a) {
  using At = ByKey<D>;
  constexpr int kMT = At::kMT, kNT = At::kNT, kQueries = At::kQueries;
  extern __shared__ __align__(256) char shared[];
  const KeyBlock<D, Documents> own(a, shared);
  own.load_keys();
  own.load_queries(0, own.kv * own.group, own.begin);

  const int warp = warp_index(), mine = warp * tile_bytes<D>(16 * kMT);
  const int w0 = own.k0 + warp * 16 * kMT, w1 = min(w0 + 16 * kMT - 1, own.last);  // the warp's keys
  const Rows<D, kMT> left{own.k_tile + mine}, left_v{own.v_tile + mine};
  const float c = a.scale * kLog2e;
  float dk[kMT][D / 8][4], dv[kMT][D / 8][4];
  clear(dk);
  clear(dv);

  for (int step = 0, tile = own.begin, h = own.kv * own.group; step < own.steps; ++step) {
    copy_wait<0>();
    __syncthreads();  // this step's queries are there, and nobody reads the ones before
    const int now = tile;
    tile += kQueries;
    if (tile >= own.end) {
      tile = own.begin;
      ++h;
    }
    if (step + 1 < own.steps) own.load_queries(step + 1, h, tile);
    const char* stat = own.stats + step % 2 * At::kStats;
#pragma unroll 1
    for (int part = 0; part < kQueries; part += At::kPart) {
      const int q0 = now + part;
      const float* lse = reinterpret_cast<const float*>(stat) + part;
      const float* delta = lse + kQueries;
      const std::int32_t* from = reinterpret_cast<const std::int32_t*>(stat) + 2 * kQueries + part;
      if (w0 > own.last || q0 > own.last || q0 + At::kPart <= w0 || (Documents && from[0] > w1)) continue;
      const unsigned q = own.queries(step, part), g = own.douts(step, part);
      float p[kMT][kNT][4], ds[kMT][kNT][4];
      multiply_rows<D>(p, left, q);
      if (q0 < w1 || (Documents && from[At::kPart - 1] > w0)) hide_from_queries<Documents>(p, w0, q0, from);
      each_column(p, lse, [&](float& x, float l, int, int, int) { x = exp2_fast(fmaf(x, c, -l * kLog2e)); });
      multiply_columns<D>(dv, Packed(p), g);
      multiply_rows<D>(ds, left_v, g);
      each_column(ds, delta, [&](float& x, float d, int m, int n, int i) { x = p[m][n][i] * (x - d); });
      multiply_columns<D>(dk, Packed(ds), q);
    }
  }
  scale_by(dk, a.scale);
  bf16* to = a.dqkv + own.sequence * a.ld_dqkv + own.column;
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
