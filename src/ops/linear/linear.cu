#include "core/cuda.cuh"
#include "ops/linear/linear.h"

namespace bhyt::cuda {

namespace {

template <class T>
__global__ void scale_kernel(T* w, std::int64_t ld, std::int64_t cols, const float* by, float factor) {
  T* row = w + static_cast<std::int64_t>(blockIdx.x) * ld;
  for (std::int64_t j = threadIdx.x; j < cols; j += blockDim.x) store1(row + j, load1(row + j) * (factor * by[j]));
}

}  // namespace

void scale_columns(Context& ctx, const Tensor& w, const Tensor& by, float factor) {
  dispatch_float(w.dtype, [&](auto t) {
    using T = decltype(t);
    scale_kernel<T><<<static_cast<unsigned>(w.rows()), 256, 0, stream(ctx)>>>(w.as<T>(), w.ld, w.cols(), by.as<float>(), factor);
  });
  check_launch("scale_columns");
}

}  // namespace bhyt::cuda
