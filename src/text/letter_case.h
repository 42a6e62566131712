// Small and capital letters of any script.
#pragma once

#include <string>
#include <string_view>

namespace bhyt::unicode {

// Python's str.capitalize: the first character in title case, all others in lower case. Invalid bytes pass through.
std::string capitalize(std::string_view text);

}  // namespace bhyt::unicode
