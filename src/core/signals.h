// SIGINT and SIGTERM while there is something to bring to a good end: the first asks to stop. SIGUSR1 counts as SIGTERM: mpirun passes it
// on to its ranks at once, and does not kill them after it. So does SIGHUP, a terminal that is closed, unless it is ignored (nohup).
#pragma once

#include "core/error.h"

namespace bhyt {

class StopSignals {
 public:
  enum class Second { waits, quits };                                       // a second signal changes nothing, or ends the process at once
  explicit StopSignals(const char* notice, Second second = Second::waits);  // the first signal writes `notice` to stderr
  ~StopSignals();                                                           // puts back the handlers that were there
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static int received();  // 0, SIGINT or SIGTERM; stays until the next one is made
};

// For threads of the program's own: handlers run in the main thread, which has a stack for them.
void leave_signals_to_main_thread();

// Work that a signal ended and that leaves nothing half-done: the program's exit code is 128 + signal.
struct Interrupted : Error {
  explicit Interrupted(int by) : Error("interrupted"), signal(by) {}
  int signal;
};

}  // namespace bhyt
