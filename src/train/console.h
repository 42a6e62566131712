// What a run tells a person: the lines at its start, and the step line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/train_pass.h"
#include "train/config.h"
#include "train/optimizer.h"

namespace bhyt::train {

// bhyt 0.1.0 (a1b2c3d) | cuda: NVIDIA H200 | bf16 | Llama-1B, 1,235,814,400 parameters | norm bhyt κ=10 λ=(2,1)
std::string headline(const Model& model);
std::string model_line(const Model& model);       // Llama-1B, 1,235,814,400 parameters
std::string norm_line(const NormConfig& config);  // bhyt κ=10 λ=(2,1)
// memory  weights 2.3 GiB | master+moments 13.8 GiB | …
std::string memory_line(const TrainPass& pass, const Model& model, const Optimizer& optimizer, std::size_t gradient_bytes);

struct StepLine {
  std::int64_t step = 0, steps = 0;
  double loss = 0, grad_norm = 0, lr = 0, tok_s = 0;
  std::optional<double> mfu;
  double eta_s = 0;
};
// step   120/20000  loss 6.2143  grad 0.51  lr 5.00e-04  71.8K tok/s  mfu 55%  eta 1:15:42
std::string step_line(const StepLine& line);
std::string step_of(std::int64_t step, std::int64_t steps);  // step   120/20000

// Tells how far a long piece of work is: from its third second on, redrawn on a terminal, a line every twenty seconds elsewhere.
// Short work stays silent.
class WorkLine {
 public:
  WorkLine(std::string what, std::string unit, double now);
  void show(std::int64_t done, std::int64_t all);
  // The line that is due at a time, or "".
  std::string due(double now, std::int64_t done, std::int64_t all, bool terminal);

 private:
  std::string what_, unit_;
  double started_, shown_;
};

// A warning where a step or the whole run goes over `rows` rows of data many times, else "".
std::string repetition(const TrainSection& train, std::int64_t rows);

}  // namespace bhyt::train
