// Attention backward on Hopper's tensor cores: bf16, head width 64, causal, document masks. The scheme is that of attention_flash_backward:
// one kernel owns queries and writes dQ, one owns keys and writes dK and dV, so the result is the same in every run. What is new: a
// warpgroup owns 64 rows, P and dS go from product to product in registers, and every other factor is read from tiles in shared memory.
//   P = exp(scale·QKᵀ - lse)   dV = Pᵀ·dO   dS = P∘(dO·Vᵀ - delta)   dQ = scale·dS·K   dK = scale·dSᵀ·Q

#include "ops/attention/attention.cuh"
#include "ops/attention/wgmma_keys.cuh"

namespace bhyt::cuda {

namespace wgmma {
namespace {

using flash::Call;
using flash::exp2_fast;
using flash::kLog2e;
using flash::lane;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of a warp's 16 queries from `begin` on: their rows of the output, asked for early, and delta, once dO is in its tile.
struct Deltas {
  uint4 out[4];  // of query 4·i + lane/8, the chunk lane % 8

  __device__ __forceinline__ Deltas(const Call& a, int b, int h, int begin) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = static_cast<std::int64_t>(b) * a.seq + min(begin + 4 * i + lane() / 8, a.seq - 1);
      out[i] = *reinterpret_cast<const uint4*>(a.out + row * a.ld_out + h * 64 + lane() % 8 * 8);
    }
  }
  // Of the queries lane/4 and lane/4 + 8. tile: the warp's rows of dO.
  __device__ __forceinline__ void operator()(const char* tile, float (&delta)[2]) const {
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float o[8], g[8], sum = 0;
      Vec<bf16>::unpack(out[i], o);
      Vec<bf16>::unpack(*reinterpret_cast<const uint4*>(tile + flash::place<64>(4 * i + lane() / 8, lane() % 8)), g);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum += o[k] * g[k];
#pragma unroll
      for (int k = 4; k > 0; k >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, k);
      sums[i] = sum;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float low = __shfl_sync(0xffffffffu, sums[2 * r], lane() / 4 % 4 * 8);
      const float high = __shfl_sync(0xffffffffu, sums[2 * r + 1], lane() / 4 % 4 * 8);
      delta[r] = lane() < 16 ? low : high;
    }
  }
};

// For the key kernel: lse and delta of the warp's queries, and where their past begins.
template <class S, bool Documents>
__device__ __forceinline__ void keep_stats(const Call& a, const Queries<S, Documents>& own, const float (&lse)[2],
                                           const float (&delta)[2]) {
  if (lane() % 4 != 0 || own.r0 >= a.seq) return;
  float* stats = stats_of(a, own.b, own.h, own.r0 / kRows) + own.w0 - own.r0 + lane() / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool real = own.w0 + 8 * r + lane() / 4 < a.seq;
    stats[8 * r] = real ? lse[r] : 0;
    stats[8 * r + kRows] = real ? delta[r] : 0;
    if (Documents) reinterpret_cast<std::int32_t*>(stats)[8 * r + 2 * kRows] = own.from[r];
  }
}

// Scores to P, where rows are queries.
__device__ __forceinline__ void exponentials(Block& s, const float (&lse)[2], float c) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][n][i] = exp2_fast(fmaf(s[0][n][i], c, -lse[i / 2]));
}

// dO·Vᵀ to dS, likewise.
__device__ __forceinline__ Left gradient(Block& ds, const Block& p, const float (&delta)[2]) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - delta[i / 2]);
  return Left(ds);
}

template <class S, bool Documents>
__device__ __forceinline__ void own_queries(const Call& a, const Maps& maps) {
  extern __shared__ __align__(1024) char shared[];
  const Queries<S, Documents> own(a, maps, shared);
  const Ring<S>& ring = own.ring;
  const int h = own.h, b = own.b;
  own.start(2 * S::kGroups * kTile, [&](int g, int row) {
    load_tile(own.base + 2 * g * kTile, maps.qkv, h * 64, row, b, ring.owned());
    load_tile(own.base + (2 * g + 1) * kTile, maps.dout, h * 64, row, b, ring.owned());
  });

  const float c = a.scale * kLog2e;
  const Deltas deltas(a, b, h, own.w0);
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) lse[r] = a.lse[(static_cast<std::int64_t>(b) * a.heads + h) * a.seq + own.position(r)] * kLog2e;
  const std::uint64_t q = descriptor(own.base + 2 * own.group * kTile), g = descriptor(own.base + (2 * own.group + 1) * kTile);
  barrier_wait(ring.owned(), 0);
  deltas(shared + (2 * own.group + 1) * kTile + own.warp % 4 * 16 * 128, delta);
  keep_stats(a, own, lse, delta);

  Block s, ds, dq;
  flash::clear(dq);
  flash::clear(ds);
  for (int step = 0; step < own.mine; ++step) {
    if (own.loads) own.load_keys(step + S::kLead);
    __syncwarp();
    ring.wait(step);
    fence();
    multiply_rows(s, q, own.keys(step));
    commit();
    multiply_rows(ds, g, own.values(step));
    commit();
    wait<1>();
    pin(s);
    own.mask(s, step);
    exponentials(s, lse, c);
    wait<0>();
    pin(ds);
    Left left = gradient(ds, s, delta);
    pin(left);
    fence();
    multiply_columns(dq, left, own.keys(step));
    commit();
    wait<0>();
    pin(left);
    ring.release(step);
  }
  wait<0>();
  pin(dq);
  __syncthreads();  // nobody reads the queries any more
  flash::scale_by(dq, a.scale);
  bf16* to = a.dqkv + static_cast<std::int64_t>(b) * a.seq * a.ld_dqkv + static_cast<std::int64_t>(h) * 64;
  flash::store_rows<64>(dq, shared + 2 * own.group * kTile + own.warp % 4 * 16 * 128, to, a.ld_dqkv, own.w0, a.seq);
}

