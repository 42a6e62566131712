// What a run carries from step to step beside the weights, and how it is written into and read from a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/schema.h"
#include "io/files.h"
#include "model/model.h"
#include "train/optimizer.h"

namespace bhyt::train {

using schema::Json;

// All that the mathematics and the metrics of the next step depend on.
struct Progress {
  std::int64_t step = 0;     // done
  std::int64_t updates = 0;  // steps that were not skipped: AdamW's bias correction counts these
  std::int64_t skipped_in_row = 0;
  double loss_sum = 0;  // since the last line of metrics
  std::int64_t loss_count = 0;
  bool unvalidated = false;  // the validation of this step is still to be made: a signal stopped it
  double best_metric = 0;    // lowest validation loss, at best_step (0 = none yet)
  std::int64_t best_step = 0;
  std::int64_t stale = 0;   // validations since then
  std::int64_t tokens = 0;  // that steps went over
  Json log_history = Json::array();

  // Enters a validation of this step: whether it is the best so far. The model that is started from is no candidate, and no model whose
  // steps are in doubt.
  void judge(double loss);
  std::optional<double> last(const char* key) const;  // in log_history; none, too, where that is not finite
};

// The optimizer's state and masters (train/optimizer.h), and c_attn, in the file of this process (optimizer_file in
// io/checkpoint_folders.h); they are read from the files of all.
void save_optimizer(const fs::path& checkpoint, const Model& model, const Optimizer& optimizer);
void load_optimizer(const fs::path& checkpoint, Model& model, Optimizer& optimizer);

Json to_json(const Progress& progress);
Progress progress_from(const Json& state, const std::string& where);

}  // namespace bhyt::train
