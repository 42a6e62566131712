// Attention forward on Hopper's tensor cores: bf16, head width 64, causal, document masks. A warpgroup owns 64 queries of one head; tiles
// of keys and values stream past. The scores of the next tile are computed with the output of this one, and the exponentials run along with
// the latter.
#include "ops/attention/attention.cuh"
#include "ops/attention/wgmma.cuh"

namespace bhyt::cuda {

namespace wgmma {
namespace {

using flash::Call;
using flash::exp2_fast;
using flash::kLog2e;
using flash::lane;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Below any score, and finite: less itself it is zero.
constexpr float kLowest = -3e38f;

// Of rows lane/4 and lane/4 + 8: the score that exponentials are relative to, this lane's part of their sum, and by how much what was
// summed before must shrink. As in attention_flash.cu, the base moves only when exponentials would pass 2^kSlack.
struct Softmax {
  float base[2] = {kLowest, kLowest}, sum[2] = {0, 0}, shrink[2];

  // Scores to exponentials, 2^(c·(score - base)); whether the base of some row of the warp moved.
  __device__ __forceinline__ bool operator()(Block& s, float c) {
    constexpr float kSlack = 8;
    float top[2];
    bool move = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float t = -INFINITY;
#pragma unroll
      for (int n = 0; n < 8; ++n) t = fmaxf(t, fmaxf(s[0][n][2 * r], s[0][n][2 * r + 1]));
      t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
      top[r] = t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
      move = move || (t - base[r]) * c > kSlack;
    }
    move = __any_sync(0xffffffffu, move);
    if (move) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now = fmaxf(base[r], top[r]);
        shrink[r] = exp2_fast((base[r] - now) * c);
        base[r] = now, sum[r] *= shrink[r];
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i / 2] += s[0][n][i] = exp2_fast(fmaf(s[0][n][i], c, -base[i / 2] * c));
    return move;
  }
};

template <class S, bool Documents>
__device__ __forceinline__ void forward(const Call& a, const Maps& maps) {
  extern __shared__ __align__(1024) char room[];
  const unsigned base = flash::shared_address(room);
  const Ring<S> ring{base + S::kBarriers};
  // The last queries see the most keys: they begin first.
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * S::kOwned;
  const int h = blockIdx.x, b = blockIdx.z, kv = h / (a.heads / a.kv_heads);
  const std::int32_t* first = Documents ? a.first + static_cast<std::int64_t>(b) * a.seq : nullptr;
  const int warp = flash::warp_index(), group = warp / 4, r0 = q0 + group * kRows, w0 = r0 + warp % 4 * 16;  // its queries, the warp's
  const int begin = Documents ? first[q0] / kRows : 0, end = (min(q0 + S::kOwned, a.seq) - 1) / kRows + 1;
  const int steps = end - begin, mine = min(r0 / kRows + 1, end) - begin;
  const bool loads = warp == S::kGroups * 4 - 4 && lane() == 0;  // of the last warpgroup, which sees all tiles
  const auto load_keys = [&](int step) {
    if (step >= steps) return;
    ring.claim(step);
    const unsigned to = base + S::kStream + step % S::kStages * 2 * kTile, full = ring.full(step);
    barrier_arrive(full, 2 * kTile);
    load_tile(to, maps.qkv, (a.heads + kv) * 64, (begin + step) * kRows, b, full);
    load_tile(to + kTile, maps.qkv, (a.heads + a.kv_heads + kv) * 64, (begin + step) * kRows, b, full);
  };
  if (loads) ring.init();
  __syncthreads();
  if (loads) {
    barrier_arrive(ring.owned(), S::kGroups * kTile);
    for (int g = 0; g < S::kGroups; ++g) load_tile(base + g * kTile, maps.qkv, h * 64, q0 + g * kRows, b, ring.owned());
    for (int step = 0; step < S::kLead; ++step) load_keys(step);
  }
  __syncwarp();

  const float c = a.scale * kLog2e;
  int from[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) from[r] = Documents ? first[min(w0 + 8 * r + lane() / 4, a.seq - 1)] : 0;
  // Tiles before this one are not seen whole by all queries of the warpgroup.
  const int whole = Documents ? (first[min(r0 + kRows, a.seq) - 1] + kRows - 1) / kRows : 0;
  const std::uint64_t q = descriptor(base + group * kTile);
  const auto keys = [&](int step) { return descriptor(base + S::kStream + step % S::kStages * 2 * kTile); };
  const auto values = [&](int step) { return descriptor(base + S::kStream + step % S::kStages * 2 * kTile + kTile); };

  Block s, o;
  Softmax softmax;
  const auto exponentials = [&](int step) {
    const int tile = begin + step;
    if (tile * kRows == r0 || (Documents && tile < whole)) {
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = tile * kRows + 8 * n + lane() % 4 * 2 + i % 2, position = w0 + 8 * (i / 2) + lane() / 4;
          if (at > position || (Documents && at < from[i / 2])) s[0][n][i] = -INFINITY;
        }
    }
    return softmax(s, c);
  };
  flash::clear(o);
  barrier_wait(ring.owned(), 0);
  ring.wait(0);
  fence();
  multiply_rows(s, q, keys(0));
  commit();
  wait<0>();
  pin(s);
  exponentials(0);
  Left left(s);
  for (int step = 0; step + 1 < mine; ++step) {
    if (loads) load_keys(step + S::kLead);
    __syncwarp();
    ring.wait(step + 1);
    pin(left);
    fence();
    multiply_rows(s, q, keys(step + 1));
    commit();
    multiply_columns(o, left, values(step));
    commit();
    wait<1>();
    pin(s);
    const bool moved = exponentials(step + 1);
    wait<0>();
    pin(o), pin(left);
    ring.release(step);
    if (moved) {
#pragma unroll
      for (int n = 0; n < 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[0][n][i] *= softmax.shrink[i / 2];
    }
    left = Left(s);
  }
  pin(left);
  fence();
  multiply_columns(o, left, values(mine - 1));
  commit();
  wait<0>();
  pin(o);
  __syncthreads();  // nobody reads the queries any more

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float inverse = 1 / sum;
#pragma unroll
    for (int n = 0; n < 8; ++n) o[0][n][2 * r] *= inverse, o[0][n][2 * r + 1] *= inverse;
    const int t = w0 + 8 * r + lane() / 4;
    if (a.lse && t < a.seq && lane() % 4 == 0)
      a.lse[(static_cast<std::int64_t>(b) * a.heads + h) * a.seq + t] = softmax.base[r] * a.scale + logf(sum);
  }
  bf16* out = a.out + static_cast<std::int64_t>(b) * a.seq * a.ld_out + static_cast<std::int64_t>(h) * 64;
  flash::store_rows<64>(o, room + group * kTile + warp % 4 * 16 * 128, out, a.ld_out, w0, a.seq);
}

#endif

template <class S, bool Documents>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) forward_kernel(const Call a, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  forward<S, Documents>(a, maps);
#endif
}

using Chosen = Shape<2, 2, 4>;

}  // namespace
}  // namespace wgmma

bool attention_hopper(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  using S = wgmma::Chosen;
  if (s.head_dim != 64 || !flash::takes(s, qkv, out) || !wgmma::compiled_here(wgmma::forward_kernel<S, false>)) return false;
  const flash::Call call = flash::call_of(s, qkv, out, lse, first);
  wgmma::Maps maps{};
  if (!wgmma::make_map(maps.qkv, call.qkv, qkv.cols(), qkv.ld, call)) return false;
  wgmma::launch<S>(first ? wgmma::forward_kernel<S, true> : wgmma::forward_kernel<S, false>, call.heads, call, maps);
  check_launch("attention_hopper");
  return true;
}

}  // namespace bhyt::cuda
