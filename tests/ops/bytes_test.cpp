// Weights of a byte each on a GPU: how they are rounded, and the products of few rows with them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/memory.h"
#include "ops/few_rows/few_rows.h"
#include "ops/gemm/bytes.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

std::vector<double> values_of(DType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  return draw({{"v", {rows, cols}, Role::constant}}, type, seed).at("v");
}

struct Bytes {
  Buffer memory;
  Tensor t;
  Bytes(Context& ctx, DType type, const Tensor& w, const Tensor& by = {}, float factor = 1)
      : memory(ctx, byte_matrix_size(w.rows(), w.cols())), t(byte_matrix(memory.data(), type, ctx.device(), w.rows(), w.cols())) {
    round_to_bytes(ctx, w, by, factor, t);
  }
  // In the order that products of few rows read.
  Bytes(Context& ctx, const Bytes& rows, std::int64_t span)
      : memory(ctx, byte_matrix_size(rows.t.rows(), rows.t.cols())),
        t(byte_matrix(memory.data(), rows.t.dtype, ctx.device(), rows.t.rows(), rows.t.cols())) {
    few_rows_tiles(ctx, rows.t, span, t);
  }
  std::vector<double> wide(Context& ctx) const {
    const OwnedTensor out = make_tensor(ctx, DType::f32, {t.rows(), t.cols()});
    widen(ctx, t, out);
    return to_doubles(ctx, out);
  }
};

// Half of what lies between the values that there are around v, in a row whose largest magnitude is `top`.
double half_step(DType type, double v, double top) {
  if (type == DType::i8) return top / 127 / 2;
  const double place = std::max(-6.0, std::floor(std::log2(std::max(1e-30, std::fabs(v) * 448 / top))));
  return std::exp2(place - 3) * top / 448 / 2;
}

TEST(Bytes, AreTheNearest) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const DType type : {DType::i8, DType::f8})
    for (const DType from : {DType::f32, DType::bf16})
      for (const std::int64_t depth : {1, 2, 5, 64, 203, 2048}) {
        SCOPED_TRACE(fmt::format("{} from {}, depth {}", name_of(type), name_of(from), depth));
        const auto ws = values_of(from, 21, depth, 2), factors = values_of(DType::f32, 1, depth, 3);
        const OwnedTensor w = make_tensor(ctx, from, {21, depth}, ws), by = make_tensor(ctx, DType::f32, {depth}, factors);
        const auto got = Bytes(ctx, type, w, by, 0.75f).wide(ctx);
        for (std::size_t o = 0; o < 21; ++o) {
          std::vector<double> row;
          double top = 0;
          for (std::size_t i = 0; i < static_cast<std::size_t>(depth); ++i) {
            row.push_back(ws[o * static_cast<std::size_t>(depth) + i] * factors[i] * 0.75);
            top = std::max(top, std::fabs(row.back()));
          }
          for (std::size_t i = 0; i < row.size(); ++i)
            ASSERT_NEAR(got[o * row.size() + i], row[i], half_step(type, row[i], top) + 1e-6 * top) << o << ", " << i;
        }
      }
}

// Rows whose scale is 1.
TEST(Bytes, TiesGoToEven) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  const auto rounded = [&](DType type, const std::vector<double>& v) {
    return Bytes(ctx, type, make_tensor(ctx, DType::f32, {1, std::ssize(v)}, v)).wide(ctx);
  };
  EXPECT_EQ(rounded(DType::i8, {127, 2.5, 3.5, -2.5, -3.5, 0.5, -126.5}), (std::vector<double>{127, 2, 4, -2, -4, 0, -126}));
  EXPECT_EQ(rounded(DType::f8, {448, 17, 19, -17, -19, 0x1p-10, 0x3p-10, -0x1p-9, 0x7p-9, 432}),
            (std::vector<double>{448, 16, 20, -16, -20, 0, 0x1p-8, -0x1p-9, 0x7p-9, 448}));
}

TEST(Bytes, KeepZerosAndWhatIsNotANumber) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const OwnedTensor w = make_tensor(ctx, DType::f32, {4, 3}, {0, 0, 0, 1, -2, 0, nan, 1, 1, 1, -inf, 1});
  for (const DType type : {DType::i8, DType::f8}) {
    const auto got = Bytes(ctx, type, w).wide(ctx);
    for (const std::size_t i : {0, 1, 2, 5}) EXPECT_EQ(got[i], 0) << i;
    EXPECT_EQ(got[4], -2);
    for (std::size_t i = 6; i < 12; ++i) EXPECT_TRUE(std::isnan(got[i])) << i;
  }
}

// Products with what the bytes stand for, summed in fp32.
struct Products {
  Context& ctx;
  std::int64_t rows, depth;
  std::vector<double> xs = values_of(DType::bf16, rows, depth, 1);
  OwnedTensor x = make_tensor(ctx, DType::bf16, {rows, depth}, xs);

  struct Sum {
    double value, size;
  };
  Sum sum(const std::vector<double>& w, std::int64_t row, std::int64_t out) const {
    Sum s{};
    for (std::int64_t i = 0; i < depth; ++i) {
      const double term = xs[static_cast<std::size_t>(row * depth + i)] * w[static_cast<std::size_t>(out * depth + i)];
      s.value += term, s.size += std::fabs(term);
    }
    return s;
  }
};

