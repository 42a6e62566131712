#include <algorithm>

#include "core/threads.h"
#include "ops/gemm/row_tiles.h"
#include "ops/gemm/rows.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kAtOnce = 256;              // rows of x that are packed at a time
constexpr std::int64_t kTaskRows = 64;             // of x in a task
constexpr std::int64_t kTaskOuts = 128;            // of w in a task, at most
constexpr std::int64_t kTaskElements = 128 << 10;  // of w in a task: enough to be read in one go

// Rows of w in a task.
std::int64_t task_outs(std::int64_t depth) {
  return std::clamp(kTaskElements / std::max<std::int64_t>(depth, 1) / 8 * 8, std::int64_t{8}, kTaskOuts);
}

template <class In>
void pack(Context& ctx, const Tensor& x, bool many, float* out) {
  const std::int64_t width = row_distance(x.cols());
  parallel_for(ctx.threads(), x.rows(), (1 << 16) / width + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) pack_row(x.as<In>() + i * x.ld, x.cols(), many, out + i * width);
  });
}

float* packed_rows(Context& ctx, std::int64_t rows, std::int64_t depth) {
  return static_cast<float*>(ctx.scratch(static_cast<std::size_t>(std::min(rows, kAtOnce) * row_distance(depth)) * sizeof(float)));
}

WorkerScratch task_scratch(Context& ctx) { return ctx.worker_scratch(kPanelFloats + kTaskRows * kTaskOuts); }

BHYT_CLONES void put_row(const float* sums, std::int64_t n, float* y, bool accumulate) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = accumulate ? y[i] + sums[i] : sums[i];
}
BHYT_CLONES void put_row(const float* sums, std::int64_t n, bf16* y, bool accumulate) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_bf16(accumulate ? to_float(y[i]) + sums[i] : sums[i]);
}

template <class In>
void product(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const std::int64_t depth = x.cols(), outs = task_outs(depth), across = (w.rows() + outs - 1) / outs;
  const bool many = x.rows() >= kManyRows;
  float* const packed = packed_rows(ctx, x.rows(), depth);
  pack<In>(ctx, x, many, packed);
  const WorkerScratch scratch = task_scratch(ctx);
  const std::int64_t down = (x.rows() + kTaskRows - 1) / kTaskRows;
  parallel_tasks(ctx.threads(), across * down, [&](std::int64_t t, int worker) {
    const std::int64_t row = t % down * kTaskRows, out = t / down * outs;
    const RowTask<In> task{.rows = std::min(kTaskRows, x.rows() - row),
                           .outs = std::min(outs, w.rows() - out),
                           .depth = depth,
                           .many = many,
                           .x = packed + row * row_distance(depth),
                           .ldx = row_distance(depth),
                           .w = w.as<In>() + out * w.ld,
                           .ldw = w.ld,
                           .sums = scratch.of(worker) + kPanelFloats,
                           .panel = scratch.of(worker)};
    run(task);
    dispatch_float(y.dtype, [&]<class Out>(Out) {
      for (std::int64_t i = 0; i < task.rows; ++i)
        put_row(task.sums + i * task.outs, task.outs, y.as<Out>() + (row + i) * y.ld + out, accumulate);
    });
  });
}

}  // namespace

void rows_product(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  for (std::int64_t first = 0; first < x.rows(); first += kAtOnce) {
    const std::int64_t n = std::min(kAtOnce, x.rows() - first);
    dispatch_float(w.dtype, [&]<class In>(In) { product<In>(ctx, x.row_slice(first, n), w, y.row_slice(first, n), accumulate); });
  }
}

void reserve_rows_product(Context& ctx, std::int64_t rows, std::int64_t depth) {
  packed_rows(ctx, rows, depth);
  task_scratch(ctx);
}

}  // namespace bhyt::cpu
