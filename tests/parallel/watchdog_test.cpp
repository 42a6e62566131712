// The watch over NCCL's collectives, with a stand-in for NCCL: what never ends is noticed and ends the process, what goes well is left
// alone.
#include "parallel/watchdog.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>

#include "tests/parallel/groups.h"

namespace bhyt::nccl {

// What a communicator is to the stand-in.
struct Comm {
  std::atomic<int> aborts = 0, looks = 0;
  std::atomic<Result> state = Result::success;
  std::promise<void> aborting, may_abort;
  bool waits = false;  // the abort waits for may_abort
};

}  // namespace bhyt::nccl

namespace bhyt::parallel {
namespace {

constexpr double kTimeout = 0.2;

nccl::Api stand_in() {
  nccl::Api api{};
  api.get_error_string = [](nccl::Result) { return "remote process exited"; };
  api.get_last_error = [](nccl::Comm*) { return "socket closed"; };
  api.comm_get_async_error = [](nccl::Comm* comm, nccl::Result* error) {
    ++comm->looks;
    *error = comm->state;
    return nccl::Result::success;
  };
  api.comm_abort = [](nccl::Comm* comm) {
    ++comm->aborts;
    comm->aborting.set_value();
    if (comm->waits) comm->may_abort.get_future().wait();
    return nccl::Result::success;
  };
  return api;
}

// Ends the process as MPI does, and says how often the communicator was aborted until then.
class EndingGroup : public test::OneRank {
 public:
  explicit EndingGroup(const nccl::Comm& comm) : comm_(comm) { timeout_ = kTimeout; }
  [[noreturn]] void abort(int code) override {
    std::fprintf(stderr, "all ranks end, %d aborted\n", comm_.aborts.load());
    ::_exit(code);
  }

 private:
  const nccl::Comm& comm_;
};

// A communicator under watch.
struct Watched {
  nccl::Comm comm;
  EndingGroup group{comm};
  const nccl::Api api = stand_in();
  std::atomic<int> looks = 0;
  Watchdog dog;

  explicit Watched(std::function<std::optional<Watchdog::UnderWay>(int look)> under_way)
      : dog(group, api,
            {.begin = [] {},
             .under_way =
                 [this, under_way = std::move(under_way)] {
                   const int look = ++looks;
                   looks.notify_all();
                   return under_way(look);
                 }}) {
    dog.look_at(&comm);
  }
  // Until it has looked so often again.
  void wait_for(int more) {
    for (int now = looks, last = now + more; now < last; now = looks) looks.wait(now);
  }
};

std::optional<Watchdog::UnderWay> nothing(int) { return std::nullopt; }
std::optional<Watchdog::UnderWay> never_ends(int) { return Watchdog::UnderWay{.number = 3, .name = "layer 3"}; }

[[noreturn]] void wait_for_the_end() {
  for (;;) ::pause();
}

class WatchdogDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(WatchdogDeathTest, ACollectiveThatNeverEndsEndsAllRanks) {
  EXPECT_EXIT(
      {
        const Watched w(never_ends);
        wait_for_the_end();
      },
      ::testing::ExitedWithCode(1),
      "rank 0 on here: the collective 'layer 3' was not done after 0.2 s .parallel.timeout.: another rank does not answer; all ranks end "
      "here, and resume=auto goes on from the newest checkpoint\nall ranks end, 1 aborted\n$");
}

TEST_F(WatchdogDeathTest, OthersBeforeItDoNotHideIt) {
  EXPECT_EXIT(
      {
        const Watched w([](int look) {
          return look < 9 ? Watchdog::UnderWay{.number = static_cast<std::uint64_t>(look), .name = "well"}
                          : Watchdog::UnderWay{.number = 9, .name = "weights 1"};
        });
        wait_for_the_end();
      },
      ::testing::ExitedWithCode(1), "the collective 'weights 1' was not done after 0.2 s");
}

TEST_F(WatchdogDeathTest, ACallThatDoesNotReturnEndsAllRanks) {
  EXPECT_EXIT(
      {
        Watched w(nothing);
        w.dog.call("start of NCCL", [] { wait_for_the_end(); });
      },
      ::testing::ExitedWithCode(1), "the collective 'start of NCCL' was not done after 0.2 s");
}

TEST_F(WatchdogDeathTest, AFaultThatNcclReportsIsTold) {
  EXPECT_EXIT(
      {
        Watched w([](int look) { return Watchdog::UnderWay{.number = static_cast<std::uint64_t>(look), .name = "vectors"}; });
        w.comm.state = static_cast<nccl::Result>(6);
        wait_for_the_end();
      },
      ::testing::ExitedWithCode(1),
      "NCCL reports a fault in the collective 'vectors': remote process exited. socket closed; .*all ranks end, 1 aborted\n$");
}

// Who ends the collectives while they are being aborted has nothing left to abort.
TEST_F(WatchdogDeathTest, ACommunicatorIsAbortedOnce) {
  EXPECT_EXIT(
      {
        Watched w(never_ends);
        w.comm.waits = true;
        w.comm.aborting.get_future().wait();
        std::fprintf(stderr, "left: %s\n", w.dog.release() ? "one" : "none");
        w.comm.may_abort.set_value();
        wait_for_the_end();
      },
      ::testing::ExitedWithCode(1), "left: none\nall ranks end, 1 aborted\n$");
}

TEST(Watchdog, LeavesARunAloneThatGoesWell) {
  constexpr int kLooks = 12;  // far longer than the time limit, all of them together
  {
    Watched w([](int look) { return Watchdog::UnderWay{.number = static_cast<std::uint64_t>(look), .name = "layer"}; });
    w.wait_for(kLooks);
    w.comm.state = nccl::Result::in_progress;  // no fault
    w.wait_for(3);
    EXPECT_EQ(w.dog.release(), &w.comm);
    EXPECT_GE(w.comm.looks, kLooks);
    EXPECT_EQ(w.comm.aborts, 0);
    // From here on the communicator may be gone.
    const int looks = w.comm.looks;
    w.wait_for(3);
    EXPECT_EQ(w.comm.looks, looks);
  }
  {
    Watched w(nothing);  // its own work takes that long
    w.wait_for(kLooks);
    w.dog.call("vectors", [] {});
    w.wait_for(kLooks);  // the call is over
    EXPECT_EQ(w.comm.aborts, 0);
  }
}

}  // namespace
}  // namespace bhyt::parallel
