#include "train/schedule.h"

#include <cmath>
#include <numbers>

namespace bhyt::train {

double learning_rate(const Schedule& c, std::int64_t step) {
  // 0.07 · 100 is a little more than 7 in double.
  const auto warmup = static_cast<std::int64_t>(std::ceil(c.warmup_ratio * static_cast<double>(c.steps) * (1 - 1e-12)));
  if (step <= warmup) return c.lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double part = static_cast<double>(step - warmup) / static_cast<double>(c.steps - warmup);
  return c.lr * (c.min_lr_ratio + (1 - c.min_lr_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * part)));
}

}  // namespace bhyt::train
