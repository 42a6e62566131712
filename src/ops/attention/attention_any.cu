// Attention by plain kernels: any head width up to 256, fp32 and bf16, document masks, decoding. One warp per query (or key); the fast
// paths are elsewhere, these are what they fall back to and are checked against. Every sum has one owner: deterministic.
#include "core/cuda.cuh"
#include "ops/attention/attention.cuh"
#include "ops/attention/attention.h"

namespace bhyt::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 256, kPerLane = kMaxDim / 32;

// Lane l holds dimensions l, l+32, …
template <class T>
__device__ __forceinline__ void load_row(const T* p, int d, float* v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) v[k] = lane + 32 * k < d ? load1(p + lane + 32 * k) : 0.f;
}
template <class T>
__device__ __forceinline__ void store_row(T* p, int d, const float* v) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k)
    if (lane + 32 * k < d) store1(p + lane + 32 * k, v[k]);
}
__device__ __forceinline__ float dot_rows(const float* a, const float* b) {
  float s = 0;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) s += a[k] * b[k];
  return warp_sum(s);
}

struct Heads {
  int heads, kv_heads, d;
  std::int64_t ld;  // of qkv
  float scale;
  __device__ int kv_of(int h) const { return h / (heads / kv_heads); }
  __device__ std::int64_t key_at(int kv) const { return static_cast<std::int64_t>(heads + kv) * d; }
  __device__ std::int64_t value_at(int kv) const { return static_cast<std::int64_t>(heads + kv_heads + kv) * d; }
};

// One query against keys [from, to] of one head: out row in registers, log-sum-exp returned.
template <class T>
__device__ float attend(const float* q, const T* keys, std::int64_t ldk, const T* values, std::int64_t ldv, std::int64_t from,
                        std::int64_t to, int d, float scale, float* out) {
  float top = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) out[k] = 0;
  for (std::int64_t s = from; s <= to; ++s) {
    float row[kPerLane];
    load_row(keys + s * ldk, d, row);
    const float score = dot_rows(q, row) * scale, high = fmaxf(top, score), shrink = __expf(top - high), p = __expf(score - high);
    load_row(values + s * ldv, d, row);
    sum = sum * shrink + p;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) out[k] = out[k] * shrink + p * row[k];
    top = high;
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k) out[k] /= sum;
  return top + __logf(sum);
}

template <class T>
__global__ void forward_kernel(const T* qkv, T* out, std::int64_t ldo, float* lse, const std::int32_t* first, std::int64_t seq, Heads at) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= seq) return;
  const int h = blockIdx.y, kv = at.kv_of(h);
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.z) * seq;
  const T* rows = qkv + base * at.ld;
  float q[kPerLane], o[kPerLane];
  load_row(rows + t * at.ld + static_cast<std::int64_t>(h) * at.d, at.d, q);
  const float l = attend(q, rows + at.key_at(kv), at.ld, rows + at.value_at(kv), at.ld, first ? first[base + t] : 0, t, at.d, at.scale, o);
  store_row(out + (base + t) * ldo + static_cast<std::int64_t>(h) * at.d, at.d, o);
  if (lse && threadIdx.x % 32 == 0) lse[(static_cast<std::int64_t>(blockIdx.z) * at.heads + h) * seq + t] = l;
}

template <class T>
__global__ void query_kernel(const T* qkv, const T* out, std::int64_t ldo, const float* lse, const std::int32_t* first, const T* dout,
                             std::int64_t lddo, T* dqkv, std::int64_t lddqkv, float* delta, std::int64_t seq, Heads at) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (t >= seq) return;
  const int h = blockIdx.y, kv = at.kv_of(h);
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.z) * seq, column = static_cast<std::int64_t>(h) * at.d;
  const std::int64_t place = (static_cast<std::int64_t>(blockIdx.z) * at.heads + h) * seq + t;
  const T* rows = qkv + base * at.ld;
  float q[kPerLane], o[kPerLane], g[kPerLane], dq[kPerLane] = {};
  load_row(rows + t * at.ld + column, at.d, q);
  load_row(out + (base + t) * ldo + column, at.d, o);
  load_row(dout + (base + t) * lddo + column, at.d, g);
  const float d = dot_rows(o, g), l = lse[place];
  if (threadIdx.x % 32 == 0) delta[place] = d;
  for (std::int64_t s = first ? first[base + t] : 0; s <= t; ++s) {
    float k[kPerLane], v[kPerLane];
    load_row(rows + s * at.ld + at.key_at(kv), at.d, k);
    load_row(rows + s * at.ld + at.value_at(kv), at.d, v);
    const float p = __expf(dot_rows(q, k) * at.scale - l), ds = p * (dot_rows(g, v) - d) * at.scale;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) dq[i] += ds * k[i];
  }
  store_row(dqkv + (base + t) * lddqkv + column, at.d, dq);
}

