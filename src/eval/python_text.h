// Python's idea of white space in a str: what \s of re, str.strip and str.split go by.
#pragma once

#include <string_view>

#include "text/unicode.h"

namespace bhyt {

inline bool python_space(char32_t code) {
  return unicode::ClassTable::get()(code) == unicode::Class::space || (code >= 0x1C && code <= 0x1F);
}

inline std::string_view python_strip(std::string_view text) {
  const char *from = nullptr, *to = nullptr, *end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const unicode::Char c = unicode::decode(p, end);
    if (!python_space(c.code)) {
      if (!from) from = p;
      to = p + c.size;
    }
    p += c.size;
  }
  return from ? std::string_view(from, static_cast<std::size_t>(to - from)) : std::string_view();
}

}  // namespace bhyt
