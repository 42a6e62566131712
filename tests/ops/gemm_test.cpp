#include "ops/gemm/gemm.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "core/error.h"
#include "ops/gemm/tuning.h"
#include "ops/linear/linear.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

struct GemmCase {
  std::int64_t m, n, k;
  GemmOptions options = {};
  bool fp32_result = false;  // also for bf16 operands
  std::int64_t margin = 0;   // a, b and c are column slices that begin `margin` columns into wider matrices
};

double at(const std::vector<double>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }

void reference_product(const GemmCase& g, const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& before,
                       std::vector<double>& c) {
  const std::int64_t e = g.margin, lda = (g.options.trans_a ? g.m : g.k) + 2 * e, ldb = (g.options.trans_b ? g.k : g.n) + 2 * e;
  c = before;
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < g.k; ++l)
        sum += at(a, g.options.trans_a ? l * lda + i + e : i * lda + l + e) * at(b, g.options.trans_b ? j * ldb + l + e : l * ldb + j + e);
      double& out = c[static_cast<std::size_t>(i * (g.n + 2 * e) + j + e)];
      out = sum + (g.options.accumulate ? out : 0);
    }
}

Case gemm_case(const GemmCase& g) {
  const std::int64_t e = g.margin;
  const auto [ta, tb, accumulate, by_row] = g.options;
  return {.name = fmt::format("{}x{}x{}{}{}{}{}{} margin {}", g.m, g.n, g.k, ta ? " ta" : "", tb ? " tb" : "", accumulate ? " +=" : "",
                              by_row ? " by row" : "", g.fp32_result ? " to fp32" : "", e),
          .inputs = {{"a", {ta ? g.k : g.m, (ta ? g.m : g.k) + 2 * e}, Role::constant},
                     {"b", {tb ? g.n : g.k, (tb ? g.k : g.n) + 2 * e}, Role::constant},
                     {"before", {g.m, g.n + 2 * e}, g.fp32_result ? Role::constant32 : Role::constant}},
          .outputs = {{"c", {g.m, g.n + 2 * e}, g.fp32_result ? Output::Type::fp32 : Output::Type::run}},
          .reference = [g](Arrays& x, Round) { reference_product(g, x["a"], x["b"], x["before"], x["c"]); },
          .forward =
              [g, e](CaseTensors& x) {
                // Without accumulation what is there must not matter, so it is left at the NaN it holds (but for the margins).
                if (g.options.accumulate || e > 0) copy(x.ctx(), x["before"], x["c"]);
                const auto inner = [e](const Tensor& t) { return t.col_slice(e, t.cols() - 2 * e); };
                gemm(x.ctx(), inner(x["a"]), inner(x["b"]), inner(x["c"]), g.options);
              },
          .flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k)};
}

std::vector<Case> gemm_tests() {
  std::vector<Case> cases;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const bool accumulate : {false, true}) {
        const GemmOptions o{.trans_a = ta, .trans_b = tb, .accumulate = accumulate};
        cases.push_back(gemm_case({.m = 33, .n = 31, .k = 32, .options = o}));
        cases.push_back(gemm_case({.m = 101, .n = 67, .k = 127, .options = o, .margin = 3}));
        cases.push_back(gemm_case({.m = 1, .n = 257, .k = 131, .options = o, .fp32_result = true}));
        cases.push_back(gemm_case({.m = 3, .n = 5, .k = 130, .options = o, .fp32_result = true, .margin = 1}));
      }
  for (const std::int64_t n : {1, 31, 32, 33}) cases.push_back(gemm_case({.m = n, .n = n, .k = n}));
  cases.push_back(gemm_case({.m = 1, .n = 1, .k = 1, .options = {.trans_b = true}}));
  // Several pieces for the threads; several panels of the bf16 path in each direction.
  cases.push_back(gemm_case({.m = 193, .n = 1100, .k = 37, .options = {.trans_b = true, .accumulate = true}}));
  cases.push_back(gemm_case({.m = 613, .n = 97, .k = 50, .fp32_result = true}));
  cases.push_back(gemm_case({.m = 53, .n = 41, .k = 2111, .options = {.trans_a = true, .accumulate = true}}));
  // By row: few rows and many, depths around the lanes of vectors and over several blocks.
  const GemmOptions by_row{.trans_b = true, .by_row = true}, adding{.trans_b = true, .accumulate = true, .by_row = true};
  for (const std::int64_t m : {1, 2, 3, 4, 7, 66, 259}) {
    cases.push_back(gemm_case({.m = m, .n = 33, .k = 131, .options = by_row}));
    cases.push_back(gemm_case({.m = m, .n = 7, .k = 2111, .options = adding, .fp32_result = m % 2 == 1, .margin = 3}));
  }
  for (const std::int64_t k : {1, 15, 16, 17, 63, 64, 65, 2048, 4160})
    cases.push_back(gemm_case({.m = 5, .n = 131, .k = k, .options = by_row}));
  // A GPU's kernel for them: parts of a tile, all of it and a row too many, columns divided or not, more tiles than blocks.
  for (const std::int64_t m : {1, 9, 63, 64, 65}) {
    cases.push_back(gemm_case({.m = m, .n = 136, .k = 64, .options = by_row}));
    cases.push_back(gemm_case({.m = m, .n = 384, .k = 1024, .options = by_row, .fp32_result = m % 2 == 1, .margin = 8}));
  }
  cases.push_back(gemm_case({.m = 33, .n = 3072, .k = 704, .options = by_row}));
  cases.push_back(gemm_case({.m = 40, .n = 384, .k = 832, .options = by_row}));  // three parts, of 4, 4 and 5 steps
  cases.push_back(gemm_case({.m = 17, .n = 17000, .k = 192, .options = by_row, .fp32_result = true}));
  cases.push_back(gemm_case({.m = 50, .n = 17000, .k = 192, .options = by_row}));
  return cases;
}

