// The keys of the `norm:` section, for YAML configs and for config.json alike.
#pragma once

#include "core/schema.h"
#include "ops/norm/methods.h"

namespace bhyt {

void fields(NormConfig& c, schema::Reader& v);
void fields(NormConfig& c, schema::Writer& v);
void fields(NormConfig& c, schema::Lister& v);

}  // namespace bhyt
