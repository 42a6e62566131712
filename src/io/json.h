// JSON out of files, which others may have made: nesting without end is refused, for a tree of it overflows the stack when it is copied.
#pragma once

#include <string>
#include <string_view>

#include "core/schema.h"

namespace bhyt {

constexpr int kDeepestJson = 500;

// Error that begins with `name` for what is not JSON or nested beyond reason. J: schema::Json, or nlohmann::json where the order of keys
// does not matter.
template <class J = schema::Json>
J parse_json(std::string_view text, const std::string& name);

// The same, discarded (is_discarded) where that would throw.
template <class J = schema::Json>
J json_or_discarded(std::string_view text);

}  // namespace bhyt
