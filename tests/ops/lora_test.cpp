#include "ops/lora/lora.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

// Which elements dropout leaves, written down once more.
double kept(const Dropout& d, std::size_t element) {
  if (d.p == 0) return 1;
  const Philox r = philox(d.seed, d.stream, element / 4);
  return static_cast<double>(r.v[element % 4]) >= static_cast<double>(d.p) * 4294967296.0 ? 1 / (1 - static_cast<double>(d.p)) : 0;
}

struct Sizes {
  std::int64_t n, in, rank;
  std::array<std::int64_t, 3> out;  // 0: the product has no such projection
  std::array<bool, 3> adapted;      // of the projections
  float p = 0;                      // dropout
  float scale = 1.5f;
  std::int64_t columns() const { return out[0] + out[1] + out[2]; }
  std::int64_t width() const { return rank * (adapted[0] + adapted[1] + adapted[2]); }
};

LoraOptions options_of(const Sizes& s, CaseTensors* c) {
  LoraOptions o{.scale = s.scale, .columns = {0, s.out[0], s.out[0] + s.out[1]}, .dropout = {.p = s.p, .seed = 77, .stream = 5}};
  if (c && s.p > 0) o.dropped = c->scratch("dropped", c->dtype(), {s.n, s.in});
  return o;
}

void reference_lora(const Sizes& s, Arrays& a, Round round) {
  const auto n = static_cast<std::size_t>(s.n), in = static_cast<std::size_t>(s.in), r = static_cast<std::size_t>(s.rank),
             columns = static_cast<std::size_t>(s.columns());
  const Dropout dropout = options_of(s, nullptr).dropout;
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t column = 0, row = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto out = static_cast<std::size_t>(s.out[k]);
      std::vector<double> t(r);
      for (std::size_t l = 0; l < r && s.adapted[k]; ++l) {
        for (std::size_t j = 0; j < in; ++j) t[l] += round(a["x"][i * in + j] * kept(dropout, i * in + j)) * a["a"][(row + l) * in + j];
        t[l] = round(static_cast<double>(s.scale) * round(t[l]));
      }
      for (std::size_t o = 0; o < out; ++o) {
        double sum = a["y0"][i * columns + column + o];
        for (std::size_t l = 0; l < r && s.adapted[k]; ++l) sum += t[l] * a[fmt::format("b{}", k)][o * r + l];
        a["y"][i * columns + column + o] = sum;
      }
      column += out;
      row += s.adapted[k] ? r : 0;
    }
  }
}

Case lora_case(const Sizes& s) {
  Case c{.name = fmt::format("{}x{} rank {} out {},{},{} p {}", s.n, s.in, s.rank, s.out[0], s.out[1], s.out[2], s.p),
         .inputs = {{"x", {s.n, s.in}}, {"y0", {s.n, s.columns()}}, {"a", {s.width(), s.in}, Role::weight, Fill::normal, 0.5}},
         .outputs = {{"y", {s.n, s.columns()}}},
         .reference = [s](Arrays& a, Round round) { reference_lora(s, a, round); },
         .bf16_grad_ulps = 6};
  for (std::size_t k = 0; k < 3; ++k)
    if (s.adapted[k]) c.inputs.push_back({fmt::format("b{}", k), {s.out[k], s.rank}, Role::weight, Fill::normal, 0.5});
  const auto weights = [s](CaseTensors& t, bool gradients) {
    LoraWeights w{.a = gradients ? t.grad("a") : t["a"], .b = {}};
    for (std::size_t k = 0; k < 3; ++k)
      if (s.adapted[k]) w.b[k] = gradients ? t.grad(fmt::format("b{}", k)) : t[fmt::format("b{}", k)];
    return w;
  };
  const auto middle = [s](CaseTensors& t) { return t.scratch("t", t.dtype(), {s.n, s.width()}); };
  c.forward = [=](CaseTensors& t) {
    copy(t.ctx(), t["y0"], t["y"]);
    lora(t.ctx(), weights(t, false), t["x"], middle(t), t["y"], options_of(s, &t));
  };
  c.backward = [=](CaseTensors& t) {
    const LoraOptions o = options_of(s, &t);
    const LoraWeights w = weights(t, false), g = weights(t, true);
    // A second backward finds its own gradient in t: the forward makes it again.
    copy(t.ctx(), t["y0"], t["y"]);
    lora(t.ctx(), w, t["x"], middle(t), t["y"], o);
    copy(t.ctx(), t.grad("y"), t.grad("y0"));
    lora_backward_b(t.ctx(), w, g, middle(t), t.grad("y"), o, true);
    lora_backward_a(t.ctx(), g, middle(t), t["x"], o, true);
    zero(t.ctx(), t.grad("x"));
    lora_backward_x(t.ctx(), w, middle(t), t.grad("x"), o);
  };
  return c;
}