// The products of the preset `small` on 8×256 tokens: forward, gradient of the input, gradient of the weight.
std::vector<Case> gemm_benchmarks() {
  std::vector<Case> cases;
  const std::int64_t tokens = 2048;
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{512, 1024}, {512, 512}, {512, 2816}, {1408, 512}, {512, 8192}}) {
    cases.push_back(gemm_case({.m = tokens, .n = out, .k = in, .options = {.trans_b = true}}));
    cases.push_back(gemm_case({.m = tokens, .n = in, .k = out}));
    cases.push_back(gemm_case({.m = out, .n = in, .k = tokens, .options = {.trans_a = true, .accumulate = true}, .fp32_result = true}));
  }
  cases.push_back(gemm_case({.m = 1, .n = 8192, .k = 512, .options = {.trans_b = true}}));
  return cases;
}

OP_CASES(Gemm, gemm_tests, gemm_benchmarks)

Case linear_case(std::int64_t n, std::int64_t in, std::int64_t out, bool residual, bool in_place = false) {
  return {.name = fmt::format("{}x{}x{}{}{}", n, in, out, residual ? " residual" : "", in_place ? " in place" : ""),
          .inputs = {{"x", {n, in}}, {"w", {out, in}, Role::weight}, {"residual", {n, out}, Role::constant}},
          .outputs = {{"y", {n, out}}},
          .reference =
              [=](Arrays& a, Round) {
                GemmCase g{.m = n, .n = out, .k = in, .options = {.trans_b = true, .accumulate = residual}};
                reference_product(g, a["x"], a["w"], a["residual"], a["y"]);
              },
          .forward =
              [=](CaseTensors& c) {
                if (in_place) copy(c.ctx(), c["residual"], c["y"]);
                LinearOptions e;
                if (residual) e.residual = in_place ? c["y"] : c["residual"];
                linear(c.ctx(), c["x"], c["w"], c["y"], e);
              },
          .backward = [](CaseTensors& c) { linear_backward(c.ctx(), c["x"], c["w"], c.grad("y"), c.grad("x"), c.grad("w")); }};
}

std::vector<Case> linear_tests() {
  return {linear_case(33, 31, 32, true), linear_case(33, 31, 32, true, true), linear_case(37, 41, 29, false),
          linear_case(1, 7, 1, true),    linear_case(130, 1, 3, false),       linear_case(1, 1, 1, false)};
}
std::vector<Case> no_benchmarks() { return {}; }

OP_CASES(Linear, linear_tests, no_benchmarks)

OwnedTensor filled(Context& ctx, DType type, const Shape& shape, double value) {
  std::int64_t n = 1;
  for (const auto d : shape) n *= d;
  return make_tensor(ctx, type, shape, std::vector<double>(static_cast<std::size_t>(n), value));
}

TEST(Linear, AddsToTheGradientOfItsInputWhenAsked) {
  const OwnedTensor dy = filled(on_cpu(), DType::f32, {3, 2}, 1), w = filled(on_cpu(), DType::f32, {2, 4}, 3),
                    dx = filled(on_cpu(), DType::f32, {3, 4}, 10);
  linear_backward(on_cpu(), {}, w, dy, dx, {}, {.dx = true});
  for (const double g : to_doubles(on_cpu(), dx)) EXPECT_EQ(g, 16);
}

