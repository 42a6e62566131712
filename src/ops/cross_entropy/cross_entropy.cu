// The LM head and its loss on the GPU, a few thousand rows of logits at a time. With a backward the logits have the run's type, and their
// gradient takes their place; a loss alone is made from fp32 logits in any run.
#include <algorithm>

#include "core/cuda.cuh"
#include "core/memory.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/cross_entropy/gpu_workspace.h"
#include "ops/gemm/gemm.h"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 512;

// A running maximum (with its place) and the sum of exponentials below it.
struct Online {
  float top = -INFINITY, sum = 0;
  int place = 0x7fffffff;
};
template <int U, int V>
__device__ __forceinline__ void take(Online& o, const float (&v)[U][V]) {
  float top = o.top;
#pragma unroll
  for (int i = 0; i < U * V; ++i) top = fmaxf(top, v[i / V][i % V]);
  const float base = top == -INFINITY ? 0.f : top;  // a NaN is no maximum, but must reach the sum
  o.sum *= __expf(o.top - base);
#pragma unroll
  for (int i = 0; i < U * V; ++i) o.sum += __expf(v[i / V][i % V] - base);
  o.top = top;
}
__device__ __forceinline__ Online join(const Online& a, const Online& b) {
  if (b.sum == 0) return a;
  if (a.sum == 0) return b;
  const bool first = a.top > b.top || (a.top == b.top && a.place < b.place);
  const Online &high = first ? a : b, &low = first ? b : a;
  return {high.top, high.sum + low.sum * __expf(low.top - high.top), high.place};
}

// V logits at once: 16 bytes where rows come in such pieces, else one.
template <int V, class T>
__device__ __forceinline__ void load_logits(const T* p, float* v) {
  if constexpr (V == 1)
    v[0] = load1(p);
  else
    Vec<T>::load(p, v);
}
template <int V, class T>
__device__ __forceinline__ void store_gradient(T* p, const float* v) {
  if constexpr (V == 1)
    store1(p, v[0]);
  else
    Vec<T>::store(p, v);
}

// What a thread takes of a row at a time: kPieces of V logits, kStep apart. 16 of them are on their way at a time.
template <int V>
constexpr int kPieces = V == 1 ? 4 : 16 / V;
template <int V>
constexpr int kStep = kThreads * V;

// From logit `first` on; behind the vocabulary nothing.
template <int V, class T>
__device__ __forceinline__ void load_pieces(const T* x, int vocab, int first, float (&v)[kPieces<V>][V]) {
#pragma unroll
  for (int u = 0; u < kPieces<V>; ++u) {
    const int j = first + u * kStep<V>;
#pragma unroll
    for (int k = 0; k < V; ++k) v[u][k] = -INFINITY;
    if (j < vocab) load_logits<V>(x + j, v[u]);
  }
}

// A thread's part of a row; its maximum's place where it is asked for.
template <int V, class T>
__device__ __forceinline__ Online part_of_row(const T* x, int vocab, bool place) {
  Online o;
  for (int first = threadIdx.x * V; first < vocab; first += kPieces<V> * kStep<V>) {
    float v[kPieces<V>][V];
    load_pieces<V>(x, vocab, first, v);
    if (place) {
      float best = o.top;
#pragma unroll
      for (int u = 0; u < kPieces<V>; ++u)
#pragma unroll
        for (int k = 0; k < V; ++k)
          if (v[u][k] > best) {
            best = v[u][k];
            o.place = first + u * kStep<V> + k;
          }
    }
    take(o, v);
  }
  return o;
}

