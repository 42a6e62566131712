// Products by row: what a row comes to depends on nothing but itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/instructions.h"
#include "ops/gemm/int8.h"
#include "ops/gemm/rows_cuda.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

OwnedTensor drawn(DType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  return make_tensor(on_cpu(), type, {rows, cols}, draw({{"v", {rows, cols}, Role::constant}}, type, seed).at("v"));
}

// Contexts on the CPU, of any number of threads, that take the same instructions: all there are, or others.
class Processor {
 public:
  template <class Change>
  explicit Processor(Change&& change) : takes_(on_cpu()) {
    change(takes_);
  }
  Context& with(int threads) {
    Context& ctx = contexts_.try_emplace(threads, Device::cpu(), threads).first->second;
    ctx.keep<cpu::Instructions>() = takes_;
    return ctx;
  }

 private:
  cpu::Instructions takes_;
  std::map<int, Context> contexts_;
};
Processor& this_one() {
  static Processor one([](cpu::Instructions&) {});
  return one;
}
Processor without_mmla() {
  return Processor([](cpu::Instructions& takes) { takes.mmla = false; });
}
Processor with_a_matrix_unit() {
  return Processor([](cpu::Instructions& takes) { takes.matrix_unit = true; });
}
// So many or as many as there are, and no matrix unit.
Processor with_lanes(int lanes) {
  return Processor([=](cpu::Instructions& takes) {
    takes.lanes = std::min(lanes, takes.lanes);
    takes.matrix_unit = false;
  });
}

// Rows [first, first + n) of x times wᵀ, as bytes.
std::vector<char> product(const Tensor& x, const Tensor& w, DType result, std::int64_t first, std::int64_t n, int threads,
                          Processor& processor = this_one()) {
  Context& ctx = processor.with(threads);
  const OwnedTensor y(ctx, result, {n, w.rows()});
  gemm(ctx, x.row_slice(first, n), w, y, {.trans_b = true, .by_row = true});
  const char* const bytes = static_cast<const char*>(y.t.data);
  return {bytes, bytes + y.t.bytes()};
}

void check_bits(const Tensor& x, const Tensor& w, DType result, Processor& processor = this_one()) {
  const std::vector<char> all = product(x, w, result, 0, x.rows(), 2, processor);
  const std::size_t row = static_cast<std::size_t>(w.rows()) * size_of(result);
  for (const std::int64_t n : {1, 2, 3, 4, 5, 8, 16, 17, 33, 100})
    for (const int threads : {1, 2, 3})
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7}, x.rows() - n}) {
        const std::vector<char> some = product(x, w, result, first, n, threads, processor);
        ASSERT_EQ(std::memcmp(some.data(), all.data() + static_cast<std::size_t>(first) * row, some.size()), 0)
            << fmt::format("{} rows from {} on, {} threads, depth {}", n, first, threads, x.cols());
      }
}

void check_bits(DType type, Processor& processor = this_one()) {
  for (const std::int64_t depth : {5, 64, 203, 2500})
    check_bits(drawn(type, 270, depth, 1), drawn(type, 141, depth, 2), depth == 64 ? DType::f32 : type, processor);
}

TEST(GemmByRow, ARowHasItsBitsWhateverComesWithIt) {
  check_bits(DType::f32);
  check_bits(DType::bf16);
}

// x · wᵀ in double.
std::vector<double> reference(const Tensor& x, const Tensor& w) {
  const auto xs = to_doubles(on_cpu(), x), ws = to_doubles(on_cpu(), w);
  std::vector<double> y;
  for (std::int64_t i = 0; i < x.rows(); ++i)
    for (std::int64_t o = 0; o < w.rows(); ++o)
      y.push_back(std::inner_product(xs.begin() + i * x.cols(), xs.begin() + (i + 1) * x.cols(), ws.begin() + o * x.cols(), 0.0));
  return y;
}