TEST(Linear, ScalesColumns) {
  for (Context& ctx : test::contexts())
    for (const DType type : {DType::f32, DType::bf16}) {
      const OwnedTensor w = make_tensor(ctx, type, {2, 3}, {1, 2, 3, 4, 5, 6}), by = make_tensor(ctx, DType::f32, {3}, {1, -0.5, 2});
      scale_columns(ctx, w, by, 4);
      EXPECT_EQ(to_doubles(ctx, w), (std::vector<double>{4, -4, 24, 16, -10, 48}));
    }
}

TEST(Gemm, SumsOverNothing) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const OwnedTensor a = make_tensor(on_cpu(), type, {2, 0}), b = make_tensor(on_cpu(), type, {0, 3});
    const OwnedTensor c = filled(on_cpu(), type, {2, 3}, 5);
    gemm(on_cpu(), a, b, c, {.accumulate = true});
    for (const double x : to_doubles(on_cpu(), c)) EXPECT_EQ(x, 5);
    gemm(on_cpu(), a, b, c);
    for (const double x : to_doubles(on_cpu(), c)) EXPECT_EQ(x, 0);
    const OwnedTensor none = make_tensor(on_cpu(), type, {0, 3}), left = make_tensor(on_cpu(), type, {0, 2});
    gemm(on_cpu(), left, filled(on_cpu(), type, {2, 3}, 1), none);
    gemm(on_cpu(), filled(on_cpu(), type, {3, 2}, 1), filled(on_cpu(), type, {2, 0}, 1), make_tensor(on_cpu(), type, {3, 0}));
  }
}

TEST(Gemm, WritesBf16FromFp32) {
  const OwnedTensor a = filled(on_cpu(), DType::f32, {40, 3}, 1.0 / 3), b = filled(on_cpu(), DType::f32, {3, 50}, 1.0 / 3),
                    c = filled(on_cpu(), DType::bf16, {40, 50}, 1);
  gemm(on_cpu(), a, b, c, {.accumulate = true});
  for (const double x : to_doubles(on_cpu(), c)) EXPECT_NEAR(x, 4.0 / 3, 0x1p-8);
}

// A run stops at a NaN only if it gets to the loss.
TEST(Gemm, KeepsNaN) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t m : {1, 9}) {
      const OwnedTensor a = filled(on_cpu(), type, {m, 20}, std::numeric_limits<double>::quiet_NaN()),
                        b = filled(on_cpu(), type, {30, 20}, 0), c = filled(on_cpu(), type, {m, 30}, 0);
      gemm(on_cpu(), a, b, c, {.trans_b = true});
      for (const double x : to_doubles(on_cpu(), c)) EXPECT_TRUE(std::isnan(x));
    }
}

// Contexts share no scratch memory: each of several threads has its own, with threads of its own below it.
TEST(Gemm, ContextsMultiplyAtTheSameTime) {
  constexpr std::int64_t kThreads = 4, n = 150;
  const auto multiply = [](std::int64_t t, int& wrong) {
    Context ctx(Device::cpu(), 2);
    for (const DType type : {DType::f32, DType::bf16}) {
      const OwnedTensor a = filled(ctx, type, {n, n}, static_cast<double>(t)), b = filled(ctx, type, {n, n}, 1),
                        c = filled(ctx, type, {n, n}, 0);
      for (int repeat = 0; repeat < 20; ++repeat) gemm(ctx, a, b, c);
      for (const double x : to_doubles(ctx, c)) wrong += std::fabs(x - static_cast<double>(t * n)) > static_cast<double>(t * n) * 0x1p-8;
    }
  };
  std::vector<int> wrong(kThreads);
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < kThreads; ++t) threads.emplace_back(multiply, t, std::ref(wrong[static_cast<std::size_t>(t)]));
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads));
}

// Sizes at which two, three and four threads cut the result in different places.
TEST(Gemm, SameBitsOnAnyNumberOfThreads) {
  Rng rng(11);
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{300, 210, 300}, {1100, 530, 65}, {97, 1050, 64}})
      for (const GemmOptions& o : {GemmOptions{.trans_b = true}, GemmOptions{}, GemmOptions{.trans_a = true, .accumulate = true}}) {
        const auto random = [&](std::int64_t rows, std::int64_t cols) {
          std::vector<double> v(static_cast<std::size_t>(rows * cols));
          for (double& x : v) x = rng.uniform() - 0.5;
          return make_tensor(on_cpu(), type, {rows, cols}, v);
        };
        const OwnedTensor a = o.trans_a ? random(k, m) : random(m, k), b = o.trans_b ? random(n, k) : random(k, n);
        std::vector<OwnedTensor> c;
        for (const int threads : {1, 2, 3, 4, 7}) {
          c.push_back(filled(on_cpu(), type, {m, n}, 0.125));
          gemm(test::context_on(Device::cpu(), threads), a, b, c.back(), o);
          EXPECT_EQ(std::memcmp(c.front().t.data, c.back().t.data, c.front().t.bytes()), 0)
              << threads << " threads, " << m << "x" << n << "x" << k;
        }
      }
}

