// What a run carries from step to step beside the weights, and how it is written into and read from a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "core/memory.h"
#include "core/schema.h"
#include "model/model.h"
#include "train/files.h"

namespace bhyt::train {

using schema::Json;

// Arenas beside the parameters, fp32. The masters are the weights themselves; in a bf16 run together with what bf16 leaves out of them.
struct OptimizerState {
  OwnedTensor gradients, m, v;
  OwnedTensor rests;  // uint16 (core/dtype.h), of bf16 runs

  explicit OptimizerState(const Model& model);  // moments and rests zero
  std::size_t master_and_moment_bytes() const;
};

// All that the mathematics and the metrics of the next step depend on.
struct Progress {
  std::int64_t step = 0;     // done
  std::int64_t updates = 0;  // steps that were not skipped: AdamW's bias correction counts these
  std::int64_t skipped_in_row = 0;
  double loss_sum = 0;  // since the last line of metrics
  std::int64_t loss_count = 0;
  double best_metric = 0;  // lowest validation loss, at best_step (0 = none yet)
  std::int64_t best_step = 0;
  Json log_history = Json::array();
};

// optimizer.safetensors: m.NAME, v.NAME, master.NAME (bf16 runs only) of every parameter, and c_attn.
void save_optimizer(const fs::path& file, const Model& model, const OptimizerState& state);
// Restores moments, masters (and with them the weights) and c_attn.
// masters: the file holds them, being of a bf16 run, whatever the type of this one.
void load_optimizer(const fs::path& file, Model& model, OptimizerState& state, bool masters);

Json to_json(const Progress& progress);
Progress progress_from(const Json& state, const std::string& where);

}  // namespace bhyt::train
