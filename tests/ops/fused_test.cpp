// Products and what follows them in one kernel, against the same operations one by one in fp32 on the CPU. Only some GPUs have such
// kernels.
#include "ops/linear/fused.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/memory.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

using Doubles = std::vector<double>;

Doubles drawn(std::int64_t rows, std::int64_t cols, std::uint64_t seed, double factor = 1) {
  return draw({{.name = "v", .shape = {rows, cols}, .role = Role::constant, .scale = factor}}, DType::bf16, seed).at("v");
}

// Within so much of the expected values, their size counted in.
void expect_near(const Doubles& got, const Doubles& expected, double bar) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bar * (1 + std::abs(expected[i]))) << i;
}

TEST(Fused, SwigluOfAProduct) {
  BHYT_SKIP_WITHOUT_GPU();
  Context gpu(Device::cuda(0));
  struct Size {
    std::int64_t rows, d, mlp;
  };
  for (const Size& size : {Size{1, 64, 64}, {9, 128, 192}, {33, 2048, 512}, {63, 1088, 1536}, {33, 832, 256}, {64, 512, 8960}}) {
    const std::int64_t rows = size.rows, d = size.d, mlp = size.mlp;
    SCOPED_TRACE(fmt::format("{} rows, {} to {}", rows, d, mlp));
    const Doubles x = drawn(rows, d, 1), w = drawn(2 * mlp, d, 2, 1 / std::sqrt(static_cast<double>(d)));
    const auto by_parts = [&] {
      Context& ctx = on_cpu();
      const OwnedTensor xs = make_tensor(ctx, DType::f32, {rows, d}, x), ws = make_tensor(ctx, DType::f32, {2 * mlp, d}, w),
                        both(ctx, DType::f32, {rows, 2 * mlp}), h(ctx, DType::f32, {rows, mlp});
      linear(ctx, xs, ws, both);
      swiglu(ctx, both, h);
      return to_doubles(ctx, h);
    };
    const OwnedTensor xs = make_tensor(gpu, DType::bf16, {rows, d}, x), ws = make_tensor(gpu, DType::bf16, {2 * mlp, d}, w);
    const auto at_once = [&](std::int64_t first, std::int64_t n) {
      const OwnedTensor h(gpu, DType::bf16, {n, mlp});
      linear_swiglu(gpu, xs.t.row_slice(first, n), ws, h);
      return to_doubles(gpu, h);
    };
    if (const OwnedTensor h(gpu, DType::bf16, {rows, mlp}); !takes_linear_swiglu(gpu, xs, ws, h))
      GTEST_SKIP() << "this GPU has no kernel for it";
    const Doubles got = at_once(0, rows);
    expect_near(got, by_parts(), 0x1p-8);
    const Doubles last = at_once(rows - 1, 1);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), got.end() - mlp)) << "the last row by itself has other bits";
  }
}

// Rows at many positions of several sequences, whose pages lie in no order.
struct Pages {
  static constexpr std::int64_t kSequences = 3, kWidth = 4;
  std::vector<std::int32_t> positions, sequences, table;
  std::vector<PagedPiece> pieces;

  explicit Pages(std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t sequence = i * kSequences / rows,
                         before = pieces.empty() || pieces.back().sequence != sequence ? 7 * sequence : -1;
      if (before >= 0)
        pieces.push_back({.row = i, .rows = 1, .past = before, .sequence = sequence});
      else
        ++pieces.back().rows;
      positions.push_back(static_cast<std::int32_t>(pieces.back().past + pieces.back().rows - 1));
      sequences.push_back(static_cast<std::int32_t>(sequence));
    }
    for (std::int32_t i = 0; i < kSequences * kWidth; ++i) table.push_back((i * 5 + 3) % (kSequences * kWidth));
  }
};

struct Made {
  Doubles qkv, pages;
};

