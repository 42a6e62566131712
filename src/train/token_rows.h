// Pretraining's batches: rows of T + 1 tokens from packed files.
#pragma once

#include <memory>
#include <vector>

#include "data/loader.h"
#include "train/batch_source.h"
#include "train/config.h"

namespace bhyt::train {

// Shuffled by run.seed, the next batches made ready in the background, over and over.
std::unique_ptr<BatchSource> training_rows(const std::vector<DataPart>& parts, const RunConfig& config);
// In file order, the last batch of a pass as short as it comes.
std::unique_ptr<BatchSource> validation_rows(const std::vector<DataPart>& parts, const RunConfig& config);

}  // namespace bhyt::train
