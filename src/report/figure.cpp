#include "report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/log.h"

namespace bhyt::report {

namespace {

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();
constexpr double kWide = 690, kClose = 410, kHalf = 550, kThird = 360;

double longest(const std::vector<Run>& runs) {
  double steps = 1;
  for (const Run& r : runs) steps = std::max(steps, r.steps());
  return steps;
}

// Three significant digits.
std::string number(double v) {
  const double unit = std::pow(10.0, std::floor(std::log10(std::fabs(v))) - 2);
  return v == 0 ? "0" : tick_label(std::round(v / unit) * unit);
}

std::string steps_word(std::size_t n) { return fmt::format("{} step{}", n, n == 1 ? "" : "s"); }

// As many marks as can be told apart.
std::vector<double> thin_marks(const std::vector<double>& steps, double end, double columns) {
  std::vector<double> out;
  for (const double s : steps)
    if (out.empty() || s - out.back() >= end / columns) out.push_back(s);
  return out;
}

// Extremes of all curves and levels; a linear axis leaves out what lies above the cap.
void widen(const Figure& f, double window, double& lo, double& hi) {
  const auto take = [&](double v) {
    if (!std::isfinite(v) || (f.log ? v <= 0 : v > f.cap)) return;
    lo = std::fmin(lo, v);
    hi = std::fmax(hi, v);
  };
  for (const Line& l : f.lines) {
    if (f.close && l.smoothed && window > 0) {
      for (const double v : smooth(l.data.x, l.data.y, window)) take(v);
      continue;
    }
    for (const auto* values : {&l.data.y, &l.data.lo, &l.data.hi})
      for (const double v : *values) take(v);
  }
  // A level far below would press what the closer look is for into a line.
  const double reach = f.close ? lo - 1.5 * (hi - lo) : -INFINITY;
  for (const Level& l : f.levels)
    if (!(l.y < reach)) take(l.y);
}

void fit(std::vector<Figure>& figures, double last_step, double window) {
  for (Figure& f : figures) {
    double lo = kGap, hi = kGap, end = 1;
    for (const Figure& other : figures)
      if (&other == &f || (!f.group.empty() && other.group == f.group)) widen(other, window, lo, hi);
    f.y = fit_axis(lo, hi, f.log, f.from_zero);
    for (const Line& l : f.lines)
      if (!l.data.x.empty()) end = std::max(end, l.data.x.back());
    f.x = {.lo = f.close ? std::floor(last_step / 2) : 0, .hi = f.steps ? last_step : end, .whole = true};
  }
}

double median(std::vector<double> v) {
  std::erase_if(v, [](double x) { return !std::isfinite(x); });
  if (v.empty()) return kGap;
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

Series since(const Series& s, double x) {
  Series out;
  const auto from = std::lower_bound(s.x.begin(), s.x.end(), x) - s.x.begin();
  out.x.assign(s.x.begin() + from, s.x.end());
  out.y.assign(s.y.begin() + from, s.y.end());
  return out;
}

// The second half, where runs that looked alike part.
Figure close_figure(const std::vector<Run>& runs, const std::vector<Level>& levels, double end) {
  Figure f{.id = "close",
           .title = "Second half",
           .unit = "moving average and validation",
           .width = kClose,
           .height = 400,
           .section = "loss",
           .close = true,
           .levels = levels};
  const double half = std::floor(end / 2);
  std::size_t points = 0;
  double lowest = kGap;
  std::vector<double> middle;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Series loss = since(runs[i].loss, half), valid = since(runs[i].valid, half);
    points = std::max({points, loss.size(), valid.size()});
    middle.push_back(median(loss.empty() ? valid.y : loss.y));
    lowest = std::fmin(lowest, middle.back());
    f.lines.push_back({.run = static_cast<int>(i), .name = "train", .data = thin(loss, half, end, 340), .smoothed = true});
    f.lines.push_back({.run = static_cast<int>(i), .name = "valid", .data = thin(valid, half, end, 100), .dots = true});
  }
  if (points < 3) f.lines.clear();
  if (lowest > 0) f.cap = 1.25 * lowest;
  std::string above;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (middle[i] > f.cap) above += fmt::format("{}{}", above.empty() ? "Above the frame: " : ", ", runs[i].name);
  if (!above.empty()) f.caption = above + ".";
  return f;
}

Figure loss_figure(const std::vector<Run>& runs, double end) {
  Figure f{.id = "loss", .title = "Whole run", .unit = "nats per token", .width = kWide, .height = 400, .section = "loss", .can_log = true};
  double first = kGap;
  std::size_t skipped = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& r = runs[i];
    const int run = static_cast<int>(i);
    f.lines.push_back({.run = run, .name = "train", .data = thin(r.loss, 0, end, 640), .smoothed = true});
    f.lines.push_back({.run = run, .name = "valid", .data = thin(r.valid, 0, end, 250), .dots = true});
    f.skipped.push_back(thin_marks(r.skipped, end, kWide / 8));
    skipped += r.skipped.size();
    first = std::fmax(first, std::fmax(r.loss.first(), r.valid.first()));
    if (r.floor && std::none_of(f.levels.begin(), f.levels.end(), [&](const Level& l) { return std::fabs(l.y - *r.floor) < 1e-9; }))
      f.levels.push_back({*r.floor, fmt::format("entropy floor {:.4f}", *r.floor)});
  }
  if (first > 0) f.cap = 1.5 * first;  // a run that diverges must not flatten all the others
  f.caption =
      "Validation is the heavy line. Training is shown as its moving average, and faint behind it as recorded (each record is the mean "
      "since the one before).";
  if (!f.levels.empty()) f.caption += " Dashed: the entropy rate of the language the data was drawn from, which no model can beat.";
  if (skipped) f.caption += fmt::format(" Crosses at the top: {} skipped for a loss or gradient that was not finite.", steps_word(skipped));
  return f;
}

// A curve of each run by step.
Figure step_figure(Figure f, const std::vector<Run>& runs, double end, const Series Run::*member) {
  f.width = kThird;
  f.height = 250;
  f.section = "optimisation";
  for (std::size_t i = 0; i < runs.size(); ++i)
    f.lines.push_back({.run = static_cast<int>(i), .data = thin(runs[i].*member, 0, end, 330), .smoothed = f.id != "lr"});
  return f;
}

Figure gradient_figure(const std::vector<Run>& runs, double end) {
  Figure f = step_figure({.id = "grad", .title = "Gradient norm", .unit = "before clipping", .can_log = true, .from_zero = true}, runs, end,
                         &Run::grad_norm);
  double largest = kGap, at = 0, smallest_median = kGap;
  std::string whose;
  for (const Run& r : runs) {
    f.skipped.push_back(thin_marks(r.skipped, end, kThird / 8));
    smallest_median = std::fmin(smallest_median, median(r.grad_norm.y));
    for (std::size_t i = 0; i < r.grad_norm.size(); ++i)
      if (std::isfinite(r.grad_norm.y[i]) && !(r.grad_norm.y[i] <= largest)) {
        largest = r.grad_norm.y[i];
        at = r.grad_norm.x[i];
        whose = r.name;
      }
  }
  f.log = smallest_median > 0 && largest > 20 * smallest_median;
  if (!whose.empty()) f.caption = fmt::format("Largest: {}{} at step {:.0f}.", number(largest), runs.size() > 1 ? " in " + whose : "", at);
  return f;
}

// "a 1, b 2." or "1 in every run."; runs for which there is nothing to say are left out.
std::string each(const std::vector<Run>& runs, const std::function<std::string(const Run&)>& what) {
  std::string out, first;
  std::size_t said = 0;
  bool same = true;
  for (const Run& r : runs) {
    const std::string s = what(r);
    if (s.empty()) continue;
    if (said++ == 0) first = s;
    same = same && s == first;
    if (said <= 4) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", r.name, s);
  }
  if (said == 0) return "";
  if (runs.size() == 1) return first + ".";
  if (same && said > 1) return first + " in every run.";
  return out + (said > 4 ? " …" : ".");
}

std::string labelled(const char* label, const std::string& text) { return text.empty() ? "" : label + text; }

// What a panel of the paper's figure of layers shows.
struct Quantity {
  const char *id, *title, *unit;
  std::vector<double> LayerRecord::*values;
};

// One panel: at each run's first record, or at its last.
Figure layer_figure(const std::vector<Run>& runs, const Quantity& q, bool last) {
  Figure f{.id = fmt::format("{}-{}", q.id, last ? "end" : "start"),
           .title = fmt::format("{} at the {}", q.title, last ? "end" : "start"),
           .unit = q.unit,
           .width = kHalf,
           .height = 270,
           .section = "layers",
           .group = q.id,
           .steps = false,
           .can_log = true};
  const auto record = [&](const Run& r) -> const LayerRecord& { return last ? r.layers.back() : r.layers.front(); };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].layers.empty()) continue;
    Line line{.run = static_cast<int>(i), .dots = true};
    line.data.y = record(runs[i]).*q.values;
    for (std::size_t layer = 0; layer < line.data.y.size(); ++layer) line.data.x.push_back(static_cast<double>(layer));
    if (!line.data.x.empty()) f.lines.push_back(std::move(line));
  }
  f.caption = labelled("From the first block to the last: ", each(runs, [&](const Run& r) -> std::string {
                         if (r.layers.empty()) return "";
                         const std::vector<double>& v = record(r).*q.values;
                         if (v.size() < 3 || !(v[1] > 0) || !std::isfinite(v.back())) return "";
                         return fmt::format("×{} (step {:.0f})", number(v.back() / v[1]), record(r).step);
                       }));
  return f;
}