// Every number of rows up to some tiles, with outputs and depths that fill none: the bits of single rows, which are right.
void check_every_number(DType type, Processor& processor = this_one()) {
  for (const std::int64_t depth : {1, 4, 15, 16, 49, 2048, 2065}) {
    const std::int64_t outs = depth < 50 ? 37 : 25, most = depth < 50 ? 130 : 34;
    const OwnedTensor x = drawn(type, most, depth, 1), w = drawn(type, outs, depth, 2);
    std::vector<char> single;
    for (std::int64_t i = 0; i < most; ++i)
      for (const char byte : product(x, w, DType::f32, i, 1, 1, processor)) single.push_back(byte);
    const auto right = reference(x, w);
    for (std::size_t i = 0; i < right.size(); ++i) {
      float got;
      std::memcpy(&got, single.data() + i * sizeof got, sizeof got);
      ASSERT_NEAR(got, right[i], 1e-5 * std::sqrt(static_cast<double>(depth))) << i << ", depth " << depth;
    }
    for (std::int64_t n = 1; n <= most; ++n) {
      const std::vector<char> some = product(x, w, DType::f32, 0, n, 2, processor);
      ASSERT_EQ(std::memcmp(some.data(), single.data(), some.size()), 0) << fmt::format("{} rows, depth {}", n, depth);
    }
  }
}

TEST(GemmByRow, EveryNumberOfRowsEqualsSingleOnes) {
  check_every_number(DType::f32);
  check_every_number(DType::bf16);
}

// What processors do that multiply no matrices of bf16.
TEST(GemmByRow, WithoutMmlaToo) {
  Processor plain = without_mmla();
  check_bits(DType::bf16, plain);
  check_every_number(DType::bf16, plain);
}

// What processors do whose vectors are shorter, without a matrix unit.
TEST(GemmByRow, WithShorterVectorsToo) {
  for (const int lanes : {16, 8, 4}) {
    Processor narrow = with_lanes(lanes);
    for (const DType type : {DType::f32, DType::bf16})
      for (const std::int64_t depth : {5, 64, 203, 2500}) {
        const OwnedTensor x = drawn(type, 107, depth, 1), w = drawn(type, 141, depth, 2), y(on_cpu(), DType::f32, {107, 141});
        gemm(narrow.with(2), x, w, y, {.trans_b = true, .by_row = true});
        const auto got = to_doubles(on_cpu(), y), right = reference(x, w);
        for (std::size_t i = 0; i < right.size(); ++i)
          ASSERT_NEAR(got[i], right[i], 1e-5 * std::sqrt(static_cast<double>(depth))) << i << ", depth " << depth << ", lanes " << lanes;
        check_bits(x, w, DType::f32, narrow);
      }
  }
}

// Each of these ways adds in an order of its own, so the bits tell whether it was taken.
TEST(GemmByRow, AContextTakesTheInstructionsThatItIsGiven) {
  const OwnedTensor x = drawn(DType::bf16, 30, 2500, 1), w = drawn(DType::bf16, 31, 2500, 2);
  for (const std::int64_t rows : {1, 30}) {
    Processor tiles = with_a_matrix_unit();
    std::set<std::vector<char>> bits{product(x, w, DType::f32, 0, rows, 2, tiles)};
    std::size_t ways = 1;
    for (int lanes = 4; lanes <= cpu::row_lanes(); lanes *= 2, ++ways) {
      Processor vectors = with_lanes(lanes);
      bits.insert(product(x, w, DType::f32, 0, rows, 2, vectors));
    }
    EXPECT_EQ(bits.size(), ways) << rows;
  }
}

// Depths of several parts, of which the last is cut, for few rows and many; outputs that no tile divides.
TEST(GemmByRow, DeepProductsAreRight) {
  for (const std::int64_t depth : {4096, 5637})
    for (const std::int64_t rows : {1, 3, 8, 13, 130}) {
      const OwnedTensor x = drawn(DType::bf16, rows, depth, 1), w = drawn(DType::bf16, 71, depth, 2), y(on_cpu(), DType::f32, {rows, 71});
      gemm(on_cpu(), x, w, y, {.trans_b = true, .by_row = true});
      const auto got = to_doubles(on_cpu(), y), right = reference(x, w);
      for (std::size_t i = 0; i < right.size(); ++i) ASSERT_NEAR(got[i], right[i], 1e-3) << i << ", " << rows << " rows, depth " << depth;
    }
}

// A row that is not finite keeps it to itself, and a weight that is not, to its output.
TEST(GemmByRow, NaNStaysInItsRowAndOutput) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t rows : {2, 9, 20}) {
      const std::int64_t depth = 21, outs = 11;
      std::vector<double> xs(static_cast<std::size_t>(rows * depth), 0.5), ws(static_cast<std::size_t>(outs * depth), 0.25);
      xs[static_cast<std::size_t>(depth + 3)] = inf;  // in row 1
      ws[static_cast<std::size_t>(4 * depth + 20)] = nan;
      const OwnedTensor x = make_tensor(on_cpu(), type, {rows, depth}, xs), w = make_tensor(on_cpu(), type, {outs, depth}, ws),
                        y(on_cpu(), DType::f32, {rows, outs});
      gemm(on_cpu(), x, w, y, {.trans_b = true, .by_row = true});
      const auto got = to_doubles(on_cpu(), y);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < outs; ++o) {
          const double value = got[static_cast<std::size_t>(r * outs + o)];
          if (o == 4)
            EXPECT_TRUE(std::isnan(value)) << r;
          else
            EXPECT_EQ(value, r == 1 ? inf : 0.125 * depth) << r << ", " << o;
        }
    }
}

