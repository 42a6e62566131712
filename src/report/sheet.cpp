#include "report/sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/figure_parts.h"

namespace bhyt::report {

namespace {

constexpr double kMargin = 24, kHead = 44, kOver = 26, kBetween = 28, kKeyRow = 17, kLineLength = 26;
constexpr double kKeyWidth = 150;

// The colours of style.inc on white, in place of its variables: not every program that shows an SVG knows those.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#c0629a", "#d99300", "#48a9e0", "#5f6368"};

// The same look as look_of gives a run.
std::string stroke_of(int run) {
  std::string look = look_of(run);
  const std::string variable = fmt::format("--c:var(--c{})", run % 7), colour = kColours[static_cast<std::size_t>(run % 7)];
  return look.replace(0, variable.size(), fmt::format("stroke:{}", colour));
}

std::string style(int runs) {
  std::string s =
      "text{font:11px sans-serif;fill:#5d6269}path{fill:none}.axes path{stroke:#e4e4df}.axes .base,.axes .tick{stroke:#a9aca9}"
      ".axes .x{text-anchor:middle}.axes .y,.axes .name{text-anchor:end}.line path,.key{stroke-width:1.6;stroke-linejoin:round}"
      ".level path{stroke:#1d1f22;stroke-dasharray:4 4;opacity:.7}.title{font:600 16px sans-serif;fill:#1d1f22}"
      ".head{font:600 13px sans-serif;fill:#1d1f22}";
  for (int i = 0; i < runs; ++i) s += fmt::format(".r{0} path,.k{0}{{{1}}}", i, stroke_of(i));
  return s;
}

void fit_axes(Figure& f) {
  double lo = kGap, hi = kGap, first = INFINITY, last = -INFINITY;
  widen(f, 0, lo, hi);
  f.y = fit_axis(lo, hi, f.log, f.from_zero);
  for (const Line& l : f.lines)
    for (const double x : l.data.x) first = std::min(first, x), last = std::max(last, x);
  f.x = {.lo = first, .hi = last, .whole = true};
}

double key_height(const Panel& p) {
  const auto named = std::count_if(p.names.begin(), p.names.end(), [](const std::string& n) { return !n.empty(); });
  const auto across = std::max<std::ptrdiff_t>(1, static_cast<std::ptrdiff_t>(p.figure.width / kKeyWidth));
  return kKeyRow * static_cast<double>((named + across - 1) / across);
}

std::string draw_key(const Panel& p, double left, double top) {
  std::string out;
  const int across = std::max(1, static_cast<int>(p.figure.width / kKeyWidth));
  int at = 0;
  for (std::size_t i = 0; i < p.names.size(); ++i) {
    if (p.names[i].empty()) continue;
    const double x = left + kKeyWidth * (at % across), y = top + kKeyRow * (at / across);
    out += fmt::format(R"(<path class="key k{}" d="M{} {}h{}"/><text x="{}" y="{}">{}</text>)", i, x, y, kLineLength, x + kLineLength + 6,
                       y + 4, escape(p.names[i]));
    ++at;
  }
  return out;
}

}  // namespace

std::string draw_sheet(Sheet sheet) {
  std::string body;
  double top = kHead, width = 0;
  int runs = 0;
  for (std::size_t first = 0; first < sheet.panels.size(); first += static_cast<std::size_t>(sheet.columns)) {
    double left = kMargin, height = 0;
    for (std::size_t i = first; i < std::min(sheet.panels.size(), first + static_cast<std::size_t>(sheet.columns)); ++i) {
      Panel& p = sheet.panels[i];
      Figure& f = p.figure;
      fit_axes(f);
      for (const Line& l : f.lines) runs = std::max(runs, l.run + 1);
      body += fmt::format(R"(<text class="head" x="{}" y="{}">{}</text>)", left, top + 12, escape(f.title));
      // A drawing of its own inside this one: only its place is added.
      const std::string drawn = draw_svg(f, 0), tag = "<svg ";
      body +=
          fmt::format(R"(<svg x="{}" y="{}" width="{}" height="{}" {})", left, top + kOver, f.width, f.height, drawn.substr(tag.size()));
      body += draw_key(p, left + 52, top + kOver + f.height + 14);
      height = std::max(height, kOver + f.height + 14 + key_height(p));
      left += f.width + kBetween;
    }
    width = std::max(width, left - kBetween + kMargin);
    top += height + kBetween;
  }
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}"><style>{2}</style>)"
                     R"(<rect width="100%" height="100%" fill="#fff"/><text class="title" x="{3}" y="26">{4}</text>{5}</svg>)",
                     width, top, style(runs), kMargin, escape(sheet.title), body) +
         "\n";
}

}  // namespace bhyt::report
