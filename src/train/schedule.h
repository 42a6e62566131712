// The learning rate as a function of the step, and nothing else.
#pragma once

#include <cstdint>

namespace bhyt::train {

enum class ScheduleKind : std::uint8_t { cosine, cosine_hf, linear, constant, wsd };

struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 5e-4, min_lr_ratio = 0.01, warmup_ratio = 0.1;
  double decay_ratio = 0.2;  // wsd: the share of the steps in which the rate falls, at their end
  std::int64_t steps = 1;
};

// Of step s, counted from 1. With w = ⌈warmup_ratio · steps⌉ and r = min_lr_ratio:
//   s ≤ w:  lr · s/w                                         (step w runs at the peak)
//   s > w:  lr · (r + (1−r) · f((s−w)/(steps−w)))            (the last step runs at r·lr, but for constant)
// with f(u) = ½(1 + cos(πu)) for cosine, 1 − u for linear, 1 for constant. wsd stays at the peak until ⌈decay_ratio · steps⌉ steps are
// left, then falls like linear. cosine_hf is what transformers' cosine_with_min_lr does: cosine's rate of the step before, so that the
// first step has rate 0 (without a warm-up: the peak).
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace bhyt::train
