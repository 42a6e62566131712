#include <cstring>

#include "core/check.h"
#include "core/threads.h"
#include "ops/rows/rows.h"

namespace bhyt::cpu {

namespace {

char* row_of(const Tensor& t, std::int64_t row) {
  return static_cast<char*>(t.data) + row * t.ld * static_cast<std::int64_t>(size_of(t.dtype));
}
std::size_t row_bytes(const Tensor& t) { return static_cast<std::size_t>(t.cols()) * size_of(t.dtype); }

std::int64_t place(const Tensor& rows, std::int64_t i, const Tensor& all) {
  const std::int32_t row = rows.as<std::int32_t>()[i];
  check(row < all.rows(), "[rows] expected places below {}, got {} at {}", all.rows(), row, i);
  return row;
}

}  // namespace

void gather_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& out) {
  parallel_for(ctx.threads(), rows.size(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = place(rows, i, from);
      if (row < 0)
        std::memset(row_of(out, i), 0, row_bytes(out));
      else
        std::memcpy(row_of(out, i), row_of(from, row), row_bytes(out));
    }
  });
}

void scatter_rows(Context& ctx, const Tensor& from, const Tensor& rows, const Tensor& to) {
  parallel_for(ctx.threads(), to.rows(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::memset(row_of(to, i), 0, row_bytes(to));
  });
  parallel_for(ctx.threads(), rows.size(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (const std::int64_t row = place(rows, i, to); row >= 0) std::memcpy(row_of(to, row), row_of(from, i), row_bytes(to));
  });
}

}  // namespace bhyt::cpu
