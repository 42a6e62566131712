// When a run saves, what stays, and where a resumed run goes on. A checkpoint's files: docs/training.md, "The run directory".
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "text/tokenizer.h"
#include "train/config.h"
#include "train/run_dir.h"
#include "train/state.h"

namespace bhyt::train {

// What every checkpoint of a run says beside the weights.
struct CheckpointContext {
  const RunConfig& config;
  const Tokenizer* tokenizer;  // null: none is saved
  Json mathematics;            // of the resolved config, with the tokenizer's fingerprint
  double rows_per_epoch = 1;
  // The whole master of a parameter, asked for by all ranks at the same time.
  std::function<std::vector<float>(const Parameter&)> master;
};

// Writes checkpoint-STEP, then lets go of what is no longer kept: interrupt checkpoints before it and all but the newest `keep` others
// (and, where train.select says so, the best one).
// All ranks call it together.
void save_checkpoint(RunDir& dir, const CheckpointContext& context, const Model& model, const Optimizer& optimizer,
                     const Progress& progress, bool interrupted);

// Lets go of what a process that was killed while it saved its last checkpoint had still to let go of.
void tidy_checkpoints(RunDir& dir, const TrainSection& train, const Progress& progress);

struct Found {
  fs::path dir;
  Json state;  // trainer_state.json
};
// The newest checkpoint that verifies and holds optimizer state; those passed over are named in the log. None where nothing was trained
// yet; Error where something was but no checkpoint serves, so that no history is written over.
std::optional<Found> find_checkpoint(const RunDir& dir);

// Refuses (UsageError) a config whose mathematics differs from the checkpoint's, naming every key; with `force` it only says so.
bool check_mathematics(const Found& found, const Json& mathematics, bool force);

// Weights, optimizer and c_attn as they were, bit for bit.
Progress load_checkpoint(const Found& found, const RunConfig& config, Model& model, Optimizer& optimizer);

}  // namespace bhyt::train