template <class T>
__global__ void key_kernel(const T* qkv, const float* lse, const std::int32_t* first, const T* dout, std::int64_t lddo, const float* delta,
                           T* dqkv, std::int64_t lddqkv, std::int64_t seq, Heads at) {
  const std::int64_t s = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (s >= seq) return;
  const int kv = blockIdx.y, group = at.heads / at.kv_heads;
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.z) * seq;
  const T* rows = qkv + base * at.ld;
  float k[kPerLane], v[kPerLane], dk[kPerLane] = {}, dv[kPerLane] = {};
  load_row(rows + s * at.ld + at.key_at(kv), at.d, k);
  load_row(rows + s * at.ld + at.value_at(kv), at.d, v);
  for (int h = kv * group; h < (kv + 1) * group; ++h)
    for (std::int64_t t = s; t < seq; ++t) {
      if (first && first[base + t] > s) break;  // later queries start later still
      const std::int64_t place = (static_cast<std::int64_t>(blockIdx.z) * at.heads + h) * seq + t,
                         column = static_cast<std::int64_t>(h) * at.d;
      float q[kPerLane], g[kPerLane];
      load_row(rows + t * at.ld + column, at.d, q);
      load_row(dout + (base + t) * lddo + column, at.d, g);
      const float p = __expf(dot_rows(q, k) * at.scale - lse[place]), ds = p * (dot_rows(g, v) - delta[place]) * at.scale;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        dk[i] += ds * q[i];
        dv[i] += p * g[i];
      }
    }
  store_row(dqkv + (base + s) * lddqkv + at.key_at(kv), at.d, dk);
  store_row(dqkv + (base + s) * lddqkv + at.value_at(kv), at.d, dv);
}

Heads heads_of(const AttentionShape& s, std::int64_t ld) {
  if (s.head_dim > kMaxDim) fail("[attention] expected a head width of at most 256 on the GPU, got " + std::to_string(s.head_dim));
  return {static_cast<int>(s.heads), static_cast<int>(s.kv_heads), static_cast<int>(s.head_dim), ld,
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)))};
}
const std::int32_t* ints(const Tensor& t) { return t ? t.as<std::int32_t>() : nullptr; }

}  // namespace

void attention_any(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  const dim3 grid(blocks_for(s.seq, kWarps), static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
  dispatch_float(qkv.dtype, [&](auto t) {
    using T = decltype(t);
    forward_kernel<T><<<grid, 32 * kWarps, 0, stream(ctx)>>>(qkv.as<T>(), out.as<T>(), out.ld, lse ? lse.as<float>() : nullptr, ints(first),
                                                             s.seq, heads_of(s, qkv.ld));
  });
  check_launch("attention");
}

void attention_any_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                            const Tensor& dqkv, const AttentionShape& s) {
  float* delta = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(s.batch * s.heads * s.seq) * sizeof(float)));
  const dim3 queries(blocks_for(s.seq, kWarps), static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
  const dim3 keys(queries.x, static_cast<unsigned>(s.kv_heads), queries.z);
  dispatch_float(qkv.dtype, [&](auto t) {
    using T = decltype(t);
    const Heads at = heads_of(s, qkv.ld);
    query_kernel<T><<<queries, 32 * kWarps, 0, stream(ctx)>>>(qkv.as<T>(), out.as<T>(), out.ld, lse.as<float>(), ints(first), dout.as<T>(),
                                                              dout.ld, dqkv.as<T>(), dqkv.ld, delta, s.seq, at);
    key_kernel<T><<<keys, 32 * kWarps, 0, stream(ctx)>>>(qkv.as<T>(), lse.as<float>(), ints(first), dout.as<T>(), dout.ld, delta,
                                                         dqkv.as<T>(), dqkv.ld, s.seq, at);
  });
  check_launch("attention_backward");
}

}  // namespace bhyt::cuda
