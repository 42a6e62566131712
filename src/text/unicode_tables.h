// The tables that scripts/make_unicode_tables.py writes; text/unicode.h and text/normalize.h are what others use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bhyt::unicode {

struct Range {
  char32_t first, last;
};
struct ClassRange {
  char32_t first, last;
  std::uint8_t combining;
};
struct Decomposition {
  char32_t whole, first, second;  // second 0: a single code point
};

extern const Range kLetters[], kNumbers[], kSpaces[];
extern const std::size_t kLettersCount, kNumbersCount, kSpacesCount;
extern const ClassRange kCombiningClasses[];
extern const std::size_t kCombiningClassesCount;
extern const Decomposition kCompositions[], kOneWay[];  // NFC puts the former together again, not the latter
extern const std::size_t kCompositionsCount, kOneWayCount;

}  // namespace bhyt::unicode
