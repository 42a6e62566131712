// Flash attention by mma.sync, forward: bf16, head widths 64 and 128, causal, document masks. A block owns 128 queries of one head, a warp
// 32 of them; key tiles stream through shared memory, two at a time, and the softmax runs along with them in registers.
#include <type_traits>

#include "ops/attention/attention.cuh"
#include "ops/attention/flash.cuh"

namespace bhyt::cuda {

namespace flash {
namespace {

constexpr int kQueries = 128, kKeys = 64, kMT = kQueries / kWarps / 16, kNT = kKeys / 8;
static_assert(kQueries == kThreads);
template <int D>
constexpr int kTiles = tile_bytes<D>(kQueries + 4 * kKeys);  // shared memory: the tiles, then `first` of the queries
// Registers hold the fragments of Q only where the output leaves shared for them.
template <int D>
using Left = std::conditional_t<D == 64, HeldRows<D, kMT>, Rows<D, kMT>>;

// Below any score, and finite: less itself it is zero.
constexpr float kLowest = -3e38f;

// Of a warp's rows: the score that exponentials are relative to, and this lane's part of their sum.
struct Softmax {
  float base[kMT][2], sum[kMT][2];
};

// Scores to exponentials, 2^(c·(score - base)). The base is not always the largest score so far: it moves, and what was summed shrinks,
// only when exponentials would pass 2^kSlack, which after the first keys is rare.
template <int D>
__device__ __forceinline__ void online_softmax(float (&s)[kMT][kNT][4], Softmax& run, float (&o)[kMT][D / 8][4], float c) {
  constexpr float kSlack = 8;
  float top[kMT][2];
  bool move = false;
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float t = -INFINITY;
#pragma unroll
      for (int n = 0; n < kNT; ++n) t = fmaxf(t, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
      top[m][r] = t;
      move = move || (t - run.base[m][r]) * c > kSlack;
    }
  if (__any_sync(0xffffffffu, move)) {
#pragma unroll
    for (int m = 0; m < kMT; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float base = fmaxf(run.base[m][r], top[m][r]), shrink = exp2_fast((run.base[m][r] - base) * c);
        run.base[m][r] = base;
        run.sum[m][r] *= shrink;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) o[m][n][2 * r] *= shrink, o[m][n][2 * r + 1] *= shrink;
      }
  }
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = run.base[m][r] * c;
#pragma unroll
      for (int n = 0; n < kNT; ++n)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) run.sum[m][r] += s[m][n][i] = exp2_fast(fmaf(s[m][n][i], c, -base));
    }
}

template <int D, bool Documents>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(const Call a) {
  extern __shared__ __align__(256) char shared[];
  constexpr int kTile = tile_bytes<D>(kKeys);
  const unsigned q_tile = shared_address(shared), k_tile = q_tile + tile_bytes<D>(kQueries), v_tile = k_tile + 2 * kTile;
  // The last queries see the most keys: they begin first.
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * kQueries;
  const int h = blockIdx.x, b = blockIdx.z, kv = h / (a.heads / a.kv_heads);
  const bf16* q = a.qkv + static_cast<std::int64_t>(b) * a.seq * a.ld + static_cast<std::int64_t>(h) * D;
  const bf16* k = q + static_cast<std::int64_t>(a.heads + kv - h) * D;
  const std::int32_t* first = Documents ? a.first + static_cast<std::int64_t>(b) * a.seq : nullptr;
  const int begin = Documents ? first[q0] / kKeys : 0, end = (min(q0 + kQueries, a.seq) - 1) / kKeys + 1;
  const auto load_keys = [&](int n) {
    load_tile<D, kKeys>(k_tile + n % 2 * kTile, k, a.ld, n * kKeys, a.seq, a.kv_heads * D, 2 * kTile);
    copy_commit();
  };
  load_tile<D, kQueries>(q_tile, q, a.ld, q0, a.seq);
  copy_commit();
  load_keys(begin);

  const int warp = warp_index(), mine = warp * tile_bytes<D>(16 * kMT);
  int* firsts = reinterpret_cast<int*>(shared + kTiles<D>);
  if (Documents) firsts[threadIdx.x] = first[min(q0 + static_cast<int>(threadIdx.x), a.seq - 1)];
  const Queries<Documents, kMT> queries(q0 + warp * 16 * kMT, a.seq, firsts + warp * 16 * kMT);
  float o[kMT][D / 8][4];
  clear(o);
  Softmax run;
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) run.base[m][r] = kLowest, run.sum[m][r] = 0;
  copy_wait<1>();
  __syncthreads();
  const Left<D> left(Rows<D, kMT>{q_tile + mine});
  for (int n = begin; n < end; ++n) {
    copy_wait<0>();
    __syncthreads();  // tile n is there, and nobody reads tile n-1 any more
    if (n + 1 < end) load_keys(n + 1);
    if (!queries.see(n * kKeys, kKeys)) continue;
    float s[kMT][kNT][4];
    multiply_rows<D>(s, left, k_tile + n % 2 * kTile);
    if (!queries.all_see(n * kKeys, kKeys)) queries.hide(s, n * kKeys);
    online_softmax<D>(s, run, o, a.scale * kLog2e);
    multiply_columns<D>(o, Packed(s), v_tile + n % 2 * kTile);
  }

#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = run.sum[m][r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = 1 / sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) o[m][n][2 * r] *= inverse, o[m][n][2 * r + 1] *= inverse;
      const int t = queries.position(m, r);
      if (a.lse && t < a.seq && lane() % 4 == 0)
        a.lse[(static_cast<std::int64_t>(b) * a.heads + h) * a.seq + t] = run.base[m][r] * a.scale + logf(sum);
    }
  bf16* out = a.out + static_cast<std::int64_t>(b) * a.seq * a.ld_out + static_cast<std::int64_t>(h) * D;
  store_rows<D>(o, shared + mine, out, a.ld_out, queries.begin, a.seq);
}

template <int D>
void forward(Context& ctx, const Call& call) {
  const dim3 grid(static_cast<unsigned>(call.heads), blocks_for(call.seq, kQueries), static_cast<unsigned>(call.batch));
  constexpr int kBytes = kTiles<D> + kQueries * 4;
  launch(ctx, call.first ? forward_kernel<D, true> : forward_kernel<D, false>, grid, kBytes, call);
}

}  // namespace
}  // namespace flash

bool attention_flash(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  if (!flash::takes(s, qkv, out)) return false;
  const flash::Call call = flash::call_of(s, qkv, out, lse, first);
  if (s.head_dim == 64)
    flash::forward<64>(ctx, call);
  else
    flash::forward<128>(ctx, call);
  check_launch("attention_flash");
  return true;
}

}  // namespace bhyt::cuda
