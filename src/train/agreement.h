// What all ranks of a run must have alike before they begin.
#pragma once

#include <string>

#include "parallel/group.h"
#include "train/config.h"

namespace bhyt::train {

// Facts by name. UsageError that names the first rank that differs from rank 0, what differs, and both values.
void check_agreement(parallel::Group& group, const Json& facts);

// Of the program and of every key; what may differ from host to host is left out.
Json facts_of(const RunConfig& config);

}  // namespace bhyt::train
