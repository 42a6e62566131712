// The keys of a run's config as they are read, written and listed; config.h has what they come to.
#pragma once

#include "train/config.h"

namespace bhyt::train {

void read_keys(RunConfig& c, const Json& tree);  // what is given takes the place of what is there
Json write_keys(const RunConfig& c);
std::vector<schema::Lister::Entry> list_keys(RunConfig c);  // with the defaults that c has

}  // namespace bhyt::train
