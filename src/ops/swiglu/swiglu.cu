#include "core/cuda.cuh"
#include "core/math.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt::cuda {

namespace {

// V elements of one row per thread: 16 bytes where the width allows, else one.
template <class T, int V>
__device__ __forceinline__ void load(const T* p, float* v) {
  if constexpr (V == 1)
    v[0] = load1(p);
  else
    Vec<T>::load(p, v);
}
template <class T, int V>
__device__ __forceinline__ void store(T* p, const float* v) {
  if constexpr (V == 1)
    store1(p, v[0]);
  else
    Vec<T>::store(p, v);
}

template <class T, int V>
__global__ void forward_kernel(const T* gate_up, std::int64_t ld, T* h, std::int64_t ldh, std::int64_t f, std::int64_t total) {
  begin_among_rows();
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= total) return;
  const std::int64_t row = i / f, j = i % f;
  float gate[V], up[V];
  load<T, V>(gate_up + row * ld + j, gate);
  load<T, V>(gate_up + row * ld + f + j, up);
#pragma unroll
  for (int k = 0; k < V; ++k) gate[k] = gate[k] * (1.f / (1.f + __expf(-gate[k]))) * up[k];
  store<T, V>(h + row * ldh + j, gate);
}

// With h: the forward's result again, which may take dh's place.
template <class T, int V>
__global__ void backward_kernel(const T* gate_up, std::int64_t ld, const T* dh, std::int64_t lddh, T* dgate_up, std::int64_t ldd, T* h,
                                std::int64_t ldh, std::int64_t f, std::int64_t total) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (i >= total) return;
  const std::int64_t row = i / f, j = i % f;
  float gate[V], up[V], d[V], dgate[V];
  load<T, V>(gate_up + row * ld + j, gate);
  load<T, V>(gate_up + row * ld + f + j, up);
  load<T, V>(dh + row * lddh + j, d);
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const float s = 1.f / (1.f + __expf(-gate[k])), silu = gate[k] * s, dup = d[k] * silu;
    dgate[k] = d[k] * up[k] * s * (1.f + gate[k] * (1.f - s));
    d[k] = silu * up[k];
    up[k] = dup;
  }
  if (h) store<T, V>(h + row * ldh + j, d);
  store<T, V>(dgate_up + row * ldd + j, dgate);
  store<T, V>(dgate_up + row * ldd + f + j, up);
}

constexpr int kThreads = 256;

template <class F>
void with_width(std::int64_t f, int vector, bool aligned, F&& run) {
  if (aligned && f % vector == 0)
    run(std::true_type{});
  else
    run(std::false_type{});
}

}  // namespace

void swiglu(Context& ctx, const Tensor& gate_up, const Tensor& h) {
  const std::int64_t f = h.cols(), total = h.rows() * f;
  if (total == 0) return;
  dispatch_float(h.dtype, [&](auto t) {
    using T = decltype(t);
    with_width(f, Vec<T>::n, aligned16(gate_up) && aligned16(h), [&](auto wide) {
      constexpr int V = decltype(wide)::value ? Vec<T>::n : 1;
      launch_rows(ctx, h.rows(), forward_kernel<T, V>, blocks_for(total, kThreads * V), kThreads, gate_up.as<T>(), gate_up.ld, h.as<T>(),
                  h.ld, f, total);
    });
  });
  check_launch("swiglu");
}

void swiglu_backward(Context& ctx, const Tensor& gate_up, const Tensor& dh, const Tensor& dgate_up, const Tensor& h) {
  const std::int64_t f = dh.cols(), total = dh.rows() * f;
  if (total == 0) return;
  dispatch_float(dh.dtype, [&](auto t) {
    using T = decltype(t);
    with_width(f, Vec<T>::n, aligned16(gate_up) && aligned16(dh) && aligned16(dgate_up) && aligned16(h), [&](auto wide) {
      constexpr int V = decltype(wide)::value ? Vec<T>::n : 1;
      backward_kernel<T, V><<<blocks_for(total, kThreads * V), kThreads, 0, stream(ctx)>>>(
          gate_up.as<T>(), gate_up.ld, dh.as<T>(), dh.ld, dgate_up.as<T>(), dgate_up.ld, h.as<T>(), h.ld, f, total);
    });
  });
  check_launch("swiglu_backward");
}

}  // namespace bhyt::cuda
