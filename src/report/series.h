// Curves as a report holds them, and what is drawn of them: thinned to one entry per pixel column, and smoothed.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace bhyt::report {

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();  // where there is no value

struct Series {
  std::vector<double> x, y;  // x rises; y is NaN where no finite value was recorded

  std::size_t size() const { return x.size(); }
  bool empty() const { return x.empty(); }
  void add(double at, double value);  // a second value at the same x replaces the first
  void rewind(double at);             // drops what lies at or after `at`
  double first() const;               // first and last finite value, NaN where there is none
  double last() const;
  double last_at() const;      // where it lies; NaN, too
  double final_value() const;  // the last value as it was recorded; NaN where that is not finite, or there is none
};

// lo and hi are the extremes behind each entry and y their mean, so that no spike is lost. Empty lo, hi: every point is there as recorded.
struct Thinned {
  std::vector<double> x, y, lo, hi;
  bool exact() const { return lo.empty(); }
};

// At most `columns` entries over [x0, x1]; linear time.
Thinned thin(const Series& s, double x0, double x1, int columns);

// Mean over a centred window `window` wide in x (cut at the ends). Gaps stay gaps and count for nothing.
std::vector<double> smooth(const std::vector<double>& x, const std::vector<double>& y, double window);

}  // namespace bhyt::report
