// Code points in UTF-8 bytes, and the three classes the splitting patterns ask for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bhyt::unicode {

enum class Class : std::uint8_t { other, letter, number, space };

constexpr char32_t kInvalid = 0xFFFFFFFF;

struct Char {
  char32_t code;     // kInvalid for a byte that is not part of well-formed UTF-8
  std::size_t size;  // bytes; 1 for an invalid one
};

// The character at p < end. Surrogates, overlong forms and what lies beyond U+10FFFF are invalid, byte by byte.
Char decode(const char* p, const char* end);
void append(std::string& out, char32_t code);

// Pages of 256 code points; equal pages are kept once.
class ClassTable {
 public:
  static const ClassTable& get();
  Class ascii(unsigned char c) const { return static_cast<Class>(pages_[page_of_[0]][c]); }
  Class operator()(char32_t code) const {
    return code < 0x110000 ? static_cast<Class>(pages_[page_of_[code >> 8]][code & 255]) : Class::other;
  }

 private:
  ClassTable();
  std::array<std::uint8_t, 0x1100> page_of_{};
  std::vector<std::array<std::uint8_t, 256>> pages_;
};

}  // namespace bhyt::unicode
