// The LM head and its loss on the GPU: a few thousand rows of fp32 logits at a time; their gradient, in the run's type, takes their place.
#include <algorithm>

#include "core/cuda.cuh"
#include "core/memory.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/gemm/gemm.h"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 512;
constexpr std::size_t kRoom = 1u << 30;  // bytes of logits that exist at a time, at most (and at least 128 rows)

std::int64_t chunk_rows(std::int64_t tokens, std::int64_t vocab) {
  const std::int64_t rows = static_cast<std::int64_t>(kRoom / (static_cast<std::size_t>(vocab) * sizeof(float))) / 128 * 128;
  return std::min(tokens, std::max<std::int64_t>(rows, 128));
}
std::int64_t padded(std::int64_t vocab) { return (vocab + 7) / 8 * 8; }  // rows of logits start on 16 bytes

// A running maximum (with its place) and the sum of exponentials below it.
struct Online {
  float top = -INFINITY, sum = 0;
  int place = 0x7fffffff;
};
__device__ __forceinline__ void take(Online& o, float v, int place) {
  if (v > o.top) {
    o.sum = o.sum * __expf(o.top - v) + 1;
    o.top = v, o.place = place;
  } else {
    o.sum += __expf(v - o.top);
  }
}
__device__ __forceinline__ Online join(const Online& a, const Online& b) {
  if (b.sum == 0) return a;
  if (a.sum == 0) return b;
  const bool first = a.top > b.top || (a.top == b.top && a.place < b.place);
  const Online &high = first ? a : b, &low = first ? b : a;
  return {high.top, high.sum + low.sum * __expf(low.top - high.top), high.place};
}

// V logits at once: 16 bytes where rows come in such pieces, else one.
template <int V>
__device__ __forceinline__ void load_logits(const float* p, float* v) {
  if constexpr (V == 1)
    v[0] = *p;
  else
    Vec<float>::load(p, v);
}

template <int V>
__device__ __forceinline__ void store_gradient(float* p, const float* v) {
  if constexpr (V == 1)
    *p = v[0];
  else
    Vec<float>::store(p, v);
}
template <int V>
__device__ __forceinline__ void store_gradient(bf16* p, const float* v) {
  if constexpr (V == 1) {
    store1(p, v[0]);
  } else {
    const __nv_bfloat162 a = __floats2bfloat162_rn(v[0], v[1]), b = __floats2bfloat162_rn(v[2], v[3]);
    *reinterpret_cast<uint2*>(p) = make_uint2(*reinterpret_cast<const unsigned*>(&a), *reinterpret_cast<const unsigned*>(&b));
  }
}

// The gradient of a row of logits, in T, is written over the row: its bytes never run ahead of what the block has read.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(float* logits, std::int64_t ld, int vocab, const std::int32_t* targets, const float* weights, float scale, float* losses,
                   float* weighted, std::int32_t* greedy, bool backward) {
  __shared__ Online room[kThreads / 32];
  const std::int64_t row = blockIdx.x;
  float* x = logits + row * ld;
  const int target = targets[row];
  Online o;
  for (int j = threadIdx.x * V; j < vocab; j += kThreads * V) {
    float v[V];
    load_logits<V>(x + j, v);
#pragma unroll
    for (int k = 0; k < V; ++k) take(o, v[k], j + k);
  }
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    const Online other{__shfl_xor_sync(0xffffffffu, o.top, s), __shfl_xor_sync(0xffffffffu, o.sum, s),
                       __shfl_xor_sync(0xffffffffu, o.place, s)};
    o = join(o, other);
  }
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = o;
  __syncthreads();
  o = room[0];
  for (int k = 1; k < kThreads / 32; ++k) o = join(o, room[k]);
  const float weight = target < 0 ? 0.f : weights ? weights[row] : 1.f;
  if (threadIdx.x == 0) {
    float loss = 0;
    if (target >= vocab) loss = NAN;  // the caller's mistake must not pass for a loss
    if (target >= 0 && target < vocab) loss = o.top + logf(o.sum) - x[target];
    if (losses) losses[row] = loss;
    weighted[row] = weight * loss;
    if (greedy) greedy[row] = o.place;
  }
  if (!backward) return;
  const float factor = weight * scale, inverse = factor / o.sum;
  T* dx = reinterpret_cast<T*>(x);
  for (int first = 0; first < vocab; first += kThreads * V) {
    const int j = first + threadIdx.x * V;
    float v[V];
    if (j < vocab) load_logits<V>(x + j, v);
    __syncthreads();
    if (j >= vocab) continue;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      v[k] = __expf(v[k] - o.top) * inverse - (j + k == target ? factor : 0.f);
    }
    store_gradient<V>(dx + j, v);
  }
}

__global__ void sum_kernel(const float* values, std::int64_t n, float* out) {
  __shared__ double room[33];
  double s = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) s += values[i];
  s = block_sum(s, room);
  if (threadIdx.x == 0) *out += static_cast<float>(s);
}

}  // namespace

std::size_t cross_entropy_workspace(std::int64_t tokens, std::int64_t, std::int64_t vocab, DType) {
  return static_cast<std::size_t>(chunk_rows(tokens, vocab) * padded(vocab) + tokens) * sizeof(float) + 256;
}

void cross_entropy(const CrossEntropy& job) {
  const std::int64_t n = job.x.rows(), vocab = job.w.rows(), rows = chunk_rows(n, vocab);
  if (n == 0) return;
  float* weighted = static_cast<float*>(job.workspace.data) + rows * padded(vocab);
  for (std::int64_t first = 0; first < n; first += rows) {
    const std::int64_t count = std::min(rows, n - first);
    Tensor logits(job.workspace.data, DType::f32, job.x.device, {count, vocab});
    logits.ld = padded(vocab);
    const Tensor x = job.x.row_slice(first, count);
    bhyt::gemm(x, job.w, logits, GemmOptions{.trans_b = true});
    dispatch_float(job.x.dtype, [&](auto t) {
      using T = decltype(t);
      const auto launch = [&](auto wide) {
        softmax_kernel<T, decltype(wide)::value><<<static_cast<unsigned>(count), kThreads, 0, stream()>>>(
            logits.as<float>(), logits.ld, static_cast<int>(vocab), job.targets.as<std::int32_t>() + first,
            job.weights ? job.weights.as<float>() + first : nullptr, job.scale, job.losses ? job.losses.as<float>() + first : nullptr,
            weighted + first, job.greedy ? job.greedy.as<std::int32_t>() + first : nullptr, static_cast<bool>(job.dx));
      };
      if (vocab % 4 == 0 && reinterpret_cast<std::uintptr_t>(logits.data) % 16 == 0)
        launch(std::integral_constant<int, 4>{});
      else
        launch(std::integral_constant<int, 1>{});
    });
    if (!job.dx) continue;
    Tensor dlogits(logits.data, job.x.dtype, job.x.device, {count, vocab});
    dlogits.ld = logits.ld * static_cast<std::int64_t>(sizeof(float) / size_of(job.x.dtype));
    bhyt::gemm(dlogits, job.w, job.dx.row_slice(first, count), GemmOptions{});
    bhyt::gemm(dlogits, x, job.dw, GemmOptions{.trans_a = true, .accumulate = true});
  }
  if (job.loss) sum_kernel<<<1, 1024, 0, stream()>>>(weighted, n, job.loss.as<float>());
  check_launch("cross_entropy");
}

}  // namespace bhyt::cuda
