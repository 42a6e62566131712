// Byte-level BPE writes bytes as printable characters: 0x21–0x7E, 0xA1–0xAC and 0xAE–0xFF as themselves, the rest from U+0100 on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bhyt {

char32_t byte_to_char(unsigned char byte);
std::string bytes_to_chars(std::string_view bytes);
// The bytes that characters of the alphabet stand for; nothing if any lies outside it.
std::optional<std::string> chars_to_bytes(std::string_view chars);

}  // namespace bhyt
