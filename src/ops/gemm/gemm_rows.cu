#include "ops/gemm/gemm_rows.cuh"

namespace bhyt::cuda {

namespace rows {
namespace {

// y itself.
template <class T>
struct RowsOut {
  T* y;
  std::int64_t ld;
  int columns;
  static constexpr int kItems = kOwned / 8;

  template <class Sums>
  __device__ __forceinline__ void operator()(int row, int block, int item, const Sums& sums) const {
    const int column = block * kOwned + item * 8;
    if (column >= columns) return;
    float v[8];
    sums(row, item * 8, v);
#pragma unroll
    for (int i = 0; i < 8; i += Vec<T>::n) Vec<T>::store(y + row * ld + column + i, v + i);
  }
};

// Whether a context's GPU runs these kernels; asked once.
struct Runs {
  explicit Runs(Context& ctx) {
    use(ctx.device().index);
    yes = compiled_here(product_kernel<RowsOut<bf16>>);
  }
  bool yes = false;
};

}  // namespace
}  // namespace rows

bool takes_rows(Context& ctx, const Tensor& x, const Tensor& w) {
  return ctx.device().is_cuda() && x.dtype == DType::bf16 && w.dtype == DType::bf16 && x.rows() > 0 && x.rows() <= wgmma::kRows &&
         x.cols() > 0 && x.cols() % 64 == 0 && w.rows() % 8 == 0 && aligned16(x) && aligned16(w) && ctx.keep<rows::Runs>().yes;
}

void rows_product(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y) {
  const auto columns = static_cast<int>(y.cols());
  if (y.dtype == DType::bf16)
    rows::launch(ctx, x, w, rows::RowsOut<bf16>{y.as<bf16>(), y.ld, columns});
  else
    rows::launch(ctx, x, w, rows::RowsOut<float>{y.as<float>(), y.ld, columns});
}

}  // namespace bhyt::cuda
