#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace bhyt::train {

namespace {

// 0.07 · 100 is a little more than 7 in double.
std::int64_t steps_of(double share, std::int64_t steps) {
  return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(steps) * (1 - 1e-12)));
}

// How much of the way from the least rate to the peak is left after `done` of `all` steps behind the warm-up.
double part_left(ScheduleKind kind, double done, double all) {
  switch (kind) {
    case ScheduleKind::constant: return 1;
    case ScheduleKind::linear:
    case ScheduleKind::wsd: return 1 - done / all;
    default: return 0.5 * (1 + std::cos(std::numbers::pi * done / all));
  }
}

}  // namespace

double learning_rate(const Schedule& c, std::int64_t step) {
  const std::int64_t warmup = steps_of(c.warmup_ratio, c.steps);
  std::int64_t first = warmup;  // the last step at the peak
  if (c.kind == ScheduleKind::wsd) first = std::max(warmup, c.steps - steps_of(c.decay_ratio, c.steps));
  if (c.kind == ScheduleKind::cosine_hf) --step;
  if (step < warmup || (step == warmup && warmup > 0)) return c.lr * static_cast<double>(step) / static_cast<double>(warmup);
  if (step <= first) return c.lr;
  const double left = part_left(c.kind, static_cast<double>(step - first), static_cast<double>(c.steps - first));
  return c.lr * (c.min_lr_ratio + (1 - c.min_lr_ratio) * left);
}

}  // namespace bhyt::train
