#include "ops/few_rows/few_rows.cuh"
#include "ops/few_rows/few_rows.h"
#include "ops/gemm/bytes.h"

namespace bhyt::cuda {

namespace few {
namespace {

// A block for each tile. The pieces of 16 bytes follow each other warp by warp, step by step, lower rows before upper ones, lane by lane.
__global__ void __launch_bounds__(kThreads) tiles_kernel(const char* w, std::int64_t ld, int height, int span, char* out) {
  TileRows rows = tile_rows(static_cast<int>(blockIdx.x), span);
  if (span == kTile) {  // the last may begin inside the one before it
    rows.low = min(rows.low, height - kTile);
    rows.high = rows.low + 8;
  }
  constexpr int kPiece = 16, kStep = Layout<std::int8_t>::kStep;
  const int pieces = static_cast<int>(ld);  // sixteen rows of ld/16 each
  const int steps = static_cast<int>(ld) / Layout<std::int8_t>::kSlice;
  for (int i = threadIdx.x; i < pieces; i += kThreads) {
    const int lane = i % 32, upper = i / 32 % 2, step = i / 64 % steps, warp = i / 64 / steps;
    const std::int64_t row = (upper ? rows.high : rows.low) + lane / 4, column = (warp * steps + step) * kStep + lane % 4 * kPiece;
    *reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(blockIdx.x) * kTile * ld + static_cast<std::int64_t>(i) * kPiece) =
        *reinterpret_cast<const uint4*>(w + row * ld + column);
  }
}

// The weights at columns 4·i … 4·i + 3 of a row, without their scale.
__device__ __forceinline__ void four_of(const bf16* row, int i, float (&v)[4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) v[k] = load1(row + 4 * i + k);
}
template <class W>
__device__ __forceinline__ void four_of(const W* row, int i, float (&v)[4]) {
  const Four four = widen_four<W>(reinterpret_cast<const unsigned*>(row)[i]);
  const unsigned words[2] = {four.first, four.second};
#pragma unroll
  for (int k = 0; k < 4; ++k) v[k] = __uint_as_float(k % 2 ? words[k / 2] & 0xFFFF0000u : words[k / 2] << 16);
}

// A warp has a row of w.
template <class W>
__global__ void __launch_bounds__(kThreads) sums_kernel(const W* w, std::int64_t ld, const float* scales, std::int64_t rows, int columns,
                                                        const float* beta, float* sums, float* biases) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= rows) return;
  double sum = 0, bias = 0;
  for (int i = threadIdx.x % 32; i < columns / 4; i += 32) {
    float v[4];
    four_of(w + row * ld, i, v);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum += static_cast<double>(v[k]);
      if (beta) bias += static_cast<double>(v[k]) * static_cast<double>(beta[4 * i + k]);
    }
  }
  sum = warp_sum(sum);
  bias = warp_sum(bias);
  if (threadIdx.x % 32 != 0) return;
  const double scale = scales ? static_cast<double>(scales[row]) : 1.0;
  if (sums) sums[row] = static_cast<float>(sum * scale);
  if (biases) biases[row] = static_cast<float>(bias * scale);
}

template <class W>
void launch_sums(Context& ctx, const Tensor& w, const Tensor& beta, const WeightSums& out) {
  const auto blocks = static_cast<unsigned>((w.rows() + kWarps - 1) / kWarps);
  sums_kernel<W><<<blocks, kThreads, 0, stream(ctx)>>>(w.as<W>(), w.ld, Layout<W>::kBytes ? byte_scales(w) : nullptr, w.rows(),
                                                       static_cast<int>(w.cols()), pointer(beta), pointer(out.rows), pointer(out.bias));
}

}  // namespace
}  // namespace few

void few_rows_sum_weights(Context& ctx, const Tensor& w, const Tensor& beta, const WeightSums& out) {
  if (w.dtype == DType::i8)
    few::launch_sums<std::int8_t>(ctx, w, beta, out);
  else if (w.dtype == DType::f8)
    few::launch_sums<Fp8>(ctx, w, beta, out);
  else
    few::launch_sums<bf16>(ctx, w, beta, out);
  check_launch("few_rows_sum_weights");
}

void few_rows_tiles(Context& ctx, const Tensor& w, std::int64_t span, const Tensor& out) {
  static_assert(few::kTile == kTileRows && byte_rows(1) == kTileRows);
  const auto tiles = static_cast<unsigned>(byte_rows(w.rows()) / few::kTile);
  few::tiles_kernel<<<tiles, few::kThreads, 0, stream(ctx)>>>(w.as<char>(), w.ld, static_cast<int>(w.rows()), static_cast<int>(span),
                                                              out.as<char>());
  BHYT_CUDA(cudaMemcpyAsync(byte_scales(out), byte_scales(w), static_cast<std::size_t>(w.rows()) * sizeof(float), cudaMemcpyDeviceToDevice,
                            stream(ctx)));
  check_launch("few_rows_tiles");
}

}  // namespace bhyt::cuda
