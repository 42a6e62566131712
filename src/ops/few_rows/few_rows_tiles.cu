#include "ops/few_rows/few_rows.cuh"
#include "ops/few_rows/few_rows.h"
#include "ops/gemm/bytes.h"

namespace bhyt::cuda {

namespace few {
namespace {

// A block for each tile. The pieces of 16 bytes follow each other warp by warp, step by step, lower rows before upper ones, lane by lane.
__global__ void __launch_bounds__(kThreads)
    tiles_kernel(const char* w, std::int64_t ld, std::int64_t height, std::int64_t span, char* out) {
  TileRows rows = tile_rows(static_cast<int>(blockIdx.x), span);
  if (span == kTile) rows.low = min(rows.low, height - kTile), rows.high = rows.low + 8;  // the last may begin inside the one before it
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

}  // namespace
}  // namespace few

void few_rows_tiles(Context& ctx, const Tensor& w, std::int64_t span, const Tensor& out) {
  static_assert(few::kTile == kTileRows && byte_rows(1) == kTileRows);
  const auto tiles = static_cast<unsigned>(byte_rows(w.rows()) / few::kTile);
  few::tiles_kernel<<<tiles, few::kThreads, 0, stream(ctx)>>>(w.as<char>(), w.ld, w.rows(), span, out.as<char>());
  BHYT_CUDA(cudaMemcpyAsync(byte_scales(out), byte_scales(w), static_cast<std::size_t>(w.rows()) * sizeof(float), cudaMemcpyDeviceToDevice,
                            stream(ctx)));
  check_launch("few_rows_tiles");
}

}  // namespace bhyt::cuda
