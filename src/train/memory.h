// What a run will take of the machine's memory, known and compared with what is free before anything is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "train/config.h"

namespace bhyt::train {

// Bytes. Scratch of libraries and the like is left out: a run needs no less than this.
struct MemoryPlan {
  double weights = 0, gradients = 0, optimizer = 0;
  double activations = 0;  // of a micro-batch
  double batches = 0;      // on the device: the one in work and the next, for training and for validation
  double host = 0;         // batches on their way to it, in the host's memory
  double calibration = 0;  // while norms are fitted to a checkpoint's, before the first step
  double fixed() const { return weights + gradients + optimizer; }
  double device() const { return fixed() + activations + batches + calibration; }
};

// Of a config whose device, type and vocabulary are settled; micro_batch 0: without activations.
MemoryPlan plan_memory(const RunConfig& config, std::int64_t micro_batch);

struct FreeMemory {
  double device = 0, host = 0;  // on a CPU the same; 0: unknown
};
FreeMemory free_memory_for(const RunConfig& config);

// UsageError that names what is needed, what is free and what to lower.
void check_memory(const RunConfig& config, const MemoryPlan& plan, const FreeMemory& free);

// Checks that the run fits into what is free, and settles train.micro_batch: auto.
void settle_memory(RunConfig& config, const FreeMemory& free);

// A warning where one micro-batch keeps a CPU busy for long (auto takes none of these, but for a lone row), else "". peak: operations per
// second.
std::string slow_micro_batch(const RunConfig& config, double peak);

}  // namespace bhyt::train
