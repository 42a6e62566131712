#include "ops/adamw/adamw.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/ops/case.h"

namespace bhyt::testing {
namespace {

constexpr double kLr = 0.01, kDecay = 0.1, kEps = 1e-8;
constexpr std::int64_t kStep = 3;

// Spans of these sizes, padded to multiples of 8; the second decays not, the third is not trained: it is left out of the list.
struct Layout {
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  std::vector<std::int64_t> offsets;
  explicit Layout(std::vector<std::int64_t> s) : sizes(std::move(s)) {
    for (const std::int64_t n : sizes) offsets.push_back(total), total += (n + 7) / 8 * 8;
  }
  static bool decays(std::size_t i) { return i % 3 != 1; }
  static bool left_out(std::size_t i) { return i % 4 == 2; }

  std::vector<ArenaSpan> spans(const Tensor& value) const {
    std::vector<ArenaSpan> all;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (left_out(i)) continue;
      void* at = static_cast<char*>(value.data) + static_cast<std::size_t>(offsets[i]) * size_of(value.dtype);
      all.push_back({offsets[i], sizes[i], Tensor(at, value.dtype, value.device, {sizes[i]}), decays(i)});
    }
    return all;
  }
  // Calls f(element, span) for what an update touches.
  template <class F>
  void each(F&& f) const {
    for (std::size_t s = 0; s < sizes.size(); ++s)
      for (std::int64_t i = 0; !left_out(s) && i < sizes[s]; ++i) f(static_cast<std::size_t>(offsets[s] + i), s);
  }
};

void naive(Arrays& a, const Layout& layout, double clip) {
  double squares = 0;
  layout.each([&](std::size_t i, std::size_t) { squares += a["g"][i] * a["g"][i]; });
  const double norm = std::sqrt(squares), factor = clip > 0 ? std::min(1.0, clip / norm) : 1.0;
  a["norm"] = {norm};
  a["value"] = a["w'"] = a["w"], a["m'"] = a["m"], a["v'"] = a["v"];
  layout.each([&](std::size_t i, std::size_t span) {
    const double g = a["g"][i] * factor;
    const double m = a["m'"][i] = 0.9 * a["m"][i] + 0.1 * g, v = a["v'"][i] = 0.95 * a["v"][i] + 0.05 * g * g;
    const double step = m / (1 - std::pow(0.9, kStep)) / (std::sqrt(v / (1 - std::pow(0.95, kStep))) + kEps);
    a["value"][i] = a["w'"][i] = a["w"][i] - kLr * (step + (Layout::decays(span) ? kDecay * a["w"][i] : 0));
  });
}

// Between fp32 masters and what holds them: the values of an fp32 run, values and low bits of a bf16 one.
void set_masters(Context& ctx, const Tensor& from, const Tensor& value, const Tensor& low_bits) {
  if (value.dtype == DType::f32) return copy(ctx, from, value);
  std::vector<bf16> values;
  std::vector<std::uint16_t> low;
  for (const double w : to_doubles(ctx, from)) {
    const SplitFloat s = split(static_cast<float>(w));
    values.push_back(s.value), low.push_back(s.low);
  }
  ctx.copy(value.device, value.data, Device::cpu(), values.data(), value.bytes());
  ctx.copy(low_bits.device, low_bits.data, Device::cpu(), low.data(), low_bits.bytes());
}
void get_masters(Context& ctx, const Tensor& value, const Tensor& low_bits, const Tensor& to) {
  if (value.dtype == DType::f32) return copy(ctx, value, to);
  std::vector<bf16> values(static_cast<std::size_t>(value.size()));
  std::vector<std::uint16_t> low(values.size());
  std::vector<float> w;
  ctx.copy(Device::cpu(), values.data(), value.device, value.data, value.bytes());
  ctx.copy(Device::cpu(), low.data(), low_bits.device, low_bits.data, low_bits.bytes());
  for (std::size_t i = 0; i < values.size(); ++i) w.push_back(join(values[i], low[i]));
  ctx.copy(to.device, to.data, Device::cpu(), w.data(), to.bytes());
}

// The arenas are inputs; their updated copies are outputs. A benchmark updates in place, without the copies.
Case adamw_case(std::vector<std::int64_t> sizes, double clip, bool in_place = false) {
  const Layout layout(std::move(sizes));
  const Shape shape{layout.total};
  return {.name = fmt::format("{} spans, {} elements, clip {}", layout.sizes.size(), layout.total, clip),
          .inputs = {{"w", shape, Role::constant32},
                     {"g", shape, Role::constant32, Fill::normal, 0.1},
                     {"m", shape, Role::constant32, Fill::normal, 0.1},
                     {"v", shape, Role::constant32, Fill::uniform, 0.01, 0.0101}},
          .outputs = {{"w'", shape, Output::Type::fp32, false},
                      {"m'", shape, Output::Type::fp32, false},
                      {"v'", shape, Output::Type::fp32, false},
                      {"value", shape, Output::Type::run, false},
                      {"norm", {1}, Output::Type::fp32, false}},
          .reference = [=](Arrays& a, Round) { naive(a, layout, clip); },
          .forward =
              [=](CaseTensors& k) {
                const Tensor& low_bits = k.scratch("low_bits", DType::u16, shape);
                if (!in_place)
                  copy(k.ctx(), k["m"], k["m'"]), copy(k.ctx(), k["v"], k["v'"]), set_masters(k.ctx(), k["w"], k["value"], low_bits);
                const auto spans = layout.spans(k["value"]);
                const std::string end = in_place ? "" : "'";
                gradient_norm(k.ctx(), k["g"], spans, k["norm"]);
                adamw(k.ctx(), low_bits, k["g"], k["m" + end], k["v" + end], spans,
                      {.lr = kLr, .eps = kEps, .weight_decay = kDecay, .step = kStep, .grad_norm = k["norm"], .clip = clip});
                if (!in_place) get_masters(k.ctx(), k["value"], low_bits, k["w'"]);
              },
          .bytes = 32.0 * static_cast<double>(layout.total)};
}

std::vector<Case> tests() {
  return {adamw_case({1}, 0), adamw_case({31, 32, 33, 1}, 1.0), adamw_case({40000, 17, 5, 100003, 8}, 1e-2), adamw_case({257, 7, 64}, 1e9)};
}
std::vector<Case> benchmarks() { return {adamw_case({16 << 20}, 1.0, true)}; }

OP_CASES(AdamW, tests, benchmarks)

void check_bad_numbers(Context& ctx) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const OwnedTensor w = make_tensor(ctx, DType::f32, {3}, {1.001, 2, 3}), g = make_tensor(ctx, DType::f32, {3}, {1, bad, 1});
    const OwnedTensor m = make_tensor(ctx, DType::f32, {3}, {4, 5, 6}), v = make_tensor(ctx, DType::f32, {3}, {7, 8, 9});
    const OwnedTensor value = make_tensor(ctx, DType::bf16, {3}), norm = make_tensor(ctx, DType::f32, {1});
    const OwnedTensor low_bits(ctx, DType::u16, {3});
    set_masters(ctx, w, value, low_bits);
    const std::vector<ArenaSpan> spans{{0, 3, value, true}};
    gradient_norm(ctx, g, spans, norm);
    EXPECT_FALSE(std::isfinite(to_doubles(ctx, norm)[0]));
    for (const double clip : {0.0, 1.0})
      adamw(ctx, low_bits, g, m, v, spans, {.lr = 1, .weight_decay = 1, .grad_norm = norm, .clip = clip});
    const OwnedTensor good = make_tensor(ctx, DType::f32, {1}, {1}), loss = make_tensor(ctx, DType::f32, {1}, {bad});
    adamw(ctx, low_bits, m, m, v, spans, {.lr = 1, .weight_decay = 1, .grad_norm = good, .loss = loss});
    const OwnedTensor after = make_tensor(ctx, DType::f32, {3});
    get_masters(ctx, value, low_bits, after);
    EXPECT_EQ(to_doubles(ctx, after), to_doubles(ctx, w));
    EXPECT_EQ(to_doubles(ctx, m), (std::vector<double>{4, 5, 6}));
    EXPECT_EQ(to_doubles(ctx, v), (std::vector<double>{7, 8, 9}));
  }
}

