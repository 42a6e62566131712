// Axes: what range, which round numbers, how they are written. script.inc has the same rules for what is redrawn in the browser.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bhyt::report {

struct Axis {
  double lo = 0, hi = 1;
  bool log = false;
  bool whole = false;  // steps and layers: no ticks between whole numbers

  double at(double value) const;                                       // 0 at lo, 1 at hi; NaN where there is no place for it
  std::vector<std::pair<double, std::string>> ticks(int about) const;  // with their labels
};

// Multiples of 1, 2 or 5 × 10ᵏ within [lo, hi], about as many as asked for.
std::vector<double> linear_ticks(double lo, double hi, int about, bool whole = false);
// Powers of ten within [lo, hi], thinned when there are many, with 2 and 5 between them when there are few.
std::vector<double> log_ticks(double lo, double hi, int about);
// 0.25  1500  20k  1.5M  5e-5. `step` is the distance between ticks, so that labels of one axis are written alike; 0: a value alone.
std::string tick_label(double value, double step = 0);

// A range with some air around [lo, hi], also where they are equal or not there at all (NaN).
struct AxisKind {
  bool log = false, from_zero = false;
};
Axis fit_axis(double lo, double hi, const AxisKind& kind = {});

}  // namespace bhyt::report
