// What a step comes to, and how long steps take.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/mirror.h"
#include "machine/machine.h"

namespace bhyt::train {

// On the device and, once it was fetched, on the host.
class StepResult {
 public:
  explicit StepResult(Context& ctx) : device_(ctx.device()), memory_(ctx, kBytes) {}
  Tensor loss() const { return scalar(0); }  // Σ over the scored tokens
  Tensor loss_and_stop() const { return Tensor(memory_.device_side(), DType::f32, device_, {2}); }
  Tensor stop() const { return scalar(1); }  // of several ranks: what asks them to stop
  Tensor norm() const { return scalar(2); }
  void fetch() const { memory_.fetch(kBytes); }
  struct Values {
    float loss, stop, norm;
  };
  Values read() const {
    const auto* values = static_cast<const float*>(memory_.host_side());
    return {values[0], values[1], values[2]};
  }

 private:
  static constexpr std::size_t kBytes = 3 * sizeof(float);

  Tensor scalar(int i) const { return Tensor(static_cast<float*>(memory_.device_side()) + i, DType::f32, device_, {1}); }
  Device device_;
  Mirror memory_;
};

// Time spent in steps: evaluation, saving and pauses left out.
struct Clock {
  double spent = 0;
  std::int64_t steps = 0, tokens = 0, scored = 0;  // scored: tokens that reach the LM head
  double per_step() const { return steps ? spent / static_cast<double>(steps) : 0; }

  // Micro-batches that a GPU is given before it is waited for: all of a step, but in long ones about a second's, so that it can be said how
  // far the step is, and that a signal is heeded. A CPU is never ahead.
  std::int64_t ahead(std::int64_t pieces) const {
    constexpr double kLong = 3;  // seconds
    if (steps == 0) return 1;    // nothing is known yet
    if (per_step() < kLong) return pieces;
    return std::max<std::int64_t>(static_cast<std::int64_t>(static_cast<double>(pieces) / per_step()), 1);
  }
};

// Adds the time until its end to the clocks.
struct Timed {
  Clock &total, &window;
  double before = seconds();
  ~Timed() {
    for (Clock* c : {&total, &window}) c->spent += seconds() - before;
  }
};

}  // namespace bhyt::train