// All threads' parts together.
__device__ __forceinline__ Online whole_row(Online o, Online (&shared)[kThreads / 32]) {
#pragma unroll
  for (int s = 16; s > 0; s >>= 1) {
    const Online other{__shfl_xor_sync(0xffffffffu, o.top, s), __shfl_xor_sync(0xffffffffu, o.sum, s),
                       __shfl_xor_sync(0xffffffffu, o.place, s)};
    o = join(o, other);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = o;
  __syncthreads();
  o = shared[0];
  for (int k = 1; k < kThreads / 32; ++k) o = join(o, shared[k]);
  return o;
}

// The gradient in the place of a row's logits: factor · (softmax − 1 at the target).
template <int V, class T>
__device__ __forceinline__ void put_gradient(T* x, int vocab, const Online& o, int target, float factor) {
  const float inverse = factor / o.sum;
  for (int first = threadIdx.x * V; first < vocab; first += kPieces<V> * kStep<V>) {
    float v[kPieces<V>][V];
    load_pieces<V>(x, vocab, first, v);
#pragma unroll
    for (int u = 0; u < kPieces<V>; ++u) {
      const int j = first + u * kStep<V>;
      if (j >= vocab) break;
#pragma unroll
      for (int k = 0; k < V; ++k) v[u][k] = __expf(v[u][k] - o.top) * inverse - (j + k == target ? factor : 0.f);
      store_gradient<V>(x + j, v[u]);
    }
  }
}

// One row of logits per block; with `backward` its gradient takes its place.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(T* logits, std::int64_t ld, bool backward, int vocab, const std::int32_t* targets, const float* weights, float scale,
                   const float* scale_by, float* losses, float* weighted, std::int32_t* greedy) {
  __shared__ Online shared[kThreads / 32];
  const std::int64_t row = blockIdx.x;
  T* x = logits + row * ld;
  const int target = targets[row];
  const Online o = whole_row(part_of_row<V>(x, vocab, greedy != nullptr), shared);
  const float weight = target < 0 ? 0.f : weights ? weights[row] : 1.f;
  if (threadIdx.x == 0) {
    float loss = 0;
    if (target >= vocab) loss = NAN;  // the caller's mistake must not pass for a loss
    if (target >= 0 && target < vocab) loss = o.top + logf(o.sum) - load1(x + target);
    if (losses) losses[row] = loss;
    weighted[row] = weight == 0 && target < vocab ? 0 : weight * loss;
    if (greedy) greedy[row] = o.place;
  }
  if (!backward) return;
  __syncthreads();  // x[target] above is read before it is overwritten
  put_gradient<V>(x, vocab, o, target, weight * (scale_by ? scale * *scale_by : scale));
  if (threadIdx.x < ld - vocab) store1(x + vocab + threadIdx.x, 0.f);  // products may read what fills a row up
}

__global__ void sum_kernel(const float* values, std::int64_t n, float* out) {
  __shared__ double shared[33];
  double s = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) s += values[i];
  s = block_sum(s, shared);
  if (threadIdx.x == 0) *out += static_cast<float>(s);
}

}  // namespace

void cross_entropy(Context& ctx, const CrossEntropy& job) {
  const std::int64_t n = job.x.rows(), vocab = job.w.rows();
  if (n == 0) return;
  const DType type = job.dx ? job.x.dtype : DType::f32;
  const Workspace space(n, vocab, type);
  char* base = static_cast<char*>(job.workspace.data);
  float* weighted = reinterpret_cast<float*>(base + space.losses);
  for (std::int64_t first = 0; first < n; first += space.rows) {
    const std::int64_t count = std::min(space.rows, n - first);
    Tensor logits(base, type, job.x.device, {count, vocab});
    logits.ld = Workspace::padded(vocab);
    const Tensor x = job.x.row_slice(first, count);
    bhyt::gemm(ctx, x, job.w, logits, GemmOptions{.trans_b = true});
    dispatch_float(type, [&](auto t) {
      using T = decltype(t);
      const auto launch = [&](auto wide) {
        softmax_kernel<T, decltype(wide)::value><<<static_cast<unsigned>(count), kThreads, 0, stream(ctx)>>>(
            logits.as<T>(), logits.ld, static_cast<bool>(job.dx), static_cast<int>(vocab), job.targets.as<std::int32_t>() + first,
            job.weights ? job.weights.as<float>() + first : nullptr, job.scale, job.scale_by ? job.scale_by.as<float>() : nullptr,
            job.losses ? job.losses.as<float>() + first : nullptr, weighted + first,
            job.greedy ? job.greedy.as<std::int32_t>() + first : nullptr);
      };
      if (vocab % Vec<T>::n == 0 && reinterpret_cast<std::uintptr_t>(base) % 16 == 0)
        launch(std::integral_constant<int, Vec<T>::n>{});
      else
        launch(std::integral_constant<int, 1>{});
    });
    if (!job.dx) continue;
    if (job.dw) bhyt::gemm(ctx, logits, x, job.dw, GemmOptions{.trans_a = true, .accumulate = job.accumulate || first > 0});
    bhyt::gemm(ctx, logits, job.w, job.dx.row_slice(first, count), GemmOptions{});
  }
  if (job.loss) sum_kernel<<<1, 1024, 0, stream(ctx)>>>(weighted, n, job.loss.as<float>());
  check_launch("cross_entropy");
}

}  // namespace bhyt::cuda
