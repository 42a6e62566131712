// Small helpers of the report's tests: what is in a page, and a figure by its name.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "report/figure.h"

namespace bhyt::report {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline bool contains(const std::string& page, const std::string& text) { return page.find(text) != std::string::npos; }

inline std::size_t count(const std::string& page, const std::string& text) {
  std::size_t n = 0;
  for (std::size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++n;
  return n;
}

inline const Figure& figure_named(const std::vector<Figure>& figures, const std::string& id) {
  return *std::find_if(figures.begin(), figures.end(), [&](const Figure& f) { return f.id == id; });
}

}  // namespace bhyt::report
