#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/dtype.h"

namespace bhyt {
namespace {

float from_bits(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3F80);
  EXPECT_EQ(to_bf16(from_bits(0x3F808000)).bits, 0x3F80);  // a tie: down to even
  EXPECT_EQ(to_bf16(from_bits(0x3F818000)).bits, 0x3F82);  // a tie: up to even
  EXPECT_EQ(to_bf16(from_bits(0x3F808001)).bits, 0x3F81);
  EXPECT_EQ(to_bf16(from_bits(0x3F807FFF)).bits, 0x3F80);
  EXPECT_EQ(to_bf16(from_bits(0xBF818000)).bits, 0xBF82);
  EXPECT_EQ(to_bf16(from_bits(0x3FFFFFFF)).bits, 0x4000);  // carries into the exponent
}

TEST(Bf16, KeepsZerosInfinitiesAndNan) {
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_bf16(INFINITY).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-INFINITY).bits, 0xFF80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // above the largest bf16: infinity
  EXPECT_EQ(to_bf16(from_bits(0x7F7F7FFF)).bits, 0x7F7F);
  for (const std::uint32_t nan : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    EXPECT_TRUE(std::isnan(to_float(to_bf16(from_bits(nan))))) << nan;
    EXPECT_EQ(to_bf16(from_bits(nan)).bits >> 15, nan >> 31);
  }
}

TEST(Bf16, RoundsSubnormals) {
  EXPECT_EQ(to_bf16(from_bits(0x00000001)).bits, 0x0000);
  EXPECT_EQ(to_bf16(from_bits(0x00008000)).bits, 0x0000);
  EXPECT_EQ(to_bf16(from_bits(0x00008001)).bits, 0x0001);
  EXPECT_EQ(to_bf16(from_bits(0x007FFFFF)).bits, 0x0080);  // up to the smallest normal number
}

TEST(Bf16, EveryValueReturnsFromFloat) {
  for (std::uint32_t u = 0; u < 0x10000; ++u) {
    const bf16 x{static_cast<std::uint16_t>(u)};
    const bool nan = (u & 0x7FFF) > 0x7F80;
    EXPECT_EQ(to_bf16(to_float(x)).bits, nan ? (u | 0x40) : u);
  }
}

}  // namespace
}  // namespace bhyt
