#include "data/order.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace bhyt {
namespace {

using Order = std::vector<std::int64_t>;

bool is_permutation_of_all(Order order, std::int64_t n) {
  std::ranges::sort(order);
  for (std::int64_t i = 0; i < n; ++i)
    if (order.at(static_cast<std::size_t>(i)) != i) return false;
  return std::ssize(order) == n;
}

TEST(Order, IsPyTorchs) {
  const Order a = torch_randperm(1000, 42), b = torch_randperm(1000, 43);
  EXPECT_EQ(Order(a.begin(), a.begin() + 8), (Order{542, 618, 816, 68, 94, 215, 60, 585}));
  EXPECT_EQ(Order(b.begin(), b.begin() + 8), (Order{588, 148, 223, 575, 689, 935, 932, 343}));
  EXPECT_EQ(torch_randperm(100, 7), torch_randperm(100, (1ull << 32) + 7));
  for (const std::int64_t n : {0, 1, 2, 31, 1000}) EXPECT_TRUE(is_permutation_of_all(torch_randperm(n, 5), n)) << n;
}

TEST(Order, OursDependsOnSeedAndEpoch) {
  for (const std::int64_t n : {0, 1, 2, 31, 1000}) EXPECT_TRUE(is_permutation_of_all(shuffled(n, 5, 3), n)) << n;
  EXPECT_EQ(shuffled(100, 5, 3), shuffled(100, 5, 3));
  EXPECT_NE(shuffled(100, 5, 3), shuffled(100, 5, 4));
  EXPECT_NE(shuffled(100, 5, 3), shuffled(100, 6, 3));
  EXPECT_NE(shuffled(100, 5, 3), shuffled(100, 4, 4));
}

}  // namespace
}  // namespace bhyt