// Rows of w and of the result that lie apart, and results that are added to: whether at once or by way of sums.
TEST(GemmByRow, AddsToManyRowsWhatItAddsToOne) {
  for (const std::int64_t depth : {64, 70, 2080})
    for (const auto& [type, result] : {std::pair{DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::bf16, DType::bf16}}) {
      const OwnedTensor x = drawn(type, 40, depth, 1), w = drawn(type, 31, depth + 3, 2), start = drawn(result, 40, 50, 3),
                        one(on_cpu(), result, {40, 50}), all(on_cpu(), result, {40, 50});
      const Tensor part = w.t.col_slice(0, depth);
      copy(on_cpu(), start, one);
      copy(on_cpu(), start, all);
      for (std::int64_t i = 0; i < 40; ++i)
        gemm(on_cpu(), x.t.row_slice(i, 1), part, one.t.row_slice(i, 1).col_slice(7, 31),
             {.trans_b = true, .accumulate = true, .by_row = true});
      gemm(on_cpu(), x, part, all.t.col_slice(7, 31), {.trans_b = true, .accumulate = true, .by_row = true});
      EXPECT_EQ(to_doubles(on_cpu(), all), to_doubles(on_cpu(), one)) << depth;
      EXPECT_NE(to_doubles(on_cpu(), all), to_doubles(on_cpu(), start)) << depth;
    }
}

// Plain loops stand in for a matrix unit.
TEST(GemmByRow, OnAMatrixUnitToo) {
  Processor tiles = with_a_matrix_unit();
  for (const std::int64_t depth : {1, 31, 64, 203, 2500}) {
    const OwnedTensor x = drawn(DType::bf16, 270, depth, 1), w = drawn(DType::bf16, 141, depth, 2), got(on_cpu(), DType::f32, {270, 141});
    gemm(tiles.with(2), x, w, got, {.trans_b = true, .by_row = true});
    const auto a = to_doubles(on_cpu(), got), b = reference(x, w);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5 * std::sqrt(static_cast<double>(depth))) << i << ", " << depth;
    check_bits(x, w, depth == 64 ? DType::bf16 : DType::f32, tiles);
  }
}

struct Int8 {
  Buffer memory;
  Tensor t;
  Int8(const Tensor& w, const Tensor& by)
      : memory(on_cpu(), static_cast<std::size_t>(w.rows() * int8_distance(w.cols()))), t(int8_matrix(memory.data(), w.rows(), w.cols())) {
    quantize_rows(on_cpu(), w, by, t);
  }
};

// What is multiplied by is the weights in 127 steps; nothing else may be lost.
TEST(GemmByRow, Int8MultipliesByWhatWeightsWereRoundedTo) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t depth : {1, 5, 64, 203, 2500}) {
      const OwnedTensor x = drawn(type, 9, depth, 1), w = drawn(type, 21, depth, 2), by = drawn(DType::f32, 1, depth, 3);
      const Int8 q(w, Tensor(by.t.data, DType::f32, Device::cpu(), {depth}));
      const auto xs = to_doubles(on_cpu(), x), ws = to_doubles(on_cpu(), w), factors = to_doubles(on_cpu(), by);
      const OwnedTensor y = make_tensor(on_cpu(), DType::f32, {9, 21}, std::vector<double>(9 * 21, 2.0));
      gemm(on_cpu(), x, q.t, y, {.trans_b = true, .accumulate = true, .by_row = true});
      const auto got = to_doubles(on_cpu(), y);
      for (std::int64_t o = 0; o < 21; ++o) {
        const auto weight = [&](std::int64_t i) {
          return static_cast<double>(static_cast<float>(ws[static_cast<std::size_t>(o * depth + i)]) *
                                     static_cast<float>(factors[static_cast<std::size_t>(i)]));
        };
        double top = 0;
        for (std::int64_t i = 0; i < depth; ++i) top = std::max(top, std::fabs(weight(i)));
        for (std::int64_t r = 0; r < 9; ++r) {
          double sum = 2, size = 0, weights = 0, largest = 0;
          for (std::int64_t i = 0; i < depth; ++i) {
            const double value = xs[static_cast<std::size_t>(r * depth + i)], w8 = std::round(weight(i) * 127 / top) * top / 127;
            sum += value * w8;
            size += std::fabs(value * w8);
            weights += std::fabs(w8);
            largest = std::max(largest, std::fabs(value));
          }
          // bf16: x in steps of a 32767th of the row's largest, of which it is half a step off at most.
          const double steps = type == DType::bf16 ? 0.51 / 32767 * largest * weights : 0;
          ASSERT_NEAR(got[static_cast<std::size_t>(r * 21 + o)], sum, 2e-6 * (2 + size) + steps) << r << ", " << o << ", depth " << depth;
        }
      }
    }
}

