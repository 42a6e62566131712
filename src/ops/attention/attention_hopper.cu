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
        base[r] = now;
        sum[r] *= shrink[r];
      }
    }
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i / 2] += s[0][n][i] = exp2_fast(fmaf(s[0][n][i], c, -base[i / 2] * c));
    return move;
  }
  // Once the base has moved.
  __device__ __forceinline__ void shrink_output(Block& o) const {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[0][n][i] *= shrink[i / 2];
  }
};

// At the end: the output divided by the sums of its exponentials, and lse where it is wanted.
template <class Queries>
__device__ __forceinline__ void finish(const Call& a, const Queries& own, const Softmax& softmax, Block& o) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = softmax.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float inverse = 1 / sum;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      o[0][n][2 * r] *= inverse;
      o[0][n][2 * r + 1] *= inverse;
    }
    const int t = own.w0 + 8 * r + lane() / 4;
    if (a.lse && t < a.seq && lane() % 4 == 0)
      a.lse[(static_cast<std::int64_t>(own.b) * a.heads + own.h) * a.seq + t] = softmax.base[r] * a.scale + logf(sum);
  }
}

template <class S, bool Documents>
__device__ __forceinline__ void forward(const Call& a, const Maps& maps) {
  extern __shared__ __align__(1024) char shared[];
  const Queries<S, Documents> own(a, maps, shared);
  const Ring<S>& ring = own.ring;
  const int h = own.h, b = own.b;
  own.start(S::kGroups * kTile, [&](int g, int row) { load_tile(own.base + g * kTile, maps.qkv, h * 64, row, b, ring.owned()); });

  const float c = a.scale * kLog2e;
  const std::uint64_t q = descriptor(own.base + own.group * kTile);
  Block s, o;
  Softmax softmax;
  const auto exponentials = [&](int step) {
    own.mask(s, step);
    return softmax(s, c);
  };
  flash::clear(o);
  barrier_wait(ring.owned(), 0);
  ring.wait(0);
  fence();
  multiply_rows(s, q, own.keys(0));
  commit();
  wait<0>();
  pin(s);
  exponentials(0);
  Left left(s);
  for (int step = 0; step + 1 < own.mine; ++step) {
    if (own.loads) own.load_keys(step + S::kLead);
    __syncwarp();
    ring.wait(step + 1);
    pin(left);
    fence();
    multiply_rows(s, q, own.keys(step + 1));
    commit();
    multiply_columns(o, left, own.values(step));
    commit();
    wait<1>();
    pin(s);
    const bool moved = exponentials(step + 1);
    wait<0>();
    pin(o);
    pin(left);
    ring.release(step);
    if (moved) softmax.shrink_output(o);
    left = Left(s);
  }
  pin(left);
  fence();
  multiply_columns(o, left, own.values(own.mine - 1));
  commit();
  wait<0>();
  pin(o);
  __syncthreads();  // nobody reads the queries any more

  finish(a, own, softmax, o);
  bf16* out = a.out + static_cast<std::int64_t>(b) * a.seq * a.ld_out + static_cast<std::int64_t>(h) * 64;
  flash::store_rows<64>(o, shared + own.group * kTile + own.warp % 4 * 16 * 128, out, a.ld_out, own.w0, a.seq);
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

bool attention_hopper(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  using S = wgmma::Chosen;
  if (s.head_dim != 64 || !flash::takes(s, qkv, out) || !wgmma::compiled_here(wgmma::forward_kernel<S, false>)) return false;
  const flash::Call call = flash::call_of(s, qkv, out, lse, first);
  wgmma::Maps maps{};
  if (!wgmma::make_map(maps.qkv, call.qkv, qkv.cols(), qkv.ld, call)) return false;
  wgmma::launch<S>(ctx, first ? wgmma::forward_kernel<S, true> : wgmma::forward_kernel<S, false>, call.heads, call, maps);
  check_launch("attention_hopper");
  return true;
}

}  // namespace bhyt::cuda
