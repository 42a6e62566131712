#include "report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/log.h"
#include "report/figure_parts.h"

namespace bhyt::report {

std::string number(double v) {
  const double unit = std::pow(10.0, std::floor(std::log10(std::fabs(v))) - 2);
  return v == 0 ? "0" : tick_label(std::round(v / unit) * unit);
}

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
  if (same && said == runs.size()) return first + " in every run.";
  return out + (said > 4 ? " …" : ".");
}

std::string labelled(const char* label, const std::string& text) { return text.empty() ? "" : label + text; }

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

namespace {

constexpr double kWide = 690, kClose = 410, kThird = 360;

double longest(const std::vector<Run>& runs) {
  double steps = 1;
  for (const Run& r : runs) steps = std::max(steps, r.steps());
  return steps;
}

std::string steps_word(std::size_t n) { return fmt::format("{} step{}", n, n == 1 ? "" : "s"); }

// As many marks as can be told apart.
std::vector<double> thin_marks(const std::vector<double>& steps, double end, double columns) {
  std::vector<double> out;
  for (const double s : steps)
    if (out.empty() || s - out.back() >= end / columns) out.push_back(s);
  return out;
}

void fit(std::vector<Figure>& figures, double last_step, double window) {
  for (Figure& f : figures) {
    double lo = kGap, hi = kGap, end = 1;
    for (const Figure& other : figures)
      if (&other == &f || (!f.group.empty() && other.group == f.group)) widen(other, window, lo, hi);
    f.y = fit_axis(lo, hi, {.log = f.log, .from_zero = f.from_zero});
    for (const Line& l : f.lines)
      if (!l.data.x.empty()) end = std::max(end, l.data.x.back());
    f.x = {.lo = f.close ? f.x.lo : 0, .hi = f.steps ? last_step : end, .whole = true};
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

// The second half of each run, where runs that looked alike part.
Figure close_figure(const std::vector<Run>& runs, const std::vector<Level>& levels, double end) {
  Figure f{.id = "close",
           .title = "Second half",
           .unit = "moving average and validation",
           .width = kClose,
           .height = 400,
           .section = "loss",
           .close = true,
           .levels = levels};
  std::size_t points = 0;
  double lowest = kGap, first = end, last = 0;  // where the halves begin
  std::vector<double> middle;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const double half = std::floor(runs[i].steps() / 2);
    const Series loss = since(runs[i].loss, half), valid = since(runs[i].valid, half);
    points = std::max({points, loss.size(), valid.size()});
    if (!loss.empty() || !valid.empty()) {
      first = std::min(first, half);
      last = std::max(last, half);
    }
    middle.push_back(std::fmax(median(loss.y), median(valid.y)));  // fine-tuning ends far above its training loss
    lowest = std::fmin(lowest, middle.back());
    f.lines.push_back({.run = static_cast<int>(i), .name = "train", .data = thin(loss, half, end, 340), .smoothed = true});
    f.lines.push_back({.run = static_cast<int>(i), .name = "valid", .data = thin(valid, half, end, 100), .dots = true});
    if (const auto& c = runs[i].chosen; c && c->step >= half) f.marks.push_back({static_cast<int>(i), c->step, c->loss});
  }
  if (points < 3) f.lines.clear();
  f.x.lo = first;
  if (first < last) f.caption = "Each run from its own middle on. ";
  if (lowest > 0) f.cap = 1.25 * lowest;
  std::string above;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (middle[i] > f.cap) above += fmt::format("{}{}", above.empty() ? "Above the frame: " : ", ", runs[i].name);
  if (!above.empty()) f.caption += above + ".";
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
    if (r.chosen) f.marks.push_back({run, r.chosen->step, r.chosen->loss});
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
  if (!f.marks.empty()) f.caption += " Ringed: the checkpoint with the lowest validation loss, which the run keeps as best.";
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

// One for each benchmark task that a run was asked on the way.
void add_task_figures(const std::vector<Run>& runs, double end, std::vector<Figure>& out) {
  std::set<std::string> names;
  for (const Run& r : runs)
    for (const auto& [name, series] : r.tasks) names.insert(name);
  int count = 0;
  for (const std::string& name : names) {
    const std::size_t space = name.find(' ');
    Figure f{.id = fmt::format("task{}", count++),
             .title = name.substr(0, space),
             .unit = name.substr(space + 1),
             .width = kThird,
             .height = 250,
             .section = "tasks"};
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (const auto found = runs[i].tasks.find(name); found != runs[i].tasks.end())
        f.lines.push_back({.run = static_cast<int>(i), .data = thin(found->second, 0, end, 330), .dots = true});
    out.push_back(std::move(f));
  }
}

// What the schedule rises to: a step that was logged may lie beside it.
std::string peak_rate(const Run& r) {
  const std::string* text = r.value("train.lr");
  double rate = kGap;
  if (text) std::from_chars(text->data(), text->data() + text->size(), rate);
  return std::isfinite(rate) ? tick_label(rate) : "";
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
  add_epoch_figure(runs, out);
  out.push_back(step_figure({.id = "lr", .title = "Learning rate", .unit = "", .from_zero = true}, runs, end, &Run::lr));
  out.back().caption = labelled("Peak of the schedule: ", each(runs, peak_rate));
  out.push_back(gradient_figure(runs, end));
  out.push_back(step_figure({.id = "speed", .title = "Speed", .unit = "tokens per second", .from_zero = true}, runs, end, &Run::tok_s));
  out.back().caption = labelled("Median: ", each(runs, [](const Run& r) -> std::string {
                                  const double m = median(r.tok_s.y);
                                  return std::isfinite(m) ? log::human_count(m) : "";
                                }));
  add_task_figures(runs, end, out);
  add_layer_figures(runs, out);
  for (std::size_t i = 0; i < runs.size(); ++i) add_scalar_figures(runs[i], static_cast<int>(i), end, out);
  fit(out, end, default_window(runs));
  return out;
}

}  // namespace bhyt::report