TEST(GemmByRow, Int8RowsHaveTheirBits) {
  for (const std::int64_t depth : {64, 203}) {
    const OwnedTensor w = drawn(DType::bf16, 141, depth, 2);
    check_bits(drawn(DType::bf16, 270, depth, 1), Int8(w, {}).t, DType::bf16);
    check_bits(drawn(DType::f32, 270, depth, 1), Int8(w, {}).t, DType::f32);
  }
}

// However the integers are laid out.
TEST(GemmByRow, Int8HasTheSameBitsOnAnyProcessor) {
  Processor others[] = {without_mmla(), with_lanes(16), with_lanes(8), with_lanes(4), with_a_matrix_unit()};
  const std::int64_t outs = 77;  // tiles side by side, far apart, and one that is cut
  for (const std::int64_t depth : {1, 40, 56, 64, 203, 1500, 5003, 9020})
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 10, 19, 70}) {
      const OwnedTensor x = drawn(DType::bf16, rows, depth, 1), fine = drawn(DType::f32, rows, depth, 3),
                        w = drawn(DType::bf16, outs, depth, 2);
      const Int8 q(w, {});
      const std::vector<char> bits = product(x, q.t, DType::f32, 0, rows, 2), fine_bits = product(fine, q.t, DType::f32, 0, rows, 2);
      for (Processor& other : others) {
        EXPECT_EQ(product(x, q.t, DType::f32, 0, rows, 2, other), bits) << rows << ", depth " << depth << ", processor " << &other - others;
        EXPECT_EQ(product(fine, q.t, DType::f32, 0, rows, 2, other), fine_bits)
            << rows << ", depth " << depth << ", processor " << &other - others;
      }
      const std::int64_t distance = cpu::digits_distance(depth), width = cpu::digits_width(depth);
      std::vector<std::uint8_t> digits(static_cast<std::size_t>(rows * distance));
      std::vector<float> scales, sums(static_cast<std::size_t>(rows * outs));
      for (std::int64_t r = 0; r < rows; ++r) {
        float inverse;
        const bf16* const row = x.t.as<bf16>() + r * depth;
        scales.push_back(cpu::int8_scale(row, depth, inverse));
        cpu::digits_of(row, depth, inverse, cpu::kSevenBits, digits.data() + r * distance, width);
      }
      cpu::run(cpu::Int8Task{.digits = cpu::kSevenBits,
                             .rows = rows,
                             .outs = outs,
                             .depth = depth,
                             .x = digits.data(),
                             .scales = scales.data(),
                             .w = q.t.as<std::int8_t>(),
                             .sums = sums.data()},
               cpu::row_lanes());
      EXPECT_EQ(std::memcmp(sums.data(), bits.data(), bits.size()), 0) << rows << ", depth " << depth;
    }
}

// The largest integers with one sign (digits that have none are small for the other), in as many columns as the lanes can add up and in
// more.
TEST(GemmByRow, Int8SumsDoNotOverflow) {
  for (const std::int64_t depth : {std::int64_t{4096}, std::int64_t{4160}, std::int64_t{8192}, std::int64_t{8200}, kInt8Columns})
    for (const auto& [type, sign, rows] : {std::tuple{DType::bf16, 1.0, 5},
                                           {DType::bf16, -1.0, 5},
                                           {DType::bf16, 1.0, 1},
                                           {DType::f32, 1.0, 5},
                                           {DType::f32, -1.0, 5},
                                           {DType::f32, 1.0, 1}}) {
      const std::int64_t outs = 9;
      const OwnedTensor x = make_tensor(on_cpu(), type, {rows, depth}, std::vector<double>(static_cast<std::size_t>(rows * depth), sign)),
                        w = make_tensor(on_cpu(), DType::f32, {outs, depth},
                                        std::vector<double>(static_cast<std::size_t>(outs * depth), 2.0)),
                        y(on_cpu(), DType::f32, {rows, outs});
      const Int8 q(w, {});
      for (const int lanes : {16, 8, 4}) {
        gemm(with_lanes(lanes).with(1), x, q.t, y, {.trans_b = true, .by_row = true});
        for (const double value : to_doubles(on_cpu(), y))
          ASSERT_NEAR(value * sign / static_cast<double>(2 * depth), 1, 1e-6) << rows << ", depth " << depth << ", lanes " << lanes;
      }
    }
}

