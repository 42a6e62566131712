#include "core/cuda.cuh"
#include "ops/rows/rows.h"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 256;

// One row a block, 16 bytes a thread where rows come in such pieces.
template <class T>
__device__ __forceinline__ void copy_row(T* to, const T* from, int n) {
  for (int j = threadIdx.x; j < n; j += kThreads) to[j] = from ? from[j] : T{};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* from, std::int64_t ld, const std::int32_t* rows, T* out, std::int64_t ldo, int n) {
  const std::int64_t i = blockIdx.x;
  const int row = rows[i];
  copy_row(out + i * ldo, row < 0 ? nullptr : from + row * ld, n);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const T* from, std::int64_t ld, const std::int32_t* rows, T* to, std::int64_t ldt, int n) {
  const std::int64_t i = blockIdx.x;
  if (const int row = rows[i]; row >= 0) copy_row(to + row * ldt, from + i * ld, n);
}

bool wide(const Tensor& t) {
  const std::size_t size = size_of(t.dtype);
  return static_cast<std::size_t>(t.cols()) * size % 16 == 0 && static_cast<std::size_t>(t.ld) * size % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

// Calls f with a value of the type that rows are copied in and how many of them a row has.
template <class F>
void by_pieces(const Tensor& a, const Tensor& b, F&& f) {
  const auto size = static_cast<std::int64_t>(size_of(a.dtype));
  if (wide(a) && wide(b))
    f(uint4{}, 16 / size);
  else if (size == 4)
    f(float{}, std::int64_t{1});
  else
    f(std::uint16_t{}, std::int64_t{1});
}

}  // namespace

void gather_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& out) {
  if (rows.size() == 0) return;
  by_pieces(from, out, [&](auto piece, std::int64_t each) {
    using T = decltype(piece);
    gather_kernel<T><<<static_cast<unsigned>(rows.size()), kThreads, 0, stream(ctx)>>>(static_cast<const T*>(from.data), from.ld / each,
                                                                                       rows.as<std::int32_t>(), static_cast<T*>(out.data),
                                                                                       out.ld / each, static_cast<int>(from.cols() / each));
  });
  check_launch("gather_rows");
}

void scatter_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& to) {
  const std::size_t size = size_of(to.dtype);
  BHYT_CUDA(cudaMemset2DAsync(to.data, static_cast<std::size_t>(to.ld) * size, 0, static_cast<std::size_t>(to.cols()) * size,
                              static_cast<std::size_t>(to.rows()), stream(ctx)));
  if (rows.size() == 0) return;
  by_pieces(from, to, [&](auto piece, std::int64_t each) {
    using T = decltype(piece);
    scatter_kernel<T><<<static_cast<unsigned>(rows.size()), kThreads, 0, stream(ctx)>>>(static_cast<const T*>(from.data), from.ld / each,
                                                                                        rows.as<std::int32_t>(), static_cast<T*>(to.data),
                                                                                        to.ld / each, static_cast<int>(to.cols() / each));
  });
  check_launch("scatter_rows");
}

}  // namespace bhyt::cuda