// A log axis where values span more than a factor of 20, the same for both panels.
void choose_scale(std::vector<Figure*> panels) {
  double lo = kGap, hi = kGap;
  for (Figure* f : panels) {
    f->log = true;
    widen(*f, 0, lo, hi);
  }
  for (Figure* f : panels) {
    f->log = hi > 20 * lo;
    f->from_zero = !f->log;
  }
}

void add_layer_figures(const std::vector<Run>& runs, std::vector<Figure>& out) {
  bool norms = false, two = false;
  for (const Run& r : runs) {
    two |= r.layers.size() > 1;
    for (const LayerRecord& l : r.layers) norms |= !l.norm.empty();
  }
  const Quantity magnitude = norms ? Quantity{"magnitude", "Magnitude", "mean ‖x‖₂ of a token", &LayerRecord::norm}
                                   : Quantity{"magnitude", "Magnitude", "mean |x|", &LayerRecord::abs};
  const Quantity variance{"variance", "Variance", "over features, token mean", &LayerRecord::variance};
  for (const Quantity& q : {magnitude, variance}) {
    Figure start = layer_figure(runs, q, false), end = layer_figure(runs, q, true);
    choose_scale({&start, &end});
    if (two && !start.lines.empty()) out.push_back(std::move(start));
    if (!end.lines.empty()) out.push_back(std::move(end));
  }
}