// For each tile and eighth of the columns, sixteen bytes at a time: 64 columns, first eight lower rows, then the eight upper ones they
// meet.
TEST(Bytes, LieInTheOrderOfTiles) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  constexpr std::int64_t kDepth = 1024;
  const auto bytes_of = [&](const Bytes& b) {
    std::vector<std::uint8_t> bytes(b.memory.bytes());
    ctx.copy(Device::cpu(), bytes.data(), ctx.device(), b.memory.data(), bytes.size());
    return bytes;
  };
  for (const auto& [outs, span] : {std::pair<std::int64_t, std::int64_t>{37, 16}, {192, 64}, {80, 80}, {48, 16}}) {
    const Bytes rows(ctx, DType::i8, make_tensor(ctx, DType::bf16, {outs, kDepth}, values_of(DType::bf16, outs, kDepth, 2)));
    const auto from = bytes_of(rows), got = bytes_of(Bytes(ctx, rows, span));
    std::size_t at = 0;
    for (std::int64_t tile = 0; tile < (outs + 15) / 16; ++tile) {
      const std::int64_t low = span == 16 ? std::min(tile * 16, outs - 16) : tile / (span / 16) * span + tile % (span / 16) * 8;
      for (std::int64_t column = 0; column < kDepth; column += 64)
        for (const std::int64_t first : {low, low + span / 2})
          for (std::int64_t row = first; row < first + 8; ++row)
            for (std::int64_t i = 0; i < 64; ++i, ++at)
              ASSERT_EQ(got[at], from[static_cast<std::size_t>(row * kDepth + column + i)]) << outs << " rows, " << at;
    }
    const std::vector<std::uint8_t> scales(from.end() - outs * 4, from.end());
    EXPECT_EQ(std::vector<std::uint8_t>(got.end() - outs * 4, got.end()), scales);
  }
}

// One tile and many, the last one inside the one before it; few columns and more than stay in shared memory.
TEST(Bytes, LogitsOfFewRows) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const DType type : {DType::i8, DType::f8})
    for (const std::int64_t depth : {512, 1536, 2048, 4608, 8192})
      for (const std::int64_t outs : {16, 37, 2177})
        for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8}) {
          if (outs > 1000 && rows % 3 == 0) continue;
          const Products p{ctx, rows, depth};
          const Bytes w(ctx, type, make_tensor(ctx, DType::bf16, {outs, depth}, values_of(DType::bf16, outs, depth, 2)));
          const OwnedTensor y = make_tensor(ctx, DType::f32, {rows, outs});
          few_rows_logits(ctx, {.x = p.x}, Bytes(ctx, w, kTileRows).t, y);
          const auto got = to_doubles(ctx, y), wide = w.wide(ctx);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t o = 0; o < outs; ++o) {
              const auto s = p.sum(wide, r, o);
              ASSERT_NEAR(got[static_cast<std::size_t>(r * outs + o)], s.value, 3e-6 * s.size)
                  << fmt::format("{}: {} rows, depth {}: {}, {} of {}", name_of(type), rows, depth, r, o, outs);
            }
        }
}

// Lower and upper rows of a tile lie apart, each with a scale of its own.
TEST(Bytes, GateAndUpOfFewRows) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const DType type : {DType::i8, DType::f8})
    for (const std::int64_t rows : {1, 5, 8}) {
      constexpr std::int64_t kDepth = 1024, kWidth = 40;
      const Products p{ctx, rows, kDepth};
      auto values = values_of(DType::bf16, 2 * kWidth, kDepth, 2);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] *= std::exp2(-6.0 - static_cast<double>(i / kDepth % 4));
      const Bytes w(ctx, type, make_tensor(ctx, DType::bf16, {2 * kWidth, kDepth}, values));
      const OwnedTensor h = make_tensor(ctx, DType::bf16, {rows, kWidth});
      few_rows_swiglu(ctx, {.x = p.x}, Bytes(ctx, w, 2 * kWidth).t, h);
      const auto got = to_doubles(ctx, h), wide = w.wide(ctx);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < kWidth; ++o) {
          const double gate = p.sum(wide, r, o).value, up = p.sum(wide, r, o + kWidth).value;
          const double expected = gate / (1 + std::exp(-gate)) * up;
          ASSERT_NEAR(got[static_cast<std::size_t>(r * kWidth + o)], expected, 0x1p-8 * std::fabs(expected) + 1e-5) << r << ", " << o;
        }
    }
}

TEST(Bytes, ResidualOfFewRows) {
  BHYT_SKIP_WITHOUT_GPU();
  Context& ctx = test::context_on(Device::cuda(0));
  for (const DType type : {DType::i8, DType::f8})
    for (const std::int64_t rows : {1, 8}) {
      constexpr std::int64_t kDepth = 2048, kOuts = 48;
      const Products p{ctx, rows, kDepth};
      const auto residual = values_of(DType::bf16, rows, kOuts, 5);
      const OwnedTensor add = make_tensor(ctx, DType::bf16, {rows, kOuts}, residual), y = make_tensor(ctx, DType::bf16, {rows, kOuts});
      const Bytes w(ctx, type, make_tensor(ctx, DType::bf16, {kOuts, kDepth}, values_of(DType::bf16, kOuts, kDepth, 2)));
      few_rows_linear(ctx, {.x = p.x}, Bytes(ctx, w, kTileRows).t, {.residual = add, .y = y});
      const auto got = to_doubles(ctx, y), wide = w.wide(ctx);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < kOuts; ++o) {
          const auto s = p.sum(wide, r, o);
          const double expected = s.value + residual[static_cast<std::size_t>(r * kOuts + o)];
          ASSERT_NEAR(got[static_cast<std::size_t>(r * kOuts + o)], expected, 0x1p-8 * std::fabs(expected) + 3e-6 * s.size)
              << r << ", " << o;
        }
    }
}

}  // namespace
}  // namespace bhyt::testing