// The outlier of a row leaves the others the precision that they had.
TEST(GemmByRow, Int8AndOutliers) {
  const std::int64_t depth = 8192;
  std::vector<double> xs;
  for (std::int64_t i = 0; i < depth; ++i) xs.push_back(to_float(to_bf16(i == 77 ? 3000.0f : std::sin(static_cast<float>(i)))));
  std::vector<double> ws(static_cast<std::size_t>(depth));
  for (std::size_t i = 0; i < ws.size(); ++i) ws[i] = i == 77 ? 0 : static_cast<double>(i % 255) - 127;
  const OwnedTensor x = make_tensor(on_cpu(), DType::bf16, {1, depth}, xs), w = make_tensor(on_cpu(), DType::f32, {1, depth}, ws),
                    y(on_cpu(), DType::f32, {1, 1});
  gemm(on_cpu(), x, Int8(w, {}).t, y, {.trans_b = true, .by_row = true});
  double squares = 0;
  for (std::size_t i = 0; i < ws.size(); ++i) squares += std::pow(xs[i] * ws[i], 2) + (i == 77 ? std::pow(3000.0 * 73, 2) : 0);
  EXPECT_NEAR(to_doubles(on_cpu(), y)[0], std::inner_product(xs.begin(), xs.end(), ws.begin(), 0.0), 0x1p-9 * std::sqrt(squares));
}

TEST(GemmByRow, Int8KeepsZerosAndNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const OwnedTensor w = make_tensor(on_cpu(), DType::f32, {3, 2}, {0, 0, 1, -2, nan, 1}),
                    x = make_tensor(on_cpu(), DType::f32, {3, 2}, {0, 0, 4, 1, 1, nan}), y(on_cpu(), DType::f32, {3, 3});
  gemm(on_cpu(), x, Int8(w, {}).t, y, {.trans_b = true, .by_row = true});
  const auto got = to_doubles(on_cpu(), y);
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], 0);
  EXPECT_EQ(got[3], 0);
  EXPECT_NEAR(got[4], 2, 0.04);
  for (const std::size_t i : {2, 5, 6, 7, 8}) EXPECT_TRUE(std::isnan(got[i])) << i;
}

// Rows that are not finite, zeros, or too small to have a scale, beside ordinary ones.
TEST(GemmByRow, Int8RowsAtTheEndsOfTheRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const std::int64_t depth = 40, outs = 6;
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t rows : {1, 7, 9, 20}) {
      std::vector<double> xs, ws;
      const std::vector<double> sizes{1, nan, 0, inf, 5e-35, 1e-40, 1e38};
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < depth; ++i) {
          const double size = sizes[static_cast<std::size_t>(r) % sizes.size()];
          xs.push_back(std::isfinite(size) ? size * static_cast<double>(i % 5) / 4 : i == 11 ? size : 1);
        }
      for (std::int64_t o = 0; o < outs; ++o)
        for (std::int64_t i = 0; i < depth; ++i) ws.push_back(i == 0 ? 1 : o == 2 ? 0 : std::cos(static_cast<double>(o * depth + i)));
      const OwnedTensor x = make_tensor(on_cpu(), type, {rows, depth}, xs), w = make_tensor(on_cpu(), DType::f32, {outs, depth}, ws),
                        y(on_cpu(), DType::f32, {rows, outs});
      gemm(on_cpu(), x, Int8(w, {}).t, y, {.trans_b = true, .by_row = true});
      const auto got = to_doubles(on_cpu(), y);
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t o = 0; o < outs; ++o) {
          const double size = sizes[static_cast<std::size_t>(r) % sizes.size()], value = got[static_cast<std::size_t>(r * outs + o)];
          double right = 0;
          for (std::int64_t i = 0; i < depth; ++i)
            right += xs[static_cast<std::size_t>(r * depth + i)] * ws[static_cast<std::size_t>(o * depth + i)];
          if (!std::isfinite(size))
            EXPECT_TRUE(std::isnan(value)) << r << ", " << o;
          else
            EXPECT_NEAR(value, size < 1e-30 ? 0 : right, 0.1 * size) << r << ", " << o;
        }
    }
}

