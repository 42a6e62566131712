// What a sweep tells a person while it works: a table that is redrawn on a terminal, a line for every run that has ended elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "study/index.h"

namespace bhyt::study {

// How far a run is, by its metrics.
struct RunProgress {
  std::int64_t lines = 0, step = 0, steps = 0;  // lines that told a speed
  double loss = 0, tok_s = 0;
  double part() const { return steps > 0 ? static_cast<double>(step) / static_cast<double>(steps) : 0; }
  void update(const fs::path& metrics);  // reads what is new

 private:
  std::uintmax_t read_ = 0;
};

struct RunLine {
  std::string name;
  RunProgress progress;
};

struct Tally {
  std::size_t ended = 0, total = 0;
  double eta_s = 0;  // NaN: not known yet
};

// [12/60] bhyt unit, lr 0.002, seed 0  valid 3.7410  loss 3.7000  310K tok/s  0:52
std::string finished_line(const Record& record, std::size_t ended, std::size_t total);
// 12/60 runs  best 3.6881 (lns, lr 0.004, seed 0)  1 diverged  eta 12:31
std::string tally_line(const Index& index, const Tally& tally);
// The last message of a process that ended with an error.
std::string last_error(const fs::path& log, int code);

class LiveTable {
 public:
  void draw(const Index& index, const Tally& tally, const std::vector<RunLine>& runs);
  void clear();  // takes it off the terminal

 private:
  double drawn_ = 0;
  std::size_t lines_ = 0;
};

}  // namespace bhyt::study
