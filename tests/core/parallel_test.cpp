#include "core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "core/check.h"
#include "core/profile.h"

namespace bhyt {
namespace {

struct Threads : ::testing::TestWithParam<int> {
  void SetUp() override { set_num_threads(GetParam()); }
  void TearDown() override { set_num_threads(0); }
};

TEST_P(Threads, EveryTaskRunsOnce) {
  for (const std::int64_t n : {0, 1, 2, 3, 31, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
    parallel_tasks(n, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& r : runs) EXPECT_EQ(r, 1);
  }
}

TEST_P(Threads, PiecesTileTheRange) {
  for (const std::int64_t n : {0, 1, 5, 31, 32, 33})
    for (const std::int64_t grain : {0, 1, 4, 32, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
      parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_LE(end - begin, std::max<std::int64_t>(grain, 1));
        for (std::int64_t i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
      });
      for (const auto& r : runs) EXPECT_EQ(r, 1);
    }
}

TEST_P(Threads, NestedCallsFinish) {
  std::atomic<int> runs = 0;
  parallel_tasks(5, [&](std::int64_t) { parallel_tasks(7, [&](std::int64_t) { ++runs; }); });
  EXPECT_EQ(runs, 35);
}

TEST_P(Threads, AnExceptionReachesTheCaller) {
  EXPECT_THROW(parallel_tasks(100, [](std::int64_t i) { check(i != 37, "task {}", i); }), Error);
  std::atomic<int> ran = 0;
  parallel_tasks(10, [&](std::int64_t) { ++ran; });
  EXPECT_EQ(ran, 10);
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 3, 8));

TEST(Parallel, ZeroMeansAllCores) {
  set_num_threads(0);
  EXPECT_GE(num_threads(), 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
}

TEST(Profile, TimesAreExclusiveAndSumToTheWhole) {
  { const profile::Scope idle(profile::Kind::norm, Device::cpu()); }  // without a recording: nothing
  const auto spin = [] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    while (std::chrono::steady_clock::now() < until) {
    }
  };
  profile::start();
  {
    const profile::Scope outer(profile::Kind::cross_entropy, Device::cpu());
    spin();
    const profile::Scope inner(profile::Kind::matrix, Device::cpu());
    spin();
  }
  const profile::Seconds s = profile::stop();
  EXPECT_GT(s[static_cast<std::size_t>(profile::Kind::cross_entropy)], 0);
  EXPECT_GT(s[static_cast<std::size_t>(profile::Kind::matrix)], 0);
  EXPECT_EQ(s[static_cast<std::size_t>(profile::Kind::norm)], 0);
}

}  // namespace
}  // namespace bhyt
