// The keys of the `norm:` section, for YAML configs and for config.json alike.
#pragma once

#include "core/schema.h"
#include "ops/norm/methods.h"

namespace bhyt {

void fields(NormConfig& c, schema::Reader& v);
void fields(NormConfig& c, schema::Writer& v);
void fields(NormConfig& c, schema::Lister& v);

// Keys with a value of their own ("norm.lambda") that none of the config's methods makes use of.
std::vector<std::string> unused_keys(const NormConfig& c);

}  // namespace bhyt
