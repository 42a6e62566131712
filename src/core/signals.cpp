#include "core/signals.h"

#include <signal.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <vector>

namespace bhyt {

namespace {

volatile sig_atomic_t g_received = 0;
const char* g_notice = "";
bool g_quits = false;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
constexpr std::size_t kCount = std::size(kSignals);
struct sigaction g_before[kCount];

// A stack of its own for handlers in this thread. Products by a library's generated code may hold anything in the stack pointer: oneDNN's
// point into its working memory, below which a handler's frame would be written over whatever lies there.
class HandlersStack {
 public:
  HandlersStack() {
    stack_t now = {};
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;  // there is one
    memory_.resize(std::max<std::size_t>(getauxval(AT_MINSIGSTKSZ), 16 << 10) + (64 << 10));
    now = {.ss_sp = memory_.data(), .ss_flags = 0, .ss_size = memory_.size()};
    sigaltstack(&now, nullptr);
  }
  ~HandlersStack() {
    if (memory_.empty()) return;
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
  }
  HandlersStack(const HandlersStack&) = delete;
  HandlersStack& operator=(const HandlersStack&) = delete;

 private:
  std::vector<char> memory_;
};

void on_signal(int which) {
  const int signal = which == SIGINT ? SIGINT : SIGTERM;
  if (g_received && g_quits && which != SIGHUP) _exit(128 + signal);  // of those a closed terminal may send two
  if (g_received) return;
  g_received = signal;
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, g_notice, std::strlen(g_notice));
}

}  // namespace

StopSignals::StopSignals(const char* notice, Second second) {
  g_received = 0;
  g_notice = notice;
  g_quits = second == Second::quits;
  static thread_local const HandlersStack stack;
  struct sigaction action = {};
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaddset(&action.sa_mask, signal);  // there is one stack
  for (std::size_t i = 0; i < kCount; ++i) {
    sigaction(kSignals[i], nullptr, &g_before[i]);
    const bool nohup = kSignals[i] == SIGHUP && g_before[i].sa_handler == SIG_IGN;
    if (!nohup) sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &g_before[i], nullptr);
}

int StopSignals::received() { return g_received; }

void leave_signals_to_main_thread() {
  sigset_t all;
  sigemptyset(&all);
  for (const int signal : kSignals) sigaddset(&all, signal);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace bhyt
