#include "core/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "core/check.h"

namespace bhyt {
namespace {

struct ThreadsOf : ::testing::TestWithParam<int> {
  Threads threads{GetParam()};
};

TEST_P(ThreadsOf, EveryTaskRunsOnce) {
  EXPECT_EQ(threads.count(), GetParam());
  for (const std::int64_t n : {0, 1, 2, 3, 31, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
    parallel_tasks(threads, n, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& r : runs) EXPECT_EQ(r, 1);
  }
}

TEST_P(ThreadsOf, PiecesTileTheRange) {
  for (const std::int64_t n : {0, 1, 5, 31, 32, 33})
    for (const std::int64_t grain : {0, 1, 4, 32, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(n));
      parallel_for(threads, n, grain, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_LE(end - begin, std::max<std::int64_t>(grain, 1));
        for (std::int64_t i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
      });
      for (const auto& r : runs) EXPECT_EQ(r, 1);
    }
}

// What scratch memory by worker needs: numbers below workers(), and never two tasks at once under one number.
TEST_P(ThreadsOf, NoTwoTasksShareAWorkerNumber) {
  std::vector<std::atomic<int>> inside(static_cast<std::size_t>(threads.workers()));
  std::atomic<int> shared = 0, outside = 0;
  for (int repeat = 0; repeat < 50; ++repeat)
    parallel_tasks(threads, 64, [&](std::int64_t, int worker) {
      if (worker < 0 || worker >= threads.workers()) {
        ++outside;
        return;
      }
      auto& mine = inside[static_cast<std::size_t>(worker)];
      shared += mine.exchange(1) != 0;
      for (int i = 0; i < 100; ++i) shared += mine.load() != 1;
      mine = 0;
    });
  EXPECT_EQ(outside, 0);
  EXPECT_EQ(shared, 0);
}

TEST_P(ThreadsOf, LoopsInsideLoopsRunInTheCallingThread) {
  std::atomic<int> runs = 0, elsewhere = 0, wrong_number = 0;
  parallel_tasks(threads, 5, [&](std::int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_tasks(threads, 7, [&](std::int64_t, int worker) {
      ++runs;
      elsewhere += std::this_thread::get_id() != here;
      wrong_number += worker != threads.workers() - 1;
    });
  });
  EXPECT_EQ(runs, 35);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(wrong_number, 0);
}

TEST_P(ThreadsOf, AnExceptionReachesTheCaller) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_THROW(parallel_tasks(threads, 100, [](std::int64_t i) { check(i != 37, "task {}", i); }), Error);
    std::atomic<int> ran = 0;
    parallel_tasks(threads, 10, [&](std::int64_t) { ++ran; });
    EXPECT_EQ(ran, 10);
  }
  // Out of a loop in a loop, through both.
  EXPECT_THROW(
      parallel_tasks(threads, 4, [&](std::int64_t) { parallel_tasks(threads, 3, [](std::int64_t i) { check(i != 1, "task {}", i); }); }),
      Error);
  std::atomic<int> ran = 0;
  parallel_tasks(threads, 10, [&](std::int64_t) { ++ran; });
  EXPECT_EQ(ran, 10);
}

// A worker that is late for one loop must neither run a task of the next one twice nor see the last one's memory.
TEST_P(ThreadsOf, ManyShortLoopsInARow) {
  std::int64_t wrong = 0;
  for (std::int64_t loop = 0; loop < 5000; ++loop) {
    std::atomic<std::int64_t> sum = 0;
    const std::int64_t n = 1 + loop % 5;
    parallel_tasks(threads, n, [&sum, loop](std::int64_t i) { sum += loop * 10 + i; });
    wrong += sum != loop * 10 * n + n * (n - 1) / 2;
  }
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Counts, ThreadsOf, ::testing::Values(1, 2, 3, 8));

TEST(Threads, ZeroMeansAllCores) {
  EXPECT_EQ(Threads(0).count(), available_cores());
  EXPECT_GE(available_cores(), 1);
  EXPECT_EQ(Threads(3).count(), 3);
  EXPECT_EQ(Threads(3).workers(), 4);
}

TEST(Threads, OneRunsInOrderInTheCallingThread) {
  Threads one(1);
  std::vector<std::int64_t> order;
  const auto here = std::this_thread::get_id();
  parallel_tasks(one, 5, [&](std::int64_t i, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    EXPECT_EQ(worker, 0);
    order.push_back(i);
  });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

// Each of the two runs its own loops on its own threads, whatever the other does: the first tasks of both wait for each other, so that
// every loop is open while the other one's is.
TEST(Threads, TwoGroupsWorkAtTheSameTime) {
  constexpr std::int64_t kLoops = 300;
  std::barrier both(2);
  const auto sums = [&both](int count, std::vector<std::int64_t>& out) {
    Threads threads(count);
    for (std::int64_t loop = 0; loop < kLoops; ++loop) {
      std::vector<std::int64_t> part(static_cast<std::size_t>(threads.workers()));
      parallel_tasks(threads, 40, [&](std::int64_t i, int worker) {
        if (i == 0) both.arrive_and_wait();
        part[static_cast<std::size_t>(worker)] += i * loop;
      });
      std::int64_t sum = 0;
      for (const std::int64_t p : part) sum += p;
      out.push_back(sum);
    }
  };
  std::vector<std::int64_t> a, b, expected;
  for (std::int64_t loop = 0; loop < kLoops; ++loop) expected.push_back(780 * loop);
  std::thread other([&] { sums(3, b); });
  sums(2, a);
  other.join();
  EXPECT_EQ(a, expected);
  EXPECT_EQ(b, expected);
}

}  // namespace
}  // namespace bhyt
