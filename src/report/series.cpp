#include "report/series.h"

#include <algorithm>
#include <cmath>

namespace bhyt::report {

void Series::add(double at, double value) {
  if (!x.empty() && x.back() >= at) rewind(at);
  x.push_back(at);
  y.push_back(value);
}

void Series::rewind(double at) {
  while (!x.empty() && x.back() >= at) {
    x.pop_back();
    y.pop_back();
  }
}

double Series::first() const {
  const auto it = std::find_if(y.begin(), y.end(), [](double v) { return std::isfinite(v); });
  return it == y.end() ? kGap : *it;
}

double Series::last() const {
  const auto it = std::find_if(y.rbegin(), y.rend(), [](double v) { return std::isfinite(v); });
  return it == y.rend() ? kGap : *it;
}

double Series::last_at() const {
  const auto it = std::find_if(y.rbegin(), y.rend(), [](double v) { return std::isfinite(v); });
  return it == y.rend() ? kGap : x[static_cast<std::size_t>(y.rend() - it) - 1];
}

double Series::final_value() const { return y.empty() ? kGap : y.back(); }

Thinned thin(const Series& s, double x0, double x1, int columns) {
  Thinned out;
  const std::size_t n = s.size();
  if (n <= static_cast<std::size_t>(columns)) {
    out.x = s.x;
    out.y = s.y;
    return out;
  }
  const double per_column = (x1 - x0) / columns;
  for (std::size_t i = 0; i < n;) {
    const double column = std::floor((s.x[i] - x0) / per_column);
    double lo = kGap, hi = kGap, mean = 0;
    std::size_t j = i, finite = 0;
    for (; j < n && (j == i || std::floor((s.x[j] - x0) / per_column) <= column); ++j) {
      if (!std::isfinite(s.y[j])) continue;
      lo = std::fmin(lo, s.y[j]);
      hi = std::fmax(hi, s.y[j]);
      mean += (s.y[j] - mean) / static_cast<double>(++finite);
    }
    out.x.push_back(s.x[i + (j - i) / 2]);
    out.y.push_back(finite ? mean : kGap);
    out.lo.push_back(lo);
    out.hi.push_back(hi);
    i = j;
  }
  return out;
}

std::vector<double> smooth(const std::vector<double>& x, const std::vector<double>& y, double window) {
  std::vector<double> out(y.size(), kGap);
  std::size_t from = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    while (x[from] < x[i] - window / 2) ++from;
    if (!std::isfinite(y[i])) continue;
    // Summed afresh for each point: a sliding sum would carry the rounding of one huge spike to the end of the run.
    double sum = 0;
    int count = 0;
    for (std::size_t j = from; j < y.size() && x[j] <= x[i] + window / 2; ++j)
      if (std::isfinite(y[j])) {
        sum += y[j];
        ++count;
      }
    out[i] = sum / count;
  }
  return out;
}

}  // namespace bhyt::report
