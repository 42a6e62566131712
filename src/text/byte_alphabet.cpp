#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace bhyt {

namespace {

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int, 324> bytes{};

  Alphabet() {
    bytes.fill(-1);
    char32_t other = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const auto i = static_cast<std::size_t>(b);
      chars[i] = printable ? static_cast<char32_t>(b) : other++;
      bytes[chars[i]] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet a;
  return a;
}

}  // namespace

char32_t byte_to_char(unsigned char byte) { return alphabet().chars[byte]; }

std::string bytes_to_chars(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) unicode::append(out, byte_to_char(static_cast<unsigned char>(b)));
  return out;
}

std::optional<std::string> chars_to_bytes(std::string_view chars) {
  const Alphabet& a = alphabet();
  std::string out;
  const char* const end = chars.data() + chars.size();
  for (const char* p = chars.data(); p < end;) {
    const unicode::Char c = unicode::decode(p, end);
    if (c.code >= a.bytes.size() || a.bytes[c.code] < 0) return std::nullopt;
    out.push_back(static_cast<char>(a.bytes[c.code]));
    p += c.size;
  }
  return out;
}

}  // namespace bhyt
