// Runs a plan: every run a process of its own with an ordinary run directory, the index kept up to date, finished runs left alone.
#pragma once

#include <string>

#include "parallel/group.h"
#include "study/index.h"

namespace bhyt::study {

enum class Keep : std::uint8_t { all, weights, none };  // of a finished run's checkpoints

struct SweepOptions {
  fs::path folder;
  int jobs = 0;  // at once, on each rank; 0 = auto
  Keep keep = Keep::weights;
  bool retry = false;                // failed and diverged runs again
  parallel::Group* group = nullptr;  // whose ranks the runs go to
};

struct SweepOutcome {
  Index index;
  int signal = 0;       // SIGINT or SIGTERM when that ended it
  bool failed = false;  // of the runs that were asked for, one failed or was interrupted
};

// The index of the folder, for these runs: one that it does not know, or knows only as planned, but whose directory holds a finished run
// with the settings that the sweep gave it, is done. With `retry`, one that it calls failed, too.
Index read_index(const Plan& plan, const SweepOptions& options);

// Takes from a finished run's checkpoints what is not to be kept.
void tidy(const fs::path& run_dir, Keep keep);

// Takes the folder for itself while it works. All ranks of a group call it; the outcome is the first one's.
SweepOutcome run_sweep(const Plan& plan, const SweepOptions& options);

// What a sweep would come to: runs, time, disk.
struct Forecast {
  std::size_t runs = 0, done = 0, ended = 0;  // ended: failed or diverged, not tried again
  double tokens = 0;                          // that are still to be trained on
  std::optional<double> seconds;              // one run after the other, at the speed of this folder's finished runs; none: there are none
  std::optional<double> bytes;                // of checkpoints that stay; none: the size of the models is not known (no data yet)
  double working_bytes = 0;                   // of the checkpoints of one run that is under way
};
Forecast forecast(const Plan& plan, const SweepOptions& options);

}  // namespace bhyt::study
