#include "text/letter_case.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "text/unicode.h"

namespace bhyt {
namespace {

using unicode::capitalize;

TEST(LetterCase, CapitalizesAsPython) {
  EXPECT_EQ(capitalize(""), "");
  EXPECT_EQ(capitalize("with iPhone AND ball"), "With iphone and ball");
  EXPECT_EQ(capitalize(" THE"), " the");
  EXPECT_EQ(capitalize("éCOLE DE DANSE"), "École de danse");
  EXPECT_EQ(capitalize("ßE"), "Sse");
  EXPECT_EQ(capitalize("ǆ"), "ǅ");                    // title case, not upper case
  EXPECT_EQ(capitalize("xİ"), "Xi\u0307");            // one character becomes two
  EXPECT_EQ(capitalize("ΟΔΟΣ ΣΑΣ."), "Οδος σας.");    // a sigma that ends a word
  EXPECT_EQ(capitalize("a\xFF\xC3Z"), "A\xFF\xC3z");  // invalid bytes stay
}

// FNV-1a of c.capitalize() and ("x" + c).capitalize() for every character c, from CPython 3.11 (Unicode 14).
TEST(LetterCase, EveryCharacter) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    unicode::append(text, c);
    for (const char b : capitalize(text) + capitalize("x" + text)) hash = (hash ^ static_cast<unsigned char>(b)) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 0xfc027088b38804b5);
}

}  // namespace
}  // namespace bhyt
