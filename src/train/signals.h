// SIGINT and SIGTERM while a run can still be saved: the first asks to stop, a second quits at once.
#pragma once

namespace bhyt::train {

class StopSignals {
 public:
  StopSignals();   // installs the handlers; also lets a file-size limit show as a write error instead of killing the process
  ~StopSignals();  // puts back what was there
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // 0, SIGINT or SIGTERM
};

}  // namespace bhyt::train
