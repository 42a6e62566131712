// Products by row: what a row comes to depends on nothing but itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/memory.h"
#include "ops/gemm/gemm.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

OwnedTensor drawn(DType type, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  return make_tensor(on_cpu(), type, {rows, cols}, draw({{"v", {rows, cols}, Role::constant}}, type, seed).at("v"));
}

// Rows [first, first + n) of x times wᵀ, as bytes.
std::vector<char> product(const Tensor& x, const Tensor& w, DType result, std::int64_t first, std::int64_t n, int threads) {
  Context& ctx = test::context_on(Device::cpu(), threads);
  const OwnedTensor y(ctx, result, {n, w.rows()});
  gemm(ctx, x.row_slice(first, n), w, y, {.trans_b = true, .by_row = true});
  const char* const bytes = static_cast<const char*>(y.t.data);
  return {bytes, bytes + y.t.bytes()};
}

void check_bits(const Tensor& x, const Tensor& w, DType result) {
  const std::vector<char> all = product(x, w, result, 0, x.rows(), 2);
  const std::size_t row = static_cast<std::size_t>(w.rows()) * size_of(result);
  for (const std::int64_t n : {1, 2, 3, 4, 5, 8, 16, 17, 33, 100})
    for (const int threads : {1, 2, 3})
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{7}, x.rows() - n}) {
        const std::vector<char> some = product(x, w, result, first, n, threads);
        ASSERT_EQ(std::memcmp(some.data(), all.data() + static_cast<std::size_t>(first) * row, some.size()), 0)
            << fmt::format("{} rows from {} on, {} threads, depth {}", n, first, threads, x.cols());
      }
}

TEST(GemmByRow, ARowHasItsBitsWhateverComesWithIt) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t depth : {5, 64, 203, 2500})
      check_bits(drawn(type, 270, depth, 1), drawn(type, 141, depth, 2), depth == 64 ? DType::f32 : type);
}

TEST(GemmByRow, RefusesOperandsThatLieOtherwise) {
  const OwnedTensor a = drawn(DType::f32, 2, 2, 1);
  EXPECT_ANY_THROW(gemm(on_cpu(), a, a, a, {.by_row = true}));
  EXPECT_ANY_THROW(gemm(on_cpu(), a, a, a, {.trans_a = true, .trans_b = true, .by_row = true}));
}

}  // namespace
}  // namespace bhyt::testing
