#include "ops/rows/rows.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/memory.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

// Odd widths are copied piece by piece, even ones 16 bytes at a time; a matrix may be a part of a wider one.
TEST(Rows, AreTakenOutAndPutBack) {
  for (Context& ctx : test::contexts())
    for (const DType type : {DType::f32, DType::bf16})
      for (const std::int64_t cols : {1, 33, 64, 2048})
        for (const std::int64_t wider : {0, 8}) {
          const std::int64_t n = 37;
          std::vector<double> values(static_cast<std::size_t>(n * (cols + wider)));
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251) - 125;
          const OwnedTensor whole = make_tensor(ctx, type, {n, cols + wider}, values);
          const Tensor from = whole.t.col_slice(0, cols);
          const std::vector<double> places = {5, -1, 36, 0, -1, 12};
          const OwnedTensor rows = make_tensor(ctx, DType::i32, {6}, places);
          const OwnedTensor some = make_tensor(ctx, type, {6, cols}, std::vector<double>(static_cast<std::size_t>(6 * cols), 9));
          gather_rows(ctx, from, rows, some);
          const auto taken = to_doubles(ctx, some);
          for (std::int64_t r = 0; r < 6; ++r)
            for (std::int64_t c = 0; c < cols; ++c) {
              const auto place = static_cast<std::int64_t>(places[static_cast<std::size_t>(r)]);
              const double expected = place < 0 ? 0 : values[static_cast<std::size_t>(place * (cols + wider) + c)];
              ASSERT_EQ(taken[static_cast<std::size_t>(r * cols + c)], expected) << cols << " wide, row " << r << ", column " << c;
            }
          scatter_rows(ctx, some, rows, from);
          const auto back = to_doubles(ctx, whole);
          for (std::int64_t r = 0; r < n; ++r)
            for (std::int64_t c = 0; c < cols + wider; ++c) {
              const auto at = static_cast<std::size_t>(r * (cols + wider) + c);
              const bool stays = c >= cols || r == 5 || r == 36 || r == 0 || r == 12;
              ASSERT_EQ(back[at], stays ? values[at] : 0) << cols << " wide, row " << r << ", column " << c;
            }
        }
}

TEST(Rows, RefusesWhatDoesNotFit) {
  Context& ctx = on_cpu();
  const OwnedTensor from = make_tensor(ctx, DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}), out = make_tensor(ctx, DType::f32, {1, 3}, {0, 0, 0});
  EXPECT_THROW(gather_rows(ctx, from, make_tensor(ctx, DType::i32, {1}, {2}), out), Error);
  EXPECT_THROW(gather_rows(ctx, from, make_tensor(ctx, DType::i32, {2}, {0, 1}), out), Error);
  EXPECT_THROW(scatter_rows(ctx, out, make_tensor(ctx, DType::i32, {1}, {2}), from), Error);
}

}  // namespace
}  // namespace bhyt::testing