// The learned scalars of a run's norms, each site a panel, each layer a line.
void add_scalar_figures(const Run& r, int run, double end, std::vector<Figure>& out) {
  struct Site {
    const char *id, *title;
    std::vector<double> LayerRecord::*values;
  };
  for (const Site& site :
       {Site{"lambda-attn", "λ, attention", &LayerRecord::lambda_attn}, Site{"lambda-mlp", "λ, MLP", &LayerRecord::lambda_mlp},
        Site{"alpha-attn", "α, attention", &LayerRecord::alpha_attn}, Site{"alpha-mlp", "α, MLP", &LayerRecord::alpha_mlp}}) {
    std::size_t layers = 0;
    for (const LayerRecord& l : r.layers) layers = std::max(layers, (l.*site.values).size());
    if (layers == 0) continue;
    Figure f{.id = fmt::format("{}-{}", site.id, run),
             .title = site.title,
             .unit = r.name,
             .width = kHalf,
             .height = 250,
             .section = "scalars",
             .group = site.id,
             .only_run = run};
    double lo = kGap, hi = kGap;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      Series s;
      for (const LayerRecord& l : r.layers)
        if (layer < (l.*site.values).size()) s.add(l.step, (l.*site.values)[layer]);
      lo = std::fmin(lo, s.last());
      hi = std::fmax(hi, s.last());
      f.lines.push_back({.run = run,
                         .name = fmt::format("{}", layer + 1),
                         .data = thin(s, 0, end, 64),
                         .tint = layers > 1 ? static_cast<double>(layer) / static_cast<double>(layers - 1) : 0});
    }
    if (std::isfinite(lo))
      f.caption = lo == hi ? fmt::format("{} in every layer at step {:.0f}.", number(lo), r.layers.back().step)
                           : fmt::format("Between {} and {} at step {:.0f}.", number(lo), number(hi), r.layers.back().step);
    out.push_back(std::move(f));
  }
}

}  // namespace

double default_window(const std::vector<Run>& runs) {
  std::size_t points = 0;
  for (const Run& r : runs) points = std::max(points, r.loss.size());
  return points < 40 ? 0 : std::round(longest(runs) * 0.03);
}

std::vector<Figure> make_figures(const std::vector<Run>& runs) {
  const double end = longest(runs);
  std::vector<Figure> out;
  out.push_back(loss_figure(runs, end));
  if (Figure f = close_figure(runs, out.front().levels, end); !f.lines.empty()) out.push_back(std::move(f));
  out.push_back(step_figure({.id = "lr", .title = "Learning rate", .unit = "", .from_zero = true}, runs, end, &Run::lr));
  out.back().caption = labelled("Peak: ", each(runs, [](const Run& r) -> std::string {
                                  double peak = kGap;
                                  for (const double v : r.lr.y) peak = std::fmax(peak, v);
                                  return std::isfinite(peak) ? tick_label(peak) : "";
                                }));
  out.push_back(gradient_figure(runs, end));
  out.push_back(step_figure({.id = "speed", .title = "Speed", .unit = "tokens per second", .from_zero = true}, runs, end, &Run::tok_s));
  out.back().caption = labelled("Median: ", each(runs, [](const Run& r) -> std::string {
                                  const double m = median(r.tok_s.y);
                                  return std::isfinite(m) ? log::human_count(m) : "";
                                }));
  add_layer_figures(runs, out);
  for (std::size_t i = 0; i < runs.size(); ++i) add_scalar_figures(runs[i], static_cast<int>(i), end, out);
  fit(out, end, default_window(runs));
  return out;
}

}  // namespace bhyt::report
