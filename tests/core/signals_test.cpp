// Where handlers of signals run.
#include "core/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/threads.h"

namespace bhyt {
namespace {

// How much of a stack of its own a function has written to.
std::ptrdiff_t written_by(void (*f)()) {
  constexpr char kUntouched = 0x5A;
  std::vector<char> memory(256 << 10, kUntouched);
  ucontext_t here, there;
  getcontext(&there);
  there.uc_stack.ss_sp = memory.data();
  there.uc_stack.ss_size = memory.size();
  there.uc_link = &here;
  makecontext(&there, f, 0);
  swapcontext(&here, &there);
  return memory.end() - std::find_if(memory.begin(), memory.end(), [](char c) { return c != kUntouched; });
}

// A library's code may have pointed the stack somewhere else: nothing is written there.
TEST(Signals, HandlersHaveAStackOfTheirOwn) {
  static const pid_t process = getpid(), thread = gettid();  // names are looked up at the first call, which takes a lot of stack
  const StopSignals stop("");
  written_by([] { syscall(SYS_getppid); });
  const std::ptrdiff_t call = written_by([] { syscall(SYS_getppid); });
  EXPECT_EQ(StopSignals::received(), 0);
  const std::ptrdiff_t signal = written_by([] { syscall(SYS_tgkill, process, thread, SIGTERM); });
  EXPECT_EQ(StopSignals::received(), SIGTERM);
  EXPECT_LT(signal, call + 600) << call;  // a frame takes more
}

TEST(Signals, OtherThreadsLeaveThemToTheMainThread) {
  Threads threads(3);
  std::vector<int> blocked(64);
  const pid_t main_thread = gettid();
  parallel_tasks(threads, std::ssize(blocked), [&](std::int64_t i) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    blocked[static_cast<std::size_t>(i)] = gettid() == main_thread || (sigismember(&mask, SIGTERM) && sigismember(&mask, SIGINT));
    usleep(100);
  });
  EXPECT_EQ(std::count(blocked.begin(), blocked.end(), 1), std::ssize(blocked));
}

TEST(Signals, AClosedTerminalIsATermination) {
  {
    const StopSignals stop("", StopSignals::Second::quits);
    raise(SIGHUP);
    raise(SIGHUP);  // the shell's, behind the terminal's
    EXPECT_EQ(StopSignals::received(), SIGTERM);
  }
  const auto before = ::signal(SIGHUP, SIG_IGN);  // nohup
  {
    const StopSignals stop("");
    raise(SIGHUP);
    EXPECT_EQ(StopSignals::received(), 0);
  }
  ::signal(SIGHUP, before);
}

}  // namespace
}  // namespace bhyt
