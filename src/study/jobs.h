// How many runs go at once: a number, or found by measurement.
#pragma once

#include <algorithm>

namespace bhyt::study {

// Found by measurement: one run alone first, then twice as many, and so on, as long as all of them together go at least a twentieth faster
// than fewer did. The number with the greatest speed stays.
class JobCount {
 public:
  explicit JobCount(int fixed, int most = 1) : now_(fixed > 0 ? fixed : 1), good_(now_), most_(most), settled_(fixed > 0 || most <= 1) {}

  int now() const { return now_; }
  bool settled() const { return settled_; }

  // What all runs together do while exactly now() of them train, in tokens per second.
  void measured(double total) {
    if (settled_) return;
    if (total <= kGain * best_) {
      now_ = good_;  // the last ones brought nothing
      settled_ = true;
      return;
    }
    best_ = total;
    good_ = now_;
    settled_ = now_ == most_;
    now_ = std::min(2 * now_, most_);
  }
  // As many more do not fit into the memory.
  void no_more() { settled_ = true; }
  // How many more a measurement would start.
  int rise(double total) const { return !settled_ && total > kGain * best_ ? std::min(2 * now_, most_) - now_ : 0; }

 private:
  static constexpr double kGain = 1.05;
  int now_, good_, most_;
  bool settled_;
  double best_ = 0;
};

}  // namespace bhyt::study
