// metrics.jsonl and the TensorBoard events of a run. Equal values give equal text, so that two runs can be compared line by line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/schema.h"
#include "eval/results.h"
#include "train/state.h"
#include "train/tensorboard.h"

namespace bhyt::train {

using schema::Json;

struct TrainingLine {
  std::int64_t step = 0, tokens = 0;
  double loss = 0, lr = 0;
  float grad_norm = 0;
  double tok_s = 0, step_ms = 0;
  std::optional<double> mfu;
};

class Metrics {
 public:
  // Goes on with the files of `dir` where `progress` stands (step 0: afresh); lines and records beyond it, or torn, are cut off.
  Metrics(const fs::path& dir, const Progress& progress);
  Metrics() = default;  // writes nothing: of all ranks but the first

  void training(const TrainingLine& line);
  // by_row: transformers' eval_loss, where it is of interest.
  void validation(std::int64_t step, double loss, std::int64_t tokens, std::optional<double> by_row = {});
  void tasks(std::int64_t step, const Results& results);
  void layers(std::int64_t step, const Json& layers);
  void event(std::int64_t step, const std::string& what, const std::string& reason);
  void sync();

 private:
  void put(const Json& line);
  void show(double time, std::int64_t step, const std::vector<Scalar>& scalars);
  std::optional<AppendFile> lines_;
  std::optional<EventFile> events_;
};

// The double whose text is the shortest one that gives this float back: 0.1f prints as 0.1, not as 0.10000000149011612.
double short_decimal(float value);

}  // namespace bhyt::train
