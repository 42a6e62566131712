// What all ranks of a run must have alike before they begin, and what they agree on.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/group.h"
#include "train/config.h"

namespace bhyt::train {

// Facts by name. UsageError that names the first rank that differs from rank 0, what differs, and both values.
void check_agreement(parallel::Group& group, const Json& facts);

// On every rank the least, or the largest, of what the ranks say.
std::int64_t least_of_ranks(parallel::Group& group, std::int64_t own);
std::int64_t largest_of_ranks(parallel::Group& group, std::int64_t own);

// Of the program and of every key; what may differ from host to host is left out.
Json facts_of(const RunConfig& config);

}  // namespace bhyt::train
