#include "report/svg_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace bhyt::report {

namespace {

// As style.inc has them in light pages.
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#c0629a", "#d99300", "#48a9e0", "#5f6368"};
constexpr std::array<int, 3> kRamp0 = {0xa5, 0xd3, 0xc9}, kRamp1 = {0x2a, 0x2f, 0x7f};

constexpr const char* kFileStyle =
    "text{font:11px system-ui,sans-serif;fill:#5d6269}.title{font-size:14px;font-weight:600;fill:#1d1f22}.plot path{fill:none}"
    ".axes path{stroke:#e4e4df}.axes .base,.axes .tick{stroke:#a9aca9}.axes .x{text-anchor:middle}.axes .y,.axes .name{text-anchor:end}"
    "[style] path{stroke:currentColor;stroke-linejoin:round;stroke-linecap:round}.line path{stroke-width:1.4}.dotted path{stroke-width:1.8}"
    "circle{fill:currentColor}.dotted circle{fill:#fff;stroke:currentColor;stroke-width:1.5;stroke-dasharray:none}.scatter "
    "circle{opacity:.6}"
    ".level path{stroke:#1d1f22;stroke-dasharray:4 4;opacity:.7}";

constexpr double kTitle = 26, kLegendLine = 18, kLetter = 6.2, kSwatch = 32;

std::string mixed(double share) {
  std::array<int, 3> c{};
  for (std::size_t i = 0; i < 3; ++i)
    c[i] = static_cast<int>(std::lround(static_cast<double>(kRamp0[i]) + share * static_cast<double>(kRamp1[i] - kRamp0[i])));
  return fmt::format("#{:02x}{:02x}{:02x}", c[0], c[1], c[2]);
}

// The page's variables become the colours they stand for.
std::string literal(std::string svg) {
  for (std::size_t i = 0; i < kColours.size(); ++i) {
    const std::string variable = fmt::format("--c:var(--c{})", i);
    for (std::size_t at; (at = svg.find(variable)) != std::string::npos;)
      svg.replace(at, variable.size(), fmt::format("color:{}", kColours[i]));
  }
  constexpr std::string_view kMix = "--c:color-mix(in oklab,var(--ramp1) ", kBehind = "%,var(--ramp0))";
  for (std::size_t at = 0; (at = svg.find(kMix, at)) != std::string::npos;) {
    const std::size_t number = at + kMix.size(), end = svg.find(kBehind, number);
    if (end == std::string::npos) break;
    svg.replace(at, end + kBehind.size() - at, "color:" + mixed(std::stod(svg.substr(number, end - number)) / 100));
  }
  return svg;
}

// Lines of swatches and names, and how high they are.
std::string legend_of(const Figure& f, const std::vector<std::string>& names, double& height) {
  std::set<int> shown;
  for (const Line& l : f.lines)
    if (l.tint < 0 && !l.name.empty()) shown.insert(l.run);
  std::string out;
  double x = 8, y = kTitle + 10;
  for (const int run : shown) {
    if (static_cast<std::size_t>(run) >= names.size()) continue;
    const std::string& name = names[static_cast<std::size_t>(run)];
    const double width = kSwatch + kLetter * static_cast<double>(name.size()) + 14;
    if (x > 8 && x + width > f.width) {
      x = 8;
      y += kLegendLine;
    }
    out += fmt::format(R"(<g style="{}"><path d="M{} {}h24" stroke-width="2"/></g><text x="{}" y="{}">{}</text>)", look_of(run), x, y - 4,
                       x + kSwatch, y, escape(name));
    x += width;
  }
  height = out.empty() ? kTitle : y + 6;
  return out;
}

}  // namespace

SvgFile svg_file(const Figure& f, const std::vector<std::string>& legend) {
  double top = kTitle;
  const std::string names = legend_of(f, legend, top);
  std::string plot = draw_svg(f, 0);
  plot.insert(4, fmt::format(R"( y="{}" width="{}" height="{}")", top, f.width, f.height));
  const double height = f.height + top;
  return {
      literal(fmt::format(
          R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}"><style>{2}</style><rect width="{0}" height="{1}" fill="#fff"/>)"
          R"(<text class="title" x="8" y="18">{3}<tspan dx="8" font-weight="400" fill="#5d6269" font-size="11">{4}</tspan></text>{5}{6}</svg>)"
          "\n",
          f.width, height, kFileStyle, escape(f.title), escape(f.unit), names, plot)),
      height};
}

}  // namespace bhyt::report
