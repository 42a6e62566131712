// Work is cut into tasks: some rows of x (packed as the kernels want them) times some rows of w.
#include <algorithm>

#include "core/threads.h"
#include "ops/attention/tile_bf16.h"
#include "ops/gemm/instructions.h"
#include "ops/gemm/int8.h"
#include "ops/gemm/row_mmla.h"
#include "ops/gemm/row_panels.h"
#include "ops/gemm/row_tiles.h"
#include "ops/gemm/row_units.h"
#include "ops/gemm/row_units_int8.h"
#include "ops/gemm/rows.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kAtOnce = 512;              // rows of x that are packed at a time
constexpr std::int64_t kMmlaAtOnce = 128;          // these stay in the cache
constexpr std::int64_t kTaskRows = 64;             // of x in a task
constexpr std::int64_t kTaskOuts = kManyOuts;      // of w in a task, at most, but for a long_stretch
constexpr std::int64_t kTaskElements = 128 << 10;  // of w in a task: enough to be read in one go
constexpr std::int64_t kSums = std::max(kTaskRows * kTaskOuts, kAtOnce* kPanelTaskOuts);

// Which rows and outputs a task is about.
struct Part {
  std::int64_t row, rows, out, outs;
};

BHYT_CLONES void put_row(const float* sums, std::int64_t n, float* y, bool accumulate) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = accumulate ? y[i] + sums[i] : sums[i];
}
BHYT_CLONES void put_row(const float* sums, std::int64_t n, bf16* y, bool accumulate) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = to_bf16(accumulate ? to_float(y[i]) + sums[i] : sums[i]);
}

// A part's sums [rows, ·], ld apart, to their place in y.
void put(const float* sums, std::int64_t ld, const Part& p, const Tensor& y, bool accumulate) {
  dispatch_float(y.dtype, [&]<class Out>(Out) {
    for (std::int64_t i = 0; i < p.rows; ++i) put_row(sums + i * ld, p.outs, y.as<Out>() + (p.row + i) * y.ld + p.out, accumulate);
  });
}

// Where rows are packed, for vectors of so many lanes, and what each worker computes in: kSums for results, and as much again or a panel.
// In the context's workspace alone, for callers have their own things in the other scratch.
struct Memory {
  int lanes;
  void* packed;
  WorkerScratch workers;
};
Memory memory_for(Context& ctx, int lanes, std::int64_t rows, std::int64_t depth) {
  const PanelShape panel = panel_shape(lanes);
  const std::int64_t worker = kSums + round_up(std::max({kPanelFloats, kSums, panel.scratch}), 16);
  const std::int64_t n = std::min(rows, kAtOnce), workers = ctx.threads().workers();
  const std::int64_t floats = n * row_distance(depth) * 4, panels = (n + panel.rows - 1) / panel.rows * panel.distance(depth) * 4,
                     tiles = packed_size(n, depth) * 2, pairs = round_up(n, kMmlaRows) / kMmlaRows * mmla_distance(depth) + kMmlaAtOnce * 4,
                     digits = round_up(n, kTileRows) * (digits_distance(depth) + 4);
  const std::int64_t packed = round_up(std::max({floats, panels, tiles, pairs, digits}), 256);
  char* const at = static_cast<char*>(ctx.scratch(static_cast<std::size_t>(packed + workers * worker * 4), Context::Use::workspace));
  return {lanes, at, {reinterpret_cast<float*>(at + packed), static_cast<std::size_t>(worker)}};
}

