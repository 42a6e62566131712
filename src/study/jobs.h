// How many runs go at once: a number, or found by measurement.
#pragma once

namespace bhyt::study {

// Found by measurement: one run alone first, then one more at a time, as long as all of them together go at least a twentieth faster than
// fewer did. The number with the greatest speed stays.
class JobCount {
 public:
  explicit JobCount(int fixed, int most = 1) : now_(fixed > 0 ? fixed : 1), most_(most), settled_(fixed > 0 || most <= 1) {}

  int now() const { return now_; }
  bool settled() const { return settled_; }

  // What all runs together do while exactly now() of them train, in tokens per second.
  void measured(double total) {
    if (settled_) return;
    if (total <= kGain * best_) {
      --now_;  // the last one brought nothing
      settled_ = true;
      return;
    }
    best_ = total;
    if (now_ == most_)
      settled_ = true;
    else
      ++now_;
  }
  // One more does not fit into the memory.
  void no_more() { settled_ = true; }
  bool would_rise(double total) const { return !settled_ && total > kGain * best_ && now_ < most_; }

 private:
  static constexpr double kGain = 1.05;
  int now_, most_;
  bool settled_;
  double best_ = 0;
};

}  // namespace bhyt::study
