// What bhyt sweep and bhyt reproduce share: flags, what they mean, how a sweep ends.
#pragma once

#include <string>
#include <vector>

#include "cli/training.h"
#include "study/sweep.h"

namespace bhyt::cli {

struct SweepFlags {
  std::string out, jobs = "auto", keep = "weights";
  bool retry = false, dry_run = false;
  std::vector<OwnFlag> flags();
  study::SweepOptions options(const std::string& default_folder) const;  // UsageError for what is wrong with them
};
constexpr const char* kSweepFlags =
    "  --out DIR     the folder of the runs, made where it is missing\n"
    "  --jobs N      so many runs at once (on each rank); auto (default): as many as bring the greatest speed in all, found by "
    "measurement\n"
    "  --keep WHAT   of a finished run's checkpoints: weights (default), all (to go on from), none\n"
    "  --retry       failed and diverged runs again\n"
    "  --dry-run     say how many runs, how long and how much disk, and run nothing\n";

std::string describe_forecast(const study::Forecast& forecast, const study::SweepOptions& options);

// The exit code: 0, 1 where a run failed, 130 or 143 after a signal.
int finish_sweep(const study::SweepOutcome& outcome);

}  // namespace bhyt::cli