TEST(AdamW, AnInfiniteOrMissingNumberInTheNormOrTheLossChangesNothing) {
  for (Context& ctx : test::contexts()) check_bad_numbers(ctx);
}

TEST(AdamW, LargeGradientsHaveAFiniteNorm) {
  const OwnedTensor g = make_tensor(on_cpu(), DType::f32, {2}, {3e25, 4e25}), norm = make_tensor(on_cpu(), DType::f32, {1});
  gradient_norm(on_cpu(), g, {{0, 2, g, false}}, norm);
  EXPECT_NEAR(to_doubles(on_cpu(), norm)[0] / 5e25, 1, 1e-6);
}

TEST(AdamW, HalvesGiveEveryBitBack) {
  Rng rng(1);
  for (int i = 0; i < 200000; ++i) {
    std::uint32_t bits =
        i < 65536 ? 0x3F800000u + static_cast<std::uint32_t>(i) : static_cast<std::uint32_t>(rng.below(std::uint64_t{1} << 32));
    float w;
    std::memcpy(&w, &bits, 4);
    const SplitFloat s = split(w);
    const float again = join(s.value, s.low);
    if (std::isnan(w)) {
      ASSERT_TRUE(std::isnan(again) && std::isnan(to_float(s.value))) << bits;
      continue;
    }
    ASSERT_EQ(std::memcmp(&w, &again, 4), 0) << w;
    if (std::fabs(w) >= 1e38f || std::fabs(w) <= 1e-37f) continue;
    ASSERT_LE(std::fabs(to_float(s.value) / w - 1), 0x1p-8f) << w;
  }
}

TEST(AdamW, TheMasterItselfCanBeTheValue) {
  const OwnedTensor w = make_tensor(on_cpu(), DType::f32, {2}, {1, 1}), g = make_tensor(on_cpu(), DType::f32, {2}, {1, -1});
  const OwnedTensor m = make_tensor(on_cpu(), DType::f32, {2}, {0, 0}), v = make_tensor(on_cpu(), DType::f32, {2}, {0, 0});
  adamw(on_cpu(), {}, g, m, v, {{0, 2, w, false}}, {.lr = 0.5});
  EXPECT_NEAR(to_doubles(on_cpu(), w)[0], 0.5, 1e-6);
  EXPECT_NEAR(to_doubles(on_cpu(), w)[1], 1.5, 1e-6);
}

TEST(AdamW, RefusesSpansOutsideTheArena) {
  const OwnedTensor w = make_tensor(on_cpu(), DType::f32, {2}, {1, 1}), value = make_tensor(on_cpu(), DType::f32, {3});
  EXPECT_THROW(adamw(on_cpu(), {}, w, w, w, {{0, 3, value, false}}, {}), Error);
  EXPECT_THROW(adamw(on_cpu(), {}, w, w, w, {{0, 2, value, false}}, {}), Error);
  EXPECT_THROW(adamw(on_cpu(), {}, w, w, w, {}, {.clip = 1}), Error);
  EXPECT_THROW(adamw(on_cpu(), {}, w, w, w, {{0, 2, make_tensor(on_cpu(), DType::bf16, {2}), false}}, {}), Error);  // no low bits
}

}  // namespace
}  // namespace bhyt::testing