// Calls f(i) for the rows of x.
template <class F>
void each_row(Context& ctx, const Tensor& x, F&& f) {
  parallel_for(ctx.threads(), x.rows(), (1 << 15) / x.cols() + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

// Rows of w in a task where there are few of x: a multiple of `least`, as many as leave every thread two tasks, or a few more where `most`
// has to be kept to. Long stretches are read quicker, and all threads have as many.
std::int64_t long_stretch(Context& ctx, const Tensor& w, std::int64_t least, std::int64_t most) {
  const std::int64_t threads = ctx.threads().count(), tasks = round_up(std::max(2 * threads, (w.rows() + most - 1) / most), threads);
  return std::clamp(round_up((w.rows() + tasks - 1) / tasks, least), least, most / least * least);
}

// Rows of w in a task, a multiple of `least` and at most `most`: `elements` of it.
std::int64_t stretch_of(std::int64_t elements, const Tensor& w, std::int64_t least, std::int64_t most) {
  return std::clamp(elements / w.cols() / least * least, least, most);
}

// The same for kernels that read rows far apart where there are few of x.
std::int64_t far_stretch(Context& ctx, const Tensor& x, const Tensor& w, std::int64_t least) {
  if (kReadsFar && x.rows() < kManyRows) return long_stretch(ctx, w, least, kSums / kManyRows);
  return stretch_of(kTaskElements, w, least, kTaskOuts);
}

// Calls f(part, scratch) for the parts of a product, of `outs` rows of w each.
template <class F>
void for_parts(Context& ctx, const Tensor& x, const Tensor& w, const Memory& memory, std::int64_t outs, F&& f) {
  const std::int64_t down = (x.rows() + kTaskRows - 1) / kTaskRows, across = (w.rows() + outs - 1) / outs;
  parallel_tasks(ctx.threads(), across * down, [&](std::int64_t t, int worker) {
    const std::int64_t row = t % down * kTaskRows, out = t / down * outs;
    f(Part{row, std::min(kTaskRows, x.rows() - row), out, std::min(outs, w.rows() - out)}, memory.workers.of(worker));
  });
}

template <class In>
void by_tiles(Context& ctx, const Memory& memory, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const std::int64_t depth = x.cols(), distance = row_distance(depth);
  const bool many = x.rows() >= kManyRows;
  auto* const packed = static_cast<float*>(memory.packed);
  each_row(ctx, x, [&](std::int64_t i) { pack_row(x.as<In>() + i * x.ld, depth, many, memory.lanes, packed + i * distance); });
  for_parts(ctx, x, w, memory, far_stretch(ctx, x, w, 8), [&](const Part& p, float* scratch) {
    run(RowTask<In>{.rows = p.rows,
                    .outs = p.outs,
                    .depth = depth,
                    .many = many,
                    .x = packed + p.row * distance,
                    .ldx = distance,
                    .w = w.as<In>() + p.out * w.ld,
                    .ldw = w.ld,
                    .sums = scratch,
                    .ldsums = p.outs,
                    .panel = scratch + kSums},
        memory.lanes);
    put(scratch, p.outs, p, y, accumulate);
  });
}

// Tasks have all rows: laying a part of w out for them is what costs.
template <class In>
void by_panels(Context& ctx, const Memory& memory, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const PanelShape panel = panel_shape(memory.lanes);
  const std::int64_t depth = x.cols(), distance = panel.distance(depth);
  auto* const packed = static_cast<float*>(memory.packed);
  parallel_tasks(ctx.threads(), (x.rows() + panel.rows - 1) / panel.rows, [&](std::int64_t t) {
    const std::int64_t row = t * panel.rows;
    pack_panel(x.as<In>() + row * x.ld, x.ld, std::min(panel.rows, x.rows() - row), depth, memory.lanes, packed + t * distance);
  });
  const bool direct = y.dtype == DType::f32 && panel.in_one_block(depth);
  // Small tasks where there are few, so that no thread waits long for the last one.
  const std::int64_t outs = w.rows() < 32 * panel.task_outs ? panel.outs : panel.task_outs;
  parallel_tasks(ctx.threads(), (w.rows() + outs - 1) / outs, [&](std::int64_t t, int worker) {
    const std::int64_t out = t * outs;
    const Part p{0, x.rows(), out, std::min(outs, w.rows() - out)};
    float* const scratch = memory.workers.of(worker);
    run(PanelTask<In>{.rows = p.rows,
                      .outs = p.outs,
                      .depth = depth,
                      .x = packed,
                      .w = w.as<In>() + out * w.ld,
                      .ldw = w.ld,
                      .sums = direct ? y.as<float>() + out : scratch,
                      .ldsums = direct ? y.ld : p.outs,
                      .add = direct && accumulate,
                      .scratch = scratch + kSums},
        memory.lanes);
    if (!direct) put(scratch, p.outs, p, y, accumulate);
  });
}

// Calls f(part, sums) for the parts of a product on a matrix unit; f writes sums [outs, rows up to kTileRows].
template <class F>
void for_unit_parts(Context& ctx, const Tensor& x, const Tensor& w, const Memory& memory, const Tensor& y, bool accumulate, F&& f) {
  // Few rows of x: tasks long enough that what they ask for behind their end does not count, but some for each thread.
  const bool few = x.rows() <= kTileRows;
  const std::int64_t outs =
      few ? std::min(stretch_of(4 * kTaskElements, w, kTileRows, kSums / kTileRows), long_stretch(ctx, w, kTileRows, kSums / kTileRows))
          : stretch_of(kTaskElements, w, 4 * kTileRows, kTaskOuts);
  for_parts(ctx, x, w, memory, outs, [&](const Part& p, float* scratch) {
    const MatrixUnit unit;
    f(p, scratch + kSums);
    const std::int64_t wide = round_up(p.outs, kTileRows);
    transpose(scratch + kSums, wide, round_up(p.rows, kTileRows), scratch);
    put(scratch, wide, p, y, accumulate);
  });
}

void by_units(Context& ctx, const Memory& memory, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const std::int64_t depth = x.cols(), size = packed_size(kTileRows, depth);
  auto* const packed = static_cast<bf16*>(memory.packed);
  parallel_tasks(ctx.threads(), (x.rows() + kTileRows - 1) / kTileRows, [&](std::int64_t t) {
    const std::int64_t row = t * kTileRows;
    pack_tiles(x.as<bf16>() + row * x.ld, x.ld, std::min(kTileRows, x.rows() - row), depth, packed + t * size);
  });
  for_unit_parts(ctx, x, w, memory, y, accumulate, [&](const Part& p, float* sums) {
    run(UnitTask{.rows = p.rows,
                 .outs = p.outs,
                 .depth = depth,
                 .x = packed + p.row / kTileRows * size,
                 .w = w.as<bf16>() + p.out * w.ld,
                 .ldw = w.ld,
                 .sums = sums,
                 .ldsums = round_up(p.rows, kTileRows)});
  });
}

void by_int8_units(Context& ctx, const Memory& memory, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const std::int64_t depth = x.cols(), size = packed_digits_size(depth);
  auto* const scales = static_cast<float*>(memory.packed);
  auto* const packed = reinterpret_cast<std::uint8_t*>(scales + round_up(x.rows(), kTileRows));
  parallel_tasks(ctx.threads(), (x.rows() + kTileRows - 1) / kTileRows, [&](std::int64_t t) {
    const std::int64_t row = t * kTileRows;
    pack_digit_tiles(x.row_slice(row, std::min(kTileRows, x.rows() - row)), packed + t * size, scales + row);
  });
  for_unit_parts(ctx, x, w, memory, y, accumulate, [&](const Part& p, float* sums) {
    run(Int8UnitTask{.digits = unit_digits(x.dtype),
                     .rows = p.rows,
                     .outs = p.outs,
                     .depth = depth,
                     .x = packed + p.row / kTileRows * size,
                     .scales = scales + p.row,
                     .w = w.as<std::int8_t>() + p.out * w.ld,
                     .sums = sums});
  });
}

// Tasks have all rows, unless there would be fewer than threads. W: bf16 or int8.
template <class W>
void by_mmla(Context& ctx, const Memory& memory, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const std::int64_t depth = x.cols(), distance = mmla_distance(depth);
  const bool alone = x.rows() == 1;
  auto* const scales = static_cast<float*>(memory.packed);
  auto* const packed = reinterpret_cast<char*>(scales + kMmlaAtOnce);
  parallel_tasks(ctx.threads(), (x.rows() + kMmlaRows - 1) / kMmlaRows, [&](std::int64_t t) {
    const std::int64_t row = t * kMmlaRows;
    pack_mmla<W>(x.as<bf16>() + row * x.ld, x.ld, std::min(kMmlaRows, x.rows() - row), depth, alone, packed + t * distance, scales + row);
  });
  // Many rows of x: parts of w that stay in the cache.
  static_assert(kMmlaAtOnce * kTaskOuts / 2 <= kSums);
  const std::int64_t most = x.rows() <= kMmlaRows ? kSums / kMmlaRows : kTaskOuts / 2;
  const std::int64_t outs = long_stretch(ctx, w, 16, most);
  const std::int64_t across = (w.rows() + outs - 1) / outs, parts = std::max<std::int64_t>(1, ctx.threads().workers() / across);
  const std::int64_t rows = round_up((x.rows() + parts - 1) / parts, kMmlaRows), down = (x.rows() + rows - 1) / rows;
  parallel_tasks(ctx.threads(), across * down, [&](std::int64_t t, int worker) {
    const std::int64_t row = t % down * rows, out = t / down * outs;
    const Part p{row, std::min(rows, x.rows() - row), out, std::min(outs, w.rows() - out)};
    float* const scratch = memory.workers.of(worker);
    run(MmlaTask<W>{.rows = p.rows,
                    .outs = p.outs,
                    .depth = depth,
                    .alone = alone,
                    .x = packed + row / kMmlaRows * distance,
                    .scales = scales + row,
                    .w = w.as<W>() + p.out * w.ld,
                    .ldw = w.ld,
                    .sums = scratch,
                    .ldsums = p.outs});
    put(scratch, p.outs, p, y, accumulate);
  });
}

void by_int8(Context& ctx, const Memory& memory, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const Digits& digits = int8_digits(x.dtype, memory.lanes);
  const std::int64_t depth = x.cols(), distance = digits_distance(depth);
  auto* const scales = static_cast<float*>(memory.packed);
  auto* const packed = reinterpret_cast<std::uint8_t*>(scales + round_up(x.rows(), kTileRows));
  dispatch_float(x.dtype, [&]<class In>(In) {
    each_row(ctx, x, [&](std::int64_t i) { scales[i] = pack_digits(x.as<In>() + i * x.ld, depth, digits, packed + i * distance); });
  });
  for_parts(ctx, x, w, memory, far_stretch(ctx, x, w, 8), [&](const Part& p, float* scratch) {
    run(Int8Task{.digits = digits,
                 .rows = p.rows,
                 .outs = p.outs,
                 .depth = depth,
                 .x = packed + p.row * distance,
                 .scales = scales + p.row,
                 .w = w.as<std::int8_t>() + p.out * w.ld,
                 .sums = scratch},
        memory.lanes);
    put(scratch, p.outs, p, y, accumulate);
  });
}

}  // namespace

void rows_product(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y, bool accumulate) {
  const Instructions& has = ctx.keep<Instructions>();
  const bool units = has.matrix_unit && w.dtype == DType::bf16, int8_units = has.matrix_unit && w.dtype == DType::i8 && kInt8Units,
             mmla = !units && x.dtype == DType::bf16 && has.mmla_for(w.dtype);
  const std::int64_t at_once = mmla ? kMmlaAtOnce : kAtOnce;
  const Memory memory = memory_for(ctx, has.lanes, std::min(at_once, x.rows()), x.cols());
  for (std::int64_t first = 0; first < x.rows(); first += at_once) {
    const std::int64_t n = std::min(at_once, x.rows() - first);
    const Tensor some = x.row_slice(first, n), to = y.row_slice(first, n);
    if (units)
      by_units(ctx, memory, some, w, to, accumulate);
    else if (mmla && w.dtype == DType::i8)
      by_mmla<std::int8_t>(ctx, memory, some, w, to, accumulate);
    else if (mmla)
      by_mmla<bf16>(ctx, memory, some, w, to, accumulate);
    else if (int8_units && n >= kManyRows)  // int8's sums are exact in any way
      by_int8_units(ctx, memory, some, w, to, accumulate);
    else if (w.dtype == DType::i8)
      by_int8(ctx, memory, some, w, to, accumulate);
    else
      dispatch_float(w.dtype, [&]<class In>(In) {
        if (use_panels(n))
          by_panels<In>(ctx, memory, some, w, to, accumulate);
        else
          by_tiles<In>(ctx, memory, some, w, to, accumulate);
      });
  }
}

void reserve_rows_product(Context& ctx, std::int64_t rows, std::int64_t depth) {
  memory_for(ctx, ctx.keep<Instructions>().lanes, rows, depth);
}

}  // namespace bhyt::cpu
