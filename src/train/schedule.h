// The learning rate as a function of the step, and nothing else.
#pragma once

#include <cstdint>

namespace bhyt::train {

struct Schedule {
  double lr = 5e-4, min_lr_ratio = 0.01, warmup_ratio = 0.1;
  std::int64_t steps = 1;
};

// Of step s, counted from 1. With w = ⌈warmup_ratio · steps⌉:
//   s ≤ w:  lr · s/w                                         (step w runs at the peak)
//   s > w:  lr · (r + (1−r) · ½(1 + cos(π·(s−w)/(steps−w)))), r = min_lr_ratio   (the last step runs at r·lr)
double learning_rate(const Schedule& schedule, std::int64_t step);

}  // namespace bhyt::train