template <class S, bool Documents>
__device__ __forceinline__ void own_keys(const Call& a, const Maps& maps) {
  extern __shared__ __align__(1024) char shared[];
  Keys<S, Documents> own(a, maps, shared);
  const Ring<S>& ring = own.ring;
  own.start();

  const float c = a.scale * kLog2e;
  const std::uint64_t k = descriptor(own.base + 2 * own.group * kTile), v = descriptor(own.base + (2 * own.group + 1) * kTile);
  Block s, ds, dk, dv;
  flash::clear(dk);
  flash::clear(dv);
  flash::clear(ds);
  barrier_wait(ring.owned(), 0);
  int step = own.step_after(-1);
  while (step < own.steps) {
    if (own.loads) own.load_queries(step + S::kLead);
    __syncwarp();
    ring.wait(step);
    fence();
    multiply_rows(s, k, own.queries(step));
    commit();
    multiply_rows(ds, v, own.douts(step));
    commit();
    wait<1>();
    pin(s);
    own.mask(s, step);
    own.exponentials(s, step, c);
    Left left_p(s);
    pin(left_p);
    fence();
    multiply_columns(dv, left_p, own.douts(step));
    commit();
    wait<1>();
    pin(ds);
    Left left = own.gradient(ds, s, step);
    pin(left);
    fence();
    multiply_columns(dk, left, own.queries(step));
    commit();
    wait<0>();
    pin(left);
    pin(left_p);
    ring.release(step);
    step = own.step_after(step);
  }
  wait<0>();
  pin(dk);
  pin(dv);
  __syncthreads();  // nobody reads the keys any more
  flash::scale_by(dk, a.scale);
  char* through = shared + 2 * own.group * kTile + own.warp % 4 * 16 * 128;
  bf16* to = a.dqkv + static_cast<std::int64_t>(own.b) * a.seq * a.ld_dqkv + static_cast<std::int64_t>(a.heads + own.kv) * 64;
  flash::store_rows<64>(dk, through, to, a.ld_dqkv, own.r0 + own.warp % 4 * 16, a.seq);
  flash::store_rows<64>(dv, through + kTile, to + static_cast<std::int64_t>(a.kv_heads) * 64, a.ld_dqkv, own.r0 + own.warp % 4 * 16, a.seq);
}

#endif

template <class S, bool Documents>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) query_kernel(const Call a, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  own_queries<S, Documents>(a, maps);
#endif
}
template <class S, bool Documents>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) key_kernel(const Call a, const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  own_keys<S, Documents>(a, maps);
#endif
}

// The fastest of several shapes on an H200, at 32/8 and at 8/4 heads.
using QueryShape = Shape<2, 2, 4>;
using KeyShape = Shape<1, 3, 3>;

template <class S>
void launch_queries(Context& ctx, const Call& call, const Maps& maps) {
  launch<S>(ctx, call.first ? query_kernel<S, true> : query_kernel<S, false>, call.heads, call, maps);
}
template <class S>
void launch_keys(Context& ctx, const Call& call, const Maps& maps) {
  launch<S>(ctx, call.first ? key_kernel<S, true> : key_kernel<S, false>, call.kv_heads, call, maps);
}

}  // namespace
}  // namespace wgmma

bool attention_hopper_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                               const Tensor& dout, const Tensor& dqkv, const AttentionShape& s) {
  if (s.head_dim != 64 || !flash::takes(s, qkv, out) || !flash::takes(s, dqkv, dout) ||
      !wgmma::compiled_here(wgmma::query_kernel<wgmma::QueryShape, false>))
    return false;
  flash::Call call = flash::call_of(s, qkv, out, lse, first);
  call.dout = dout.as<bf16>();
  call.ld_dout = static_cast<int>(dout.ld);
  call.dqkv = dqkv.as<bf16>();
  call.ld_dqkv = static_cast<int>(dqkv.ld);
  wgmma::Maps maps;
  if (!wgmma::make_map(maps.qkv, call.qkv, qkv.cols(), qkv.ld, call) || !wgmma::make_map(maps.dout, call.dout, dout.cols(), dout.ld, call))
    return false;
  const std::int64_t stats = s.batch * s.heads * wgmma::tiles_of(call.seq) * wgmma::kPlanes * wgmma::kRows;
  call.delta = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(stats) * sizeof(float)));
  wgmma::launch_queries<wgmma::QueryShape>(ctx, call, maps);
  wgmma::launch_keys<wgmma::KeyShape>(ctx, call, maps);
  check_launch("attention_hopper_backward");
  return true;
}

}  // namespace bhyt::cuda
