#include "core/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace bhyt {

namespace {

volatile sig_atomic_t g_received = 0;
const char* g_notice = "";
bool g_quits = false;
constexpr int kSignals[] = {SIGINT, SIGTERM};
struct sigaction g_before[2];

void on_signal(int signal) {
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
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &g_before[i]);
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &g_before[i], nullptr);
}

int StopSignals::received() { return g_received; }

}  // namespace bhyt