TEST(GemmByRow, Int8HasALimitOfColumns) {
  const OwnedTensor w(on_cpu(), DType::bf16, {1, kInt8Columns + 1});
  EXPECT_ANY_THROW(Int8(w.t, {}));
}

// Products that are asked for nothing by row, as the library makes them.
TEST(GemmByRow, OtherProductsWithoutMmla) {
  Processor plain = without_mmla();
  for (const DType result : {DType::f32, DType::bf16}) {
    const OwnedTensor x = drawn(DType::bf16, 193, 1111, 1), w = drawn(DType::bf16, 300, 1111, 2), y(on_cpu(), result, {193, 300});
    gemm(plain.with(2), x, w, y, {.trans_b = true});
    const auto got = to_doubles(on_cpu(), y), right = reference(x, w);
    for (std::size_t i = 0; i < right.size(); ++i)
      ASSERT_NEAR(got[i], right[i], 1e-3 + (result == DType::bf16 ? 0x1p-8 * std::fabs(right[i]) : 0)) << i;
  }
}

// Few outputs: tasks are cut by rows too.
TEST(GemmByRow, FewOutputsOnManyThreads) {
  for (const std::int64_t outs : {1, 5, 16, 40}) {
    const OwnedTensor x = drawn(DType::bf16, 101, 75, 1), w = drawn(DType::bf16, outs, 75, 2);
    const auto one = product(x, w, DType::f32, 0, 101, 1);
    for (const int threads : {2, 5, 16}) EXPECT_EQ(product(x, w, DType::f32, 0, 101, threads), one) << outs << ", " << threads;
  }
}

#if defined(__aarch64__)
TEST(GemmByRow, TheInstructionsThatAreThereAreTaken) {
  cpu::Instructions takes(on_cpu());
  EXPECT_EQ(takes.mmla_for(DType::bf16), (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0);
  EXPECT_EQ(takes.mmla_for(DType::i8), (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0);
  takes.mmla = false;
  EXPECT_FALSE(takes.mmla_for(DType::bf16));
}
#endif

TEST(GemmByRow, RefusesOperandsThatLieOtherwise) {
  const OwnedTensor a = drawn(DType::f32, 2, 2, 1);
  EXPECT_ANY_THROW(gemm(on_cpu(), a, a, a, {.by_row = true}));
  EXPECT_ANY_THROW(gemm(on_cpu(), a, a, a, {.trans_a = true, .trans_b = true, .by_row = true}));
}

// On a GPU up to 64 rows at a time, in bf16: every row has its bits, whether it comes with others or not.
TEST(GemmByRow, OnAGpuToo) {
  BHYT_SKIP_WITHOUT_GPU();
  Context gpu(Device::cuda(0));
  for (const auto& size : {std::pair<std::int64_t, std::int64_t>{136, 64}, {512, 2048}, {3072, 2048}, {17000, 512}}) {
    const std::int64_t n = size.first, k = size.second;
    constexpr std::int64_t kRows = 64;
    const auto on_gpu = [&](std::int64_t rows, std::uint64_t seed) {
      return make_tensor(gpu, DType::bf16, {rows, k}, draw({{"v", {rows, k}, Role::constant}}, DType::bf16, seed).at("v"));
    };
    const OwnedTensor x = on_gpu(kRows, 1), w = on_gpu(n, 2);
    if (!cuda::takes_rows(gpu, x, w)) GTEST_SKIP() << "this GPU has no kernel for it";
    for (const DType result : {DType::bf16, DType::f32}) {
      const auto product = [&](std::int64_t first, std::int64_t rows) {
        const OwnedTensor y(gpu, result, {rows, n});
        gemm(gpu, x.t.row_slice(first, rows), w, y, {.trans_b = true, .by_row = true});
        return to_doubles(gpu, y);
      };
      const auto all = product(0, kRows);
      for (const std::int64_t rows : {1, 2, 9, 31, 63})
        for (const std::int64_t first : {std::int64_t{0}, std::int64_t{1}, kRows - rows}) {
          const auto some = product(first, rows);
          ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * n))
              << fmt::format("{} rows from {} on, {}x{}", rows, first, n, k);
        }
    }
  }
}

}  // namespace
}  // namespace bhyt::testing
