// Everything a run holds while it trains, opened in the order in which things can go wrong: config, directory, data, model, checkpoint.
#pragma once

#include <memory>

#include "train/batches.h"
#include "train/checkpointing.h"
#include "train/config.h"
#include "train/data.h"
#include "train/data_parallel.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/run_dir.h"
#include "train/state.h"
#include "train/task_eval.h"
#include "train/tuning.h"

namespace bhyt::train {

struct Session {
  RunConfig config;  // resolved
  std::unique_ptr<Context> ctx;
  std::unique_ptr<RunDir> dir;
  RunData data;
  std::unique_ptr<BatchSource> train, valid;  // valid: null without validation data
  std::unique_ptr<Model> model;
  std::unique_ptr<TrainPass> pass;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Uploader> uploader, valid_uploader;
  std::unique_ptr<TuningFile> tuning;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<TaskEval> tasks;  // null without eval.tasks
  std::unique_ptr<CheckpointContext> checkpoints;
  Progress progress;
  std::int64_t length = 1;  // tokens that see each other, on average: of a row, or of a conversation
};

// Not movable once open: parts point at each other.
std::unique_ptr<Session> open_session(const RunConfig& config, bool force);

}  // namespace bhyt::train
