// Figures over layers: the residual stream at each block's output, and the learned scalars.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/figure_parts.h"

namespace bhyt::report {

namespace {

constexpr double kHalf = 550;

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

}  // namespace

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

void add_scalar_figures(const Run& r, int run, double end, std::vector<Figure>& out) {
  struct Site {
    const char *id, *title, *section;
    std::vector<double> LayerRecord::*values;
  };
  for (const Site& site : {Site{"lambda-attn", "λ, attention", "scalars", &LayerRecord::lambda_attn},
                           Site{"lambda-mlp", "λ, MLP", "scalars", &LayerRecord::lambda_mlp},
                           Site{"alpha-attn", "α, attention", "scalars", &LayerRecord::alpha_attn},
                           Site{"alpha-mlp", "α, MLP", "scalars", &LayerRecord::alpha_mlp},
                           Site{"saturated-attn", "Saturation, attention", "norms", &LayerRecord::saturated_attn},
                           Site{"saturated-mlp", "Saturation, MLP", "norms", &LayerRecord::saturated_mlp},
                           Site{"ratio", "s̃²/s²", "norms", &LayerRecord::approximation_ratio},
                           Site{"correlation", "r of s̃² and s²", "norms", &LayerRecord::approximation_r}}) {
    std::size_t layers = 0;
    for (const LayerRecord& l : r.layers) layers = std::max(layers, (l.*site.values).size());
    if (layers == 0) continue;
    Figure f{.id = fmt::format("{}-{}", site.id, run),
             .title = site.title,
             .unit = r.name,
             .width = kHalf,
             .height = 250,
             .section = site.section,
             .group = site.id,
             .from_zero = std::string_view(site.id).starts_with("saturated"),
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

}  // namespace bhyt::report
