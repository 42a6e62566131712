#include "text/unicode.h"

#include <algorithm>

#include "text/unicode_tables.h"

namespace bhyt::unicode {

Char decode(const char* p, const char* end) {
  const auto byte = [&](std::ptrdiff_t i) { return static_cast<unsigned char>(p[i]); };
  const unsigned char c = byte(0);
  if (c < 0x80) return {c, 1};
  const std::ptrdiff_t size = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
  if (c < 0xC2 || c > 0xF4 || end - p < size) return {kInvalid, 1};
  char32_t code = c & (0xFF >> (size + 1));
  for (std::ptrdiff_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {kInvalid, 1};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[size] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {kInvalid, 1};
  return {code, static_cast<std::size_t>(size)};
}

void append(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

const ClassTable& ClassTable::get() {
  static const ClassTable table;
  return table;
}

ClassTable::ClassTable() {
  std::vector<std::uint8_t> all(0x110000, static_cast<std::uint8_t>(Class::other));
  const auto mark = [&](const Range* ranges, std::size_t count, Class c) {
    for (std::size_t i = 0; i < count; ++i) std::fill(&all[ranges[i].first], &all[ranges[i].last] + 1, static_cast<std::uint8_t>(c));
  };
  mark(kLetters, kLettersCount, Class::letter);
  mark(kNumbers, kNumbersCount, Class::number);
  mark(kSpaces, kSpacesCount, Class::space);
  for (std::size_t page = 0; page < page_of_.size(); ++page) {
    std::array<std::uint8_t, 256> here;
    std::copy_n(&all[page * 256], 256, here.begin());
    const auto found = std::find(pages_.begin(), pages_.end(), here);
    page_of_[page] = static_cast<std::uint8_t>(found - pages_.begin());
    if (found == pages_.end()) pages_.push_back(here);
  }
}

}  // namespace bhyt::unicode
