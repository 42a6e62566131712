// Flash attention by mma.sync, forward: bf16, head widths 64 and 128, causal, document masks. A block owns 128 queries of one head, a warp
// 32 of them; key tiles stream through shared memory, two at a time, and the softmax runs along with them in registers.
#include <type_traits>

#include "ops/attention/attention.cuh"
#include "ops/attention/flash_queries.cuh"

namespace bhyt::cuda {

namespace flash {
namespace {

constexpr int kKeys = 64, kNT = kKeys / 8;
template <int D, bool Documents>
using Block = QueryBlock<D, Documents, kKeys>;
constexpr int kQueries = Block<64, false>::kQueries, kMT = Block<64, false>::kMT;
// Shared memory: the queries, the keys and values, then `first` of the queries.
template <int D>
constexpr int kTiles = tile_bytes<D>(kQueries) + Block<D, false>::kStream;
// Registers hold the fragments of Q only where the output leaves shared for them.
template <int D>
using Left = std::conditional_t<D == 64, HeldRows<D, kMT>, Rows<D, kMT>>;

// Below any score, and finite: less itself it is zero.
constexpr float kLowest = -3e38f;

// Of a warp's rows: the score that exponentials are relative to, and this lane's part of their sum.
struct Softmax {
  float base[kMT][2], sum[kMT][2];
  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < kMT; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        base[m][r] = kLowest;
        sum[m][r] = 0;
      }
  }
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
        for (int n = 0; n < D / 8; ++n) {
          o[m][n][2 * r] *= shrink;
          o[m][n][2 * r + 1] *= shrink;
        }
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

// At the end: the output divided by the sums of its exponentials, and lse where it is wanted.
template <int D, bool Documents>
__device__ __forceinline__ void finish(const Block<D, Documents>& own, const Queries<Documents, kMT>& queries, const Softmax& run,
                                       float (&o)[kMT][D / 8][4]) {
  const Call& a = own.a;
#pragma unroll
  for (int m = 0; m < kMT; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = run.sum[m][r];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float inverse = 1 / sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[m][n][2 * r] *= inverse;
        o[m][n][2 * r + 1] *= inverse;
      }
      const int t = queries.position(m, r);
      if (a.lse && t < a.seq && lane() % 4 == 0) a.lse[own.place_of(t)] = run.base[m][r] * a.scale + logf(sum);
    }
}

template <int D, bool Documents>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(const Call a) {
  extern __shared__ __align__(256) char shared[];
  const unsigned q_tile = shared_address(shared);
  const Block<D, Documents> own(a, q_tile + tile_bytes<D>(kQueries));
  load_tile<D, kQueries>(q_tile, own.q, a.ld, own.q0, a.seq);
  copy_commit();
  own.load_keys(own.begin);

  const int warp = warp_index(), mine = warp * tile_bytes<D>(16 * kMT);
  const auto queries = own.queries_of(warp, reinterpret_cast<int*>(shared + kTiles<D>));
  float o[kMT][D / 8][4];
  clear(o);
  Softmax run;
  copy_wait<1>();
  __syncthreads();
  const Left<D> left(Rows<D, kMT>{q_tile + mine});
  for (int n = own.begin; n < own.end; ++n) {
    own.wait_for_keys(n);
    if (!queries.see(n * kKeys, kKeys)) continue;
    float s[kMT][kNT][4];
    multiply_rows<D>(s, left, own.keys(n));
    if (!queries.all_see(n * kKeys, kKeys)) queries.hide(s, n * kKeys);
    online_softmax<D>(s, run, o, a.scale * kLog2e);
    multiply_columns<D>(o, Packed(s), own.values(n));
  }

  finish<D, Documents>(own, queries, run, o);
  store_rows<D>(o, shared + mine, a.out + own.sequence * a.ld_out + own.column, a.ld_out, queries.begin, a.seq);
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
