#include "core/math.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace bhyt {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

// Every 1021st float of the line, subnormals and huge ones included.
template <class F>
void every_float(F&& f) {
  for (std::uint64_t u = 0; u < 0x7F800000u; u += 1021) {
    const float x = detail::float_from_bits(static_cast<std::uint32_t>(u));
    f(x);
    f(-x);
  }
}

// The largest error of `fast` relative to max(|exact|, floor).
template <class Fast, class Exact>
double worst(Fast&& fast, Exact&& exact, double floor) {
  double worst = 0;
  every_float([&](float x) {
    const double e = exact(static_cast<double>(x)), y = fast(x);
    if (e == y) return;
    const double error = std::fabs(y - e) / std::max(std::fabs(e), floor);
    if (!(error <= worst)) worst = error;
  });
  return worst;
}

TEST(Math, Exp) {
  const auto exact = [](double x) { return static_cast<double>(static_cast<float>(std::exp(x))); };
  EXPECT_LE(worst([](float x) { return fast_exp(x); }, exact, 1.2e-38), 2.0e-7);
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-kInf), 0.0f);
  EXPECT_EQ(fast_exp(kInf), kInf);
  EXPECT_EQ(fast_exp(-3e38f), 0.0f);
  EXPECT_TRUE(std::isnan(fast_exp(kNan)));
  EXPECT_EQ(fast_exp(88.722839f), std::exp(88.722839f));  // the largest finite result
  EXPECT_EQ(fast_exp(-103.0f), std::exp(-103.0f));        // the smallest subnormal
}

// Relative error, so small arguments are held to it too; odd, bounded by 1, saturating.
void check_bounded(float (*fast)(float), double (*exact)(double), double slope, float limit) {
  EXPECT_LE(worst(fast, exact, 1e-37), 4e-7);
  int not_odd = 0, too_large = 0, not_saturated = 0;
  every_float([&](float x) {
    not_odd += fast(-x) != -fast(x);
    too_large += std::fabs(fast(x)) > 1.0f;
    not_saturated += x >= limit && fast(x) != 1.0f;
  });
  EXPECT_EQ(not_odd, 0);
  EXPECT_EQ(too_large, 0);
  EXPECT_EQ(not_saturated, 0);
  EXPECT_EQ(fast(0.0f), 0.0f);
  EXPECT_EQ(std::signbit(fast(-0.0f)), true);
  EXPECT_EQ(fast(kTiny), static_cast<float>(slope * kTiny));
  EXPECT_EQ(fast(kInf), 1.0f);
  EXPECT_EQ(fast(-kInf), -1.0f);
  EXPECT_TRUE(std::isnan(fast(kNan)));
}

TEST(Math, Tanh) {
  check_bounded([](float x) { return fast_tanh(x); }, [](double x) { return fast_tanh(x); }, 1.0, 9.75f);
}

TEST(Math, ShortTanh) {
  double worst = 0;
  int not_odd = 0, too_large = 0;
  every_float([&](float x) {
    const double exact = std::tanh(static_cast<double>(x)), error = std::fabs(short_tanh(x) - exact);
    if (x > 1e-30f) worst = std::max(worst, error / exact);
    not_odd += short_tanh(-x) != -short_tanh(x);
    too_large += std::fabs(short_tanh(x)) > 1.0f;
  });
  EXPECT_LE(worst, 0x1p-13);
  EXPECT_EQ(not_odd, 0);
  EXPECT_EQ(too_large, 0);
  EXPECT_NEAR(short_tanh(kInf), 1, 1e-7);
  EXPECT_TRUE(std::isnan(short_tanh(kNan)));
}

TEST(Math, Erf) {
  check_bounded([](float x) { return fast_erf(x); }, [](double x) { return fast_erf(x); }, 1.1283791670955126, 4.1f);
}

TEST(Math, MaxOf) {
  EXPECT_EQ(max_of(nullptr, 0), -kInf);
  for (const int n : {1, 3, 4, 5, 31, 32, 33, 1000}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::size_t at = 0; at < x.size(); ++at) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = -5.0f - static_cast<float>((i * 7) % 13);
      x[at] = at % 2 ? 3.5f : -2.25f;
      ASSERT_EQ(max_of(x.data(), n), x[at]) << n << " " << at;
    }
  }
  const float mixed[] = {-kInf, -0.0f, -1.0f, kTiny}, low[] = {-kInf, -kInf}, high[] = {1.0f, kInf, 2.0f}, nan[] = {1.0f, kNan, 2.0f};
  EXPECT_EQ(max_of(mixed, 4), kTiny);
  EXPECT_EQ(max_of(mixed, 3), 0.0f);
  EXPECT_EQ(max_of(low, 2), -kInf);
  EXPECT_EQ(max_of(high, 3), kInf);
  EXPECT_TRUE(std::isnan(max_of(nan, 3)));
}

}  // namespace
}  // namespace bhyt