std::vector<Case> tests() {
  return {lora_case({7, 12, 3, {5, 0, 0}, {true, false, false}}),     lora_case({5, 33, 4, {8, 4, 4}, {true, true, true}}),
          lora_case({9, 16, 2, {7, 3, 5}, {true, false, true}}),      lora_case({9, 16, 2, {7, 3, 5}, {false, true, false}, 0, 1}),
          lora_case({3, 8, 1, {1, 6, 0}, {true, true, false}}),       lora_case({1, 24, 16, {9, 0, 0}, {true, false, false}}),
          lora_case({6, 13, 3, {5, 6, 7}, {true, true, true}, 0.4f}), lora_case({4, 32, 8, {16, 0, 0}, {true, false, false}, 0.1f, 2})};
}
std::vector<Case> benchmarks() { return {lora_case({512, 1024, 8, {1024, 256, 256}, {true, true, true}})}; }

OP_CASES(Lora, tests, benchmarks)

// ---- scale_masked

std::vector<double> mask(Context& ctx, DType type, std::int64_t rows, std::int64_t cols, const Dropout& d) {
  const std::vector<double> ones(static_cast<std::size_t>(rows * cols), 1.0);
  const OwnedTensor x = make_tensor(ctx, type, {rows, cols}, ones);
  scale_masked(ctx, x, x, {.factor = 1, .dropout = d});
  return to_doubles(ctx, x);
}

TEST(ScaleMasked, LeavesOutTheShareThatWasAskedForAndNothingByRow) {
  constexpr std::int64_t kRows = 400, kCols = 250;
  for (Context& ctx : test::contexts())
    for (const float p : {0.05f, 0.5f, 0.9f}) {
      const std::vector<double> m = mask(ctx, DType::f32, kRows, kCols, {.p = p, .seed = 3, .stream = 1});
      double sum = 0;
      for (const double v : m) sum += v;
      const double n = kRows * kCols, spread = std::sqrt(n * p * (1 - p));
      EXPECT_NEAR(sum, n * (1 - p), 5 * spread) << p;
      // Neighbours fall independently of each other: both stay with (1−p)².
      for (const std::size_t apart : {std::size_t{1}, std::size_t{4}, static_cast<std::size_t>(kCols)}) {
        double both = 0;
        for (std::size_t i = apart; i < m.size(); ++i) both += m[i] * m[i - apart];
        EXPECT_NEAR(both, n * (1 - p) * (1 - p), 8 * spread + apart) << p << " apart " << apart;
      }
    }
}

TEST(ScaleMasked, TheMaskDependsOnSeedAndStreamAloneAndIsTheSameEverywhere) {
  const Dropout d{.p = 0.3f, .seed = 11, .stream = 2};
  const std::vector<double> expected = mask(on_cpu(), DType::f32, 13, 37, d);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(expected[i], kept(d, i) > 0 ? 1 : 0) << i;
  for (const Device device : test::devices())
    for (const int threads : {0, 1, 3}) {
      Context& ctx = test::context_on(device, threads);
      EXPECT_EQ(mask(ctx, DType::f32, 13, 37, d), expected);
      EXPECT_EQ(mask(ctx, DType::bf16, 13, 37, d), expected);
      EXPECT_EQ(mask(ctx, DType::bf16, 37, 13, d), expected) << "elements are counted through rows";
    }
  EXPECT_NE(mask(on_cpu(), DType::f32, 13, 37, {.p = 0.3f, .seed = 12, .stream = 2}), expected);
  EXPECT_NE(mask(on_cpu(), DType::f32, 13, 37, {.p = 0.3f, .seed = 11, .stream = 3}), expected);
}

TEST(ScaleMasked, AddsAndScalesColumnSlices) {
  for (Context& ctx : test::contexts()) {
    const OwnedTensor x = make_tensor(ctx, DType::f32, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}),
                      y = make_tensor(ctx, DType::f32, {2, 4}, {10, 20, 30, 40, 50, 60, 70, 80});
    scale_masked(ctx, x.t.col_slice(0, 2), y.t.col_slice(1, 2), {.factor = 2, .add = true});
    EXPECT_EQ(to_doubles(ctx, y), (std::vector<double>{10, 22, 34, 40, 50, 70, 82, 80}));
  }
}

TEST(Lora, RefusesWhatDoesNotFit) {
  Context& ctx = on_cpu();
  const OwnedTensor x = make_tensor(ctx, DType::f32, {2, 4}), a = make_tensor(ctx, DType::f32, {3, 4}),
                    t = make_tensor(ctx, DType::f32, {2, 3}), b = make_tensor(ctx, DType::f32, {5, 3}),
                    y = make_tensor(ctx, DType::f32, {2, 5});
  const LoraWeights w{.a = a, .b = {b, {}, {}}};
  EXPECT_THROW(lora(ctx, w, x, t, y, {.columns = {1, 0, 0}}), Error) << "B reaches beyond y";
  EXPECT_THROW(lora(ctx, w, x, t, y, {.dropout = {.p = 0.5f}}), Error) << "no room for x with dropout";
  EXPECT_THROW(scale_masked(ctx, x, x, {.dropout = {.p = 1}}), Error);
  EXPECT_THROW(scale_masked(ctx, x, y, {}), Error);
}

}  // namespace
}  // namespace bhyt::testing
