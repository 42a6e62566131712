#include "report/sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/figure_parts.h"
#include "report/svg_file.h"

namespace bhyt::report {

namespace {

constexpr double kMargin = 24, kHead = 44, kBetween = 28;

void fit_axes(Figure& f) {
  double lo = kGap, hi = kGap, first = INFINITY, last = -INFINITY;
  widen(f, 0, lo, hi);
  f.y = fit_axis(lo, hi, {.log = f.log, .from_zero = f.from_zero});
  for (const Line& l : f.lines)
    for (const double x : l.data.x) {
      first = std::min(first, x);
      last = std::max(last, x);
    }
  f.x = {.lo = first, .hi = last, .whole = true};
}

// One row of panels side by side; how wide and high it is.
std::string draw_row(std::span<Panel> panels, double top, double& right, double& height) {
  std::string out;
  double left = kMargin;
  for (Panel& p : panels) {
    fit_axes(p.figure);
    for (Line& l : p.figure.lines)
      if (static_cast<std::size_t>(l.run) < p.names.size()) l.name = p.names[static_cast<std::size_t>(l.run)];
    const SvgFile drawn = svg_file(p.figure, p.names);
    // A drawing of its own inside this one: only its place is added.
    out += fmt::format(R"(<svg x="{}" y="{}" {})", left, top, drawn.text.substr(std::string_view("<svg ").size()));
    left += p.figure.width + kBetween;
    height = std::max(height, drawn.height);
  }
  right = std::max(right, left - kBetween);
  return out;
}

}  // namespace

std::string draw_sheet(Sheet sheet) {
  std::string body;
  double top = kHead, right = 0;
  const std::span<Panel> all(sheet.panels);
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(sheet.columns)) {
    double height = 0;
    body += draw_row(all.subspan(first, std::min(all.size() - first, static_cast<std::size_t>(sheet.columns))), top, right, height);
    top += height + kBetween;
  }
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}">)"
             R"(<rect width="100%" height="100%" fill="#fff"/><text style="font:600 16px sans-serif" x="{2}" y="26">{3}</text>{4}</svg>)",
             right + kMargin, top, kMargin, escape(sheet.title), body) +
         "\n";
}

}  // namespace bhyt::report
