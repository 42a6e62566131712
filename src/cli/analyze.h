// The parts of bhyt analyze that have names of their own: bhyt analyze theory | toy | depth.
#pragma once

#include "cli/commands.h"

namespace bhyt::cli {

// Without "bhyt analyze NAME"; the exit code.
int analyze_theory(const Args& args);
int analyze_toy(const Args& args);
int analyze_depth(const Args& args);

void check_toy(const Args& args);  // UsageError where analyze_toy would throw one before its work

}  // namespace bhyt::cli
