#include "core/cuda.cuh"
#include "core/rng.h"
#include "ops/lora/lora.h"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 256;

// Four neighbours of the matrix, which one draw of Philox serves, for each thread.
template <class T>
__global__ void masked_kernel(const T* x, std::int64_t ldx, T* y, std::int64_t ldy, std::int64_t cols, std::int64_t total, ScaleMasked how,
                              std::uint32_t least) {
  const std::int64_t four = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (4 * four >= total) return;
  Philox r{};
  if (least > 0) r = philox(how.dropout.seed, how.dropout.stream, static_cast<std::uint64_t>(four));
  std::int64_t row = 4 * four / cols, j = 4 * four % cols;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (4 * four + k >= total) return;
    T* const to = y + row * ldy + j;
    if (r.v[k] >= least)
      store1(to, load1(x + row * ldx + j) * how.factor + (how.add ? load1(to) : 0.f));
    else if (!how.add)
      store1(to, 0.f);
    if (++j == cols) {
      j = 0;
      ++row;
    }
  }
}

}  // namespace

void scale_masked(Context& ctx, const Tensor& x, const Tensor& y, const ScaleMasked& how) {
  const std::int64_t total = x.size();
  if (total == 0) return;
  dispatch_float(x.dtype, [&](auto t) {
    using T = decltype(t);
    masked_kernel<T><<<blocks_for(total, kThreads * 4), kThreads, 0, stream(ctx)>>>(x.as<T>(), x.ld, y.as<T>(), y.ld, x.cols(), total, how,
                                                                                    dropout_threshold(how.dropout.p));
  });
  check_launch("scale_masked");
}

}  // namespace bhyt::cuda
