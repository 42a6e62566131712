// A figure as SVG, complete without any script. Colours are CSS variables, so that it follows the page's theme.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "report/figure.h"

namespace bhyt::report {

namespace {

constexpr double kLeft = 52, kRight = 14, kTop = 12, kBottom = 34;
constexpr std::size_t kMostDots = 40;

// A pixel position with one decimal at most, as short as it can be written.
std::string tenths(long long v) {
  const long long a = v < 0 ? -v : v;
  const std::string whole = a >= 10 || a == 0 ? std::to_string(a / 10) : "";
  return fmt::format("{}{}{}", v < 0 ? "-" : "", whole, a % 10 ? fmt::format(".{}", a % 10) : "");
}
std::string px(double v) { return tenths(std::llround(10 * v)); }

class Drawing {
 public:
  Drawing(const Figure& f, double window) : f_(f), window_(window) {}

  std::string draw() {
    out_ = fmt::format(R"(<svg class="plot" id="{0}" viewBox="0 0 {1} {2}" role="img" aria-label="{3}">)", f_.id, f_.width, f_.height,
                       escape(f_.title + " " + f_.unit + ". " + f_.caption));
    // A little wider than the frame, so that dots on its edge stay whole.
    out_ += fmt::format(R"(<clipPath id="clip-{}"><rect x="{}" y="{}" width="{}" height="{}"/></clipPath>)", f_.id, kLeft - 4, kTop - 4,
                        f_.width - kLeft - kRight + 8, f_.height - kTop - kBottom + 8);
    axes();
    out_ += fmt::format(R"svg(<g clip-path="url(#clip-{})">)svg", f_.id);
    for (const Line& l : f_.lines)
      if (l.smoothed && window_ > 0 && !f_.close) curve(l, l.data.y, l.data.exact() ? "raw" : "raw dense", true);
    for (const Line& l : f_.lines)
      curve(l, l.smoothed && window_ > 0 ? smooth(l.data.x, l.data.y, window_) : l.data.y,
            l.dots       ? "dotted"
            : l.smoothed ? "line average"
                         : "line",
            !l.smoothed || window_ <= 0);
    for (const Mark& m : f_.marks)
      if (std::isfinite(y(m.y)))
        out_ += fmt::format(R"(<g class="r{} mark" style="{}"><circle cx="{}" cy="{}" r="6"/></g>)", m.run, look_of(m.run), px(x(m.x)),
                            px(y(m.y)));
    levels();
    out_ += "</g>";
    skipped();
    return std::move(out_) + "</svg>\n";
  }

 private:
  double x(double v) const { return kLeft + f_.x.at(v) * (f_.width - kLeft - kRight); }
  // What lies far outside is brought near: it is clipped anyway, and renderers do not agree on huge numbers.
  double y(double v) const { return f_.height - kBottom - std::clamp(f_.y.at(v), -9.0, 9.0) * (f_.height - kTop - kBottom); }

  void axes() {
    const double bottom = f_.height - kBottom, right = f_.width - kRight;
    const std::string name = !f_.x_name.empty() ? escape(f_.x_name)
                             : f_.steps         ? "step"
                             : f_.epochs        ? "epoch"
                                                : "layer (0 is the embedding)";
    out_ += R"(<g class="axes">)";
    for (const auto& [t, label] : f_.y.ticks(f_.height > 300 ? 7 : 5))
      out_ += fmt::format(R"(<path d="M{} {}H{}"/><text x="{}" y="{}" class="y">{}</text>)", kLeft, px(y(t)), right, kLeft - 8,
                          px(y(t) + 3.5), label);
    for (const auto& [t, label] : f_.x.ticks(static_cast<int>(f_.width / 90)))
      out_ += fmt::format(R"(<path class="tick" d="M{0} {1}v4"/><text x="{0}" y="{2}" class="x">{3}</text>)", px(x(t)), bottom, bottom + 17,
                          label);
    out_ += fmt::format(R"(<path class="base" d="M{} {}H{}"/><text x="{}" y="{}" class="name">{}</text></g>)", kLeft, bottom, right, right,
                        f_.height - 3, name);
  }

  // A gap breaks the path; a point alone becomes a dot through its round cap. Relative moves in tenths of a pixel keep the file small.
  std::string path(const Thinned& d, const std::vector<double>& values, bool extremes) const {
    std::string s;
    bool open = false, up = false;
    long long at_x = 0, at_y = 0;
    const auto to = [&](double value_x, double value_y) {
      const long long to_x = std::llround(10 * x(value_x)), to_y = std::llround(10 * y(value_y));
      if (!open) s += fmt::format("M{} {}h0", tenths(to_x), tenths(to_y));
      if (open && (to_x != at_x || to_y != at_y)) s += fmt::format("l{} {}", tenths(to_x - at_x), tenths(to_y - at_y));
      open = true;
      at_x = to_x;
      at_y = to_y;
    };
    for (std::size_t i = 0; i < d.x.size(); ++i) {
      if (!std::isfinite(y(values[i]))) {
        open = false;
      } else if (extremes && !d.exact()) {
        // Up and down in turn, which draws the whole band between the extremes.
        const double lo = std::isfinite(y(d.lo[i])) ? d.lo[i] : values[i];
        to(d.x[i], up ? d.hi[i] : lo);
        to(d.x[i], up ? lo : d.hi[i]);
        up = !up;
      } else {
        to(d.x[i], values[i]);
      }
    }
    return s;
  }

  std::string look(const Line& l) const {
    if (l.tint >= 0) return fmt::format("--c:color-mix(in oklab,var(--ramp1) {:.0f}%,var(--ramp0))", 100 * l.tint);
    return look_of(l.run);
  }

  void curve(const Line& l, const std::vector<double>& values, const char* kind, bool extremes) {
    if (l.data.x.empty()) return;
    if (l.scatter) return points(l, values);
    out_ += fmt::format(R"(<g class="r{} {}" style="{}"><path d="{}"/>)", l.run, kind, look(l), path(l.data, values, extremes));
    if (l.dots && l.data.x.size() <= kMostDots)
      for (std::size_t i = 0; i < values.size(); ++i)
        if (std::isfinite(y(values[i]))) out_ += fmt::format(R"(<circle cx="{}" cy="{}" r="2.6"/>)", px(x(l.data.x[i])), px(y(values[i])));
    if (!l.dots && values.size() == 1 && std::isfinite(y(values[0])))
      out_ += fmt::format(R"(<circle cx="{}" cy="{}" r="3"/>)", px(x(l.data.x[0])), px(y(values[0])));
    out_ += "</g>";
  }

  void points(const Line& l, const std::vector<double>& values) {
    out_ += fmt::format(R"(<g class="r{} scatter" style="{}">)", l.run, look(l));
    for (std::size_t i = 0; i < values.size(); ++i)
      if (std::isfinite(x(l.data.x[i])) && std::isfinite(y(values[i])))
        out_ += fmt::format(R"(<circle cx="{}" cy="{}" r="1.8"/>)", px(x(l.data.x[i])), px(y(values[i])));
    out_ += "</g>";
  }

  void levels() {
    for (const Level& l : f_.levels)
      out_ += fmt::format(R"(<g class="level"><path d="M{0} {1}H{2}"/><text x="{0}" y="{3}" dx="6">{4}</text></g>)", kLeft, px(y(l.y)),
                          f_.width - kRight, px(y(l.y) + 13), escape(l.label));
  }

  void skipped() {
    for (std::size_t run = 0; run < f_.skipped.size(); ++run) {
      if (f_.skipped[run].empty()) continue;
      out_ += fmt::format(R"svg(<g class="r{} skip" style="{}"><path d=")svg", run, look_of(static_cast<int>(run)));
      for (const double step : f_.skipped[run]) out_ += fmt::format("M{} {}l6 6m0-6l-6 6", px(x(step) - 3), kTop - 6);
      out_ += "\"/></g>";
    }
  }

  const Figure& f_;
  double window_;
  std::string out_;
};

}  // namespace

// Runs that lie on one another are told apart: only the first is solid, and it is seen through the gaps of those drawn over it. Seven
// colours (style.inc) and five patterns have no common divisor, so that 36 runs look different.
std::string look_of(int run) {
  constexpr std::array kDashes = {"8 5", "1 4", "12 5 1 5", "4 4", "8 4 1 4 1 4"};
  const std::string colour = fmt::format("--c:var(--c{})", run % 7);
  return run == 0 ? colour : fmt::format("{};stroke-dasharray:{}", colour, kDashes[static_cast<std::size_t>(run - 1) % kDashes.size()]);
}

std::string draw_svg(const Figure& figure, double window) { return Drawing(figure, window).draw(); }

std::string escape(const std::string& text) {
  // The JSON library knows how to replace what is not UTF-8; its quotes and escapes are taken off again by parsing.
  const std::string clean =
      nlohmann::ordered_json::parse(nlohmann::ordered_json(text).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace))
          .get<std::string>();
  std::string out;
  for (const char c : clean) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

}  // namespace bhyt::report