// The last piece has fewer rows than the first but larger panels: what a worker's scratch is sized by must cover both.
TEST(Gemm, SmallerPiecesMayHaveLargerPanels) {
  constexpr std::int64_t m = 4096, n = 2048, k = 64;  // in four pieces of 1056, 1056, 1056 and 928 rows
  const Arrays arrays = draw({{"a", {m, k}}, {"b", {n, k}}}, DType::bf16);
  const auto product = [&](int threads) {
    Context ctx(Device::cpu(), threads);
    const OwnedTensor a = make_tensor(ctx, DType::bf16, {m, k}, arrays.at("a")), b = make_tensor(ctx, DType::bf16, {n, k}, arrays.at("b")),
                      c(ctx, DType::bf16, {m, n});
    gemm(ctx, a, b, c, {.trans_b = true});
    std::vector<bf16> host(static_cast<std::size_t>(m * n));
    to_host(ctx, c, host.data());
    return host;
  };
  const auto expected = product(1);
  for (int i = 0; i < 10; ++i) {
    const auto got = product(2);
    ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(bf16)), 0) << i;
  }
}

// Products large enough that tune_products measures which algorithm a GPU takes: what the measuring leaves behind must not show.
TEST(Gemm, LargeProductsOnTheGpuEqualTheCpu) {
  BHYT_SKIP_WITHOUT_GPU();
  constexpr std::int64_t m = 768, n = 1032, k = 640;
  static_assert(2.0 * m * n * k >= 1e9);
  Context gpu(Device::cuda(0));
  for (const auto& [type, result] : {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}})
    for (const GemmOptions& o : {GemmOptions{.trans_b = true}, GemmOptions{}, GemmOptions{.trans_a = true, .accumulate = true}}) {
      SCOPED_TRACE(fmt::format("{} to {}{}{}{}", name_of(type), name_of(result), o.trans_a ? " ta" : "", o.trans_b ? " tb" : "",
                               o.accumulate ? " +=" : ""));
      const Shape as = o.trans_a ? Shape{k, m} : Shape{m, k}, bs = o.trans_b ? Shape{n, k} : Shape{k, n};
      const Arrays x = draw({{"a", as, Role::constant}, {"b", bs, Role::constant}, {"c", {m, n}, Role::constant}}, type);
      const auto product = [&](Context& ctx, DType in, DType out) {
        const OwnedTensor a = make_tensor(ctx, in, as, x.at("a")), b = make_tensor(ctx, in, bs, x.at("b")),
                          c = make_tensor(ctx, out, {m, n}, x.at("c"));
        gemm(ctx, a, b, c, o);
        const auto before = to_doubles(ctx, c);
        cuda::tune_products(ctx);
        EXPECT_EQ(to_doubles(ctx, c), before) << "changed by the measuring";
        return before;
      };
      const auto expected = product(on_cpu(), DType::f32, DType::f32);
      product(gpu, type, result);  // with the library's first choice; the next one with what was chosen
      const auto got = product(gpu, type, result);
      EXPECT_EQ(got, product(gpu, type, result)) << "another algorithm the second time";
      const double bar = result == DType::f32 ? 1e-3 : 0x1p-8 * 200;  // sums of 640 products, of length 25, at most some 130
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], bar) << i;
    }
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const OwnedTensor a = filled(on_cpu(), DType::f32, {2, 3}, 1), b = filled(on_cpu(), DType::f32, {3, 4}, 1),
                    c = filled(on_cpu(), DType::f32, {2, 4}, 0);
  EXPECT_THROW(gemm(on_cpu(), a, a, c), Error);
  EXPECT_THROW(gemm(on_cpu(), a, b, c, {.trans_a = true}), Error);
  EXPECT_THROW(gemm(on_cpu(), a, b, a), Error);
  EXPECT_THROW(gemm(on_cpu(), a, filled(on_cpu(), DType::bf16, {3, 4}, 1), c), Error);
  EXPECT_THROW(gemm(on_cpu(), a, b, filled(on_cpu(), DType::i32, {2, 4}, 0)), Error);
  EXPECT_THROW(gemm(on_cpu(), a, b, Tensor(nullptr, DType::f32, Device::cpu(), {2, 4})), Error);
  EXPECT_THROW(linear(on_cpu(), a, filled(on_cpu(), DType::f32, {4, 3}, 1), c, {.residual = a}), Error);
  EXPECT_THROW(linear_backward(on_cpu(), a, b, c, {}, filled(on_cpu(), DType::bf16, {4, 3}, 0)), Error);
}

}  // namespace
}  // namespace bhyt::testing
