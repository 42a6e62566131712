#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>

namespace bhyt::train {

namespace {

volatile sig_atomic_t g_received = 0;
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGXFSZ};
struct sigaction g_before[3];

void on_signal(int signal) {
  if (g_received) _exit(128 + signal);
  g_received = signal;
  const char text[] = "\nstopping after this step; the run will be saved (once more to quit at once)\n";
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, text, std::strlen(text));
}

}  // namespace

StopSignals::StopSignals() {
  g_received = 0;
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 3; ++i) {
    action.sa_handler = kSignals[i] == SIGXFSZ ? SIG_IGN : on_signal;
    sigaction(kSignals[i], &action, &g_before[i]);
  }
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &g_before[i], nullptr);
}

int StopSignals::received() const { return g_received; }

}  // namespace bhyt::train
