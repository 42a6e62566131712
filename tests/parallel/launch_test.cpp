// What a rank has of its host, and what it does not hand on to processes that are none.
#include "parallel/launch.h"

#include <stdlib.h>

#include <algorithm>
#include <thread>

#include "tests/parallel/groups.h"

namespace bhyt::test {
namespace {

TEST(LaunchedRank, ItsChildrenAreNoRanks) {
  const char* const of_launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE"};
  for (const char* name : of_launchers) setenv(name, "2", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  const std::vector<std::string> left = parallel::environment_of_one();
  for (const char* name : of_launchers) unsetenv(name);
  const auto there = [&](const std::string& name) {
    return std::any_of(left.begin(), left.end(), [&](const std::string& entry) { return entry.starts_with(name + "="); });
  };
  for (const char* name : of_launchers) EXPECT_FALSE(there(name)) << name;
  EXPECT_TRUE(there("OMPI_ALLOW_RUN_AS_ROOT"));
  EXPECT_TRUE(there("PATH"));
}

TEST(LaunchedRank, HasItsShareOfTheCores) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  on_ranks(2, [&](Context&, ThreadGroup& group) {
    EXPECT_EQ(parallel::own_threads(group, 3), 3);
    EXPECT_GE(parallel::own_threads(group, 0), 1);
    EXPECT_LE(parallel::own_threads(group, 0), std::max(1, cores / 2));
    EXPECT_EQ(parallel::own_device(group, "cpu", "device"), Device::cpu());
  });
  EXPECT_EQ(parallel::own_threads(OneRank(), 0), 0);  // all
}

TEST(LaunchedRank, AllHaveTheNumbersOfAll) {
  on_ranks(3, [](Context&, ThreadGroup& group) {
    EXPECT_EQ(parallel::gather_numbers(group, 10 * group.rank() - 1), (std::vector<std::int64_t>{-1, 9, 19}));
  });
}

}  // namespace
}  // namespace bhyt::test
