#include "core/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

namespace bhyt {

namespace {

volatile sig_atomic_t g_received = 0;
const char* g_notice = "";
bool g_quits = false;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};
constexpr std::size_t kCount = std::size(kSignals);
struct sigaction g_before[kCount];

void on_signal(int which) {
  const int signal = which == SIGUSR1 ? SIGTERM : which;
  if (g_received && g_quits) _exit(128 + signal);
  if (g_received) return;
  g_received = signal;
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, g_notice, std::strlen(g_notice));
}

}  // namespace

StopSignals::StopSignals(const char* notice, Second second) {
  g_received = 0;
  g_notice = notice;
  g_quits = second == Second::quits;
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &g_before[i]);
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &g_before[i], nullptr);
}

int StopSignals::received() { return g_received; }

}  // namespace bhyt
