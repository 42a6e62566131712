// Unicode normalization form C, as the `tokenizers` library computes it. Invalid bytes pass through.
#pragma once

#include <string>
#include <string_view>

namespace bhyt::unicode {

std::string nfc(std::string_view text);

}  // namespace bhyt::unicode