// `at_once` or one after the other; in the context's type.
Made made(Context& ctx, DType type, const Doubles& x, const Doubles& w, std::int64_t d, const AttentionShape& s, bool at_once,
          bool& taken) {
  const std::int64_t rows = std::ssize(x) / d, columns = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const Pages where(rows);
  const auto ints = [&](const std::vector<std::int32_t>& v, std::int64_t of_rows, std::int64_t of_cols) {
    OwnedTensor t(ctx, DType::i32, {of_rows, of_cols});
    from_host(ctx, v.data(), t);
    return t;
  };
  const OwnedTensor positions = ints(where.positions, 1, rows), sequences = ints(where.sequences, 1, rows),
                    table = ints(where.table, Pages::kSequences, Pages::kWidth);
  const PagedRows at{.positions = positions, .sequences = sequences, .table = table, .pieces = where.pieces, .copies = {}};
  const OwnedTensor xs = make_tensor(ctx, type, {rows, d}, x), ws = make_tensor(ctx, type, {columns, d}, w),
                    qkv(ctx, type, {rows, columns}),
                    pages(ctx, type, {Pages::kSequences * Pages::kWidth * kPageTokens, 2 * s.kv_heads * s.head_dim});
  const OwnedTensor rope = rope_table(ctx, Pages::kWidth * kPageTokens, s.head_dim, 10000, {});
  zero(ctx, pages);
  taken = !at_once || takes_linear_to_pages(ctx, xs, ws, qkv, pages, s);
  if (!taken) return {};
  if (at_once) {
    linear_to_pages(ctx, xs, ws, qkv, rope, pages, at, s);
  } else {
    linear(ctx, xs, ws, qkv);
    rope_to_pages(ctx, qkv, rope, pages, at, s);
  }
  return {to_doubles(ctx, qkv), to_doubles(ctx, pages)};
}

TEST(Fused, ProductsToPages) {
  BHYT_SKIP_WITHOUT_GPU();
  Context gpu(Device::cuda(0));
  for (const auto& [rows, d, s] :
       std::vector<std::tuple<std::int64_t, std::int64_t, AttentionShape>>{{3, 64, {.heads = 1, .kv_heads = 1, .head_dim = 64}},
                                                                           {17, 320, {.heads = 6, .kv_heads = 3, .head_dim = 64}},
                                                                           {64, 2048, {.heads = 32, .kv_heads = 8, .head_dim = 64}},
                                                                           {33, 768, {.heads = 4, .kv_heads = 2, .head_dim = 64}},
                                                                           {40, 512, {.heads = 5, .kv_heads = 1, .head_dim = 128}},
                                                                           {64, 128, {.heads = 128, .kv_heads = 16, .head_dim = 128}}}) {
    SCOPED_TRACE(fmt::format("{} rows, {} to {} + 2·{} heads of {}", rows, d, s.heads, s.kv_heads, s.head_dim));
    const Doubles x = drawn(rows, d, 1), w = drawn((s.heads + 2 * s.kv_heads) * s.head_dim, d, 2, 1 / std::sqrt(static_cast<double>(d)));
    bool taken = false;
    const Made got = made(gpu, DType::bf16, x, w, d, s, true, taken);
    if (!taken) GTEST_SKIP() << "this GPU has no kernel for it";
    const Made expected = made(on_cpu(), DType::f32, x, w, d, s, false, taken);
    expect_near(got.qkv, expected.qkv, 0x1p-8);
    expect_near(got.pages, expected.pages, 0x1p-8);
    for (std::size_t i = 0; i < got.pages.size(); ++i)
      ASSERT_EQ(got.pages[i] == 0, expected.pages[i] == 0) << "a place that nobody has, " << i;
  }
}

TEST(Fused, OnlyWhatADeviceHasAKernelFor) {
  Context& cpu = on_cpu();
  const OwnedTensor x(cpu, DType::bf16, {4, 64}), w(cpu, DType::bf16, {128, 64}), h(cpu, DType::bf16, {4, 64});
  EXPECT_FALSE(takes_linear_swiglu(cpu, x, w, h));
  EXPECT_ANY_THROW(linear_swiglu(cpu, x, w, h));
}

}  // namespace
}  // namespace bhyt::testing
