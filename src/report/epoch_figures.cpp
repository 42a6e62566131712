// Losses by epoch: what fine-tuning is judged by.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/figure_parts.h"

namespace bhyt::report {

namespace {

constexpr double kMostEpochs = 1e5;  // beyond, an epoch is less than a pixel by far

// A record is the mean over the steps since the one before; it counts in an epoch for as many of them as lie there.
Series by_epoch(const Series& loss, double epoch_steps) {
  Series out;
  if (loss.empty() || loss.x.back() / epoch_steps > kMostEpochs) return out;
  const double end = loss.x.back() / epoch_steps;
  struct Epoch {
    double sum = 0, steps = 0;
  };
  std::vector<Epoch> epochs(static_cast<std::size_t>(std::ceil(end)));
  double before = 0;
  for (std::size_t i = 0; i < loss.size(); before = loss.x[i++]) {
    if (!std::isfinite(loss.y[i])) continue;
    for (double e = std::floor(before / epoch_steps); e < std::ceil(end) && e * epoch_steps < loss.x[i]; ++e) {
      const double steps = std::fmin(loss.x[i], (e + 1) * epoch_steps) - std::fmax(before, e * epoch_steps);
      epochs[static_cast<std::size_t>(e)].sum += steps * loss.y[i];
      epochs[static_cast<std::size_t>(e)].steps += steps;
    }
  }
  for (std::size_t e = 0; e < epochs.size(); ++e)
    if (epochs[e].steps > 0) out.add(std::fmin(static_cast<double>(e) + 1, end), epochs[e].sum / epochs[e].steps);
  return out;
}

Series by_epoch_at(const Series& valid, const Run& r) {
  Series out;
  for (std::size_t i = 0; i < valid.size(); ++i) out.add(r.epoch_at(valid.x[i]), valid.y[i]);
  return out;
}

}  // namespace

std::string epoch_or_step(const Run& r, double step) {
  const double epoch = r.epoch_at(step);
  return std::isfinite(epoch) ? fmt::format("epoch {}", number(epoch)) : fmt::format("step {:.0f}", step);
}

void add_epoch_figure(const std::vector<Run>& runs, std::vector<Figure>& out) {
  Figure f{.id = "epochs",
           .title = "Loss by epoch",
           .unit = "nats per scored token",
           .height = 330,
           .section = "epochs",
           .steps = false,
           .epochs = true,
           .can_log = true};
  double end = 1;
  for (const Run& r : runs)
    if (std::isfinite(r.epoch_at(r.steps()))) end = std::max(end, r.epoch_at(r.steps()));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Run& r = runs[i];
    const int run = static_cast<int>(i);
    if (!std::isfinite(r.epoch_at(1))) continue;
    const Series loss = by_epoch(r.loss, r.examples->epoch_steps), valid = by_epoch_at(r.valid, r);
    if (!loss.empty()) f.lines.push_back({.run = run, .name = "train", .data = thin(loss, 0, end, 500)});
    if (!valid.empty()) f.lines.push_back({.run = run, .name = "valid", .data = thin(valid, 0, end, 250), .dots = true});
    if (r.chosen) f.marks.push_back({run, r.epoch_at(r.chosen->step), r.chosen->loss});
  }
  if (f.lines.empty()) return;
  f.caption = "Validation is the line with dots; training is the mean over the steps of an epoch.";
  f.caption += labelled(" Ringed, the checkpoint that was chosen: ", each(runs, [](const Run& r) -> std::string {
                          return r.chosen ? fmt::format("{} (step {:.0f}), loss {:.4f}", epoch_or_step(r, r.chosen->step), r.chosen->step,
                                                        r.chosen->loss)
                                          : "";
                        }));
  out.push_back(std::move(f));
}

}  // namespace bhyt::report
