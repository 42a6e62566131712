#include "core/rng.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace bhyt {
namespace {

TEST(Rng, PhiloxKnownAnswers) {
  // Of the authors' kat_vectors for philox 4x32-10; seed = key, (index, stream) = counter.
  const auto expect = [](const Philox& got, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    EXPECT_EQ(got.v[0], a);
    EXPECT_EQ(got.v[1], b);
    EXPECT_EQ(got.v[2], c);
    EXPECT_EQ(got.v[3], d);
  };
  expect(philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect(philox(~0ull, ~0ull, ~0ull), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  expect(philox(0x299f31d0a4093822ull, 0x0370734413198a2eull, 0x85a308d3243f6a88ull), 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Rng, UniformsStayInside) {
  EXPECT_GT(uniform01(0), 0.0f);
  EXPECT_LT(uniform01(0xFFFFFFFFu), 1.0f);
  EXPECT_EQ(uniform53(0, 0), 0.0);
  EXPECT_LT(uniform53(0xFFFFFFFFu, 0xFFFFFFFFu), 1.0);
}

TEST(Rng, NormalsHaveTheirMoments) {
  const int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double x = normal(11, 3, i);
    sum += x, squares += x * x, fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.1);
  EXPECT_EQ(normal(11, 3, 7), normal(11, 3, 7));
  EXPECT_NE(normal(11, 3, 7), normal(11, 4, 7));
  EXPECT_NE(normal(11, 3, 7), normal(12, 3, 7));
}

TEST(Rng, SequenceIsAFunctionOfItsSeed) {
  Rng a(5), b(5), c(6), d(5, 1);
  for (int i = 0; i < 100; ++i) {
    const auto x = a.next();
    EXPECT_EQ(x, b.next());
    EXPECT_NE(x, c.next());
    EXPECT_NE(x, d.next());
  }
}

TEST(Rng, BelowCoversItsRange) {
  Rng rng(9);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts.at(rng.below(7));
  for (const int n : counts) EXPECT_NEAR(n, 10000, 500);
  EXPECT_EQ(rng.below(1), 0u);
  const double u = rng.uniform();
  EXPECT_TRUE(u >= 0 && u < 1);
}

}  // namespace
}  // namespace bhyt
