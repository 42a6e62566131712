// Pretraining: a run directory from a config. A step is a pure function of (weights, optimizer state, batch n, step), so that a run that
// was killed and resumed goes through the same bits as one that was not.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "train/config.h"

namespace bhyt::train {

struct TrainerOptions {
  bool force = false;                                               // resume although the mathematics changed
  std::function<void(Model&, std::int64_t step)> before_step = {};  // for programs that embed the trainer
};

struct Outcome {
  std::int64_t step = 0;                   // the last one done
  std::optional<double> loss, valid_loss;  // the last ones of the run, be they of an earlier call
  std::optional<double> tok_s;             // over the whole call, evaluation and saving left out; none where it took no step
  std::string checkpoint;                  // the newest one
  struct Best {
    std::int64_t step = 0;
    double valid_loss = 0;
  };
  std::optional<Best> best;  // the lowest validation loss
  int signal = 0;            // SIGINT or SIGTERM when that ended it
};

class Trainer {
 public:
  // Opens or resumes the run directory and makes everything ready. UsageError for what the config gets wrong.
  Trainer(const RunConfig& config, TrainerOptions options);
  ~Trainer();

  Outcome run();
  const RunConfig& config() const;  // resolved
  Model& model();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bhyt::train
