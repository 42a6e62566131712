#include "generate/page_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "core/error.h"

namespace bhyt {
namespace {

std::array<std::int32_t, kPageTokens> filled(std::int32_t token) {
  std::array<std::int32_t, kPageTokens> tokens;
  tokens.fill(token);
  return tokens;
}

TEST(PagePool, CountsWhoHasWhat) {
  PagePool pool(3);
  EXPECT_EQ(pool.free(), 3);
  const std::int32_t a = pool.take(), b = pool.take(), c = pool.take();
  EXPECT_EQ((std::vector{a, b, c}), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.used(), 3);
  EXPECT_THROW(pool.take(), Error);
  pool.share(b);
  pool.drop(b);
  EXPECT_EQ(pool.used(), 3);
  pool.drop(b);
  EXPECT_EQ(pool.free(), 1);
  EXPECT_THROW(pool.drop(b), Error);
  EXPECT_EQ(pool.take(), b);
}

TEST(PagePool, AKnownPageStaysUntilMemoryIsNeeded) {
  PagePool pool(2);
  const std::int32_t a = pool.take();
  EXPECT_EQ(pool.add(PagePool::kNone, filled(1), a), a);
  pool.drop(a);
  EXPECT_EQ(pool.cached(), 1);
  EXPECT_EQ(pool.find(PagePool::kNone, filled(1)), a);
  EXPECT_EQ(pool.find(PagePool::kNone, filled(2)), PagePool::kNone);
  EXPECT_EQ(pool.find(a, filled(1)), PagePool::kNone);  // the same tokens elsewhere in a text
  pool.share(a);
  EXPECT_EQ(pool.cached(), 0);
  EXPECT_TRUE(pool.in_use(a));
  pool.drop(a);
  pool.take();                // the free one
  EXPECT_EQ(pool.take(), a);  // now the cached one has to go
  EXPECT_EQ(pool.find(PagePool::kNone, filled(1)), PagePool::kNone);
  EXPECT_EQ(pool.available(), 0);
}

TEST(PagePool, TheSecondPageWithTheSameTokensIsNotNeeded) {
  PagePool pool(2);
  const std::int32_t a = pool.take(), b = pool.take();
  EXPECT_EQ(pool.add(PagePool::kNone, filled(1), a), a);
  EXPECT_EQ(pool.add(PagePool::kNone, filled(1), b), a);
  pool.drop(b);
  EXPECT_EQ(pool.free(), 1);
}

// Two texts with a common first page, given back one after the other: ends are forgotten before beginnings, the older text first.
TEST(PagePool, ForgetsTheLongestUnusedEndFirst) {
  PagePool pool(3);
  const std::int32_t first = pool.take(), a = pool.take(), b = pool.take();
  pool.add(PagePool::kNone, filled(1), first);
  pool.share(first);
  pool.add(first, filled(2), a);
  pool.add(first, filled(3), b);
  for (const std::int32_t page : {a, first, b, first}) pool.drop(page);
  EXPECT_EQ(pool.cached(), 3);
  EXPECT_EQ(pool.take(), a);
  EXPECT_EQ(pool.find(first, filled(2)), PagePool::kNone);
  EXPECT_EQ(pool.find(first, filled(3)), b);
  EXPECT_EQ(pool.take(), b);
  EXPECT_EQ(pool.find(PagePool::kNone, filled(1)), first);
  EXPECT_EQ(pool.take(), first);
}

}  // namespace
}  // namespace bhyt
