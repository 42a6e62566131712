#include <gtest/gtest.h>

#include "tests/text/fuzz_strings.h"
#include "text/byte_alphabet.h"
#include "text/normalize.h"
#include "text/split.h"

namespace bhyt {
namespace {

using unicode::Class;

TEST(Unicode, ClassesHaveTheSizesOfTheOracles) {
  std::size_t count[4] = {};
  for (char32_t c = 0; c < 0x110000; ++c) ++count[static_cast<std::size_t>(unicode::ClassTable::get()(c))];
  EXPECT_EQ(count[static_cast<std::size_t>(Class::letter)], 141028u);
  EXPECT_EQ(count[static_cast<std::size_t>(Class::number)], 1911u);
  EXPECT_EQ(count[static_cast<std::size_t>(Class::space)], 25u);
  EXPECT_EQ(unicode::ClassTable::get()(unicode::kInvalid), Class::other);
}

TEST(Unicode, DecodesWhatItAppends) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string s;
    unicode::append(s, c);
    const unicode::Char back = unicode::decode(s.data(), s.data() + s.size());
    ASSERT_EQ(back.code, c);
    ASSERT_EQ(back.size, s.size());
    if (s.size() > 1) {  // cut short, it is invalid
      EXPECT_EQ(unicode::decode(s.data(), s.data() + s.size() - 1).code, unicode::kInvalid);
    }
  }
}

TEST(Unicode, RefusesIllFormedBytes) {
  const std::string bad[] = {"\x80",         "\xBF",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",     "\xE0\x9F\xBF",
                             "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                             "\xC3(",        "\xE2\x82(",    "\xF0\x9F\x98("};
  for (const std::string& s : bad) {
    const unicode::Char c = unicode::decode(s.data(), s.data() + s.size());
    EXPECT_EQ(c.code, unicode::kInvalid);
    EXPECT_EQ(c.size, 1u);
  }
}

TEST(ByteAlphabet, RoundTrips) {
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_EQ(chars_to_bytes(bytes_to_chars(all)), all);
  EXPECT_EQ(bytes_to_chars(" \n"), "ĠĊ");
  EXPECT_EQ(chars_to_bytes("a b"), std::nullopt);  // a space never stands in the alphabet
  EXPECT_EQ(chars_to_bytes("日"), std::nullopt);
}

TEST(Nfc, KnownCases) {
  EXPECT_EQ(unicode::nfc("plain ÀÿŁ"), "plain ÀÿŁ");
  EXPECT_EQ(unicode::nfc("e\u0301 o\u0323\u0302"), "é ộ");
  EXPECT_EQ(unicode::nfc("\u1100\u1161\u11A8"), "각");
  EXPECT_EQ(unicode::nfc("\u212B\u2126"), "\u00C5\u03A9");
  EXPECT_EQ(unicode::nfc("\u0301a"), "\u0301a");
  EXPECT_EQ(unicode::nfc("\xCC\xFF e\u0301\xE0"), "\xCC\xFF \u00E9\xE0");  // invalid bytes pass through
}

std::vector<std::string> split(Pattern pattern, std::string_view text, bool digits = false) {
  std::vector<std::string> out;
  Splitter(pattern, digits)(text, [&](std::string_view word) { out.emplace_back(word); });
  return out;
}

using Words = std::vector<std::string>;

TEST(Split, Patterns) {
  EXPECT_EQ(split(Pattern::llama3, "I'M 12345 a\n\n  b"), (Words{"I", "'M", " ", "123", "45", " a", "\n\n", " ", " b"}));
  EXPECT_EQ(split(Pattern::gpt2, "I'M 12345 a\n\n  b"), (Words{"I", "'", "M", " 12345", " a", "\n\n ", " b"}));
  EXPECT_EQ(split(Pattern::qwen2, "a12 !!\n"), (Words{"a", "1", "2", " !!\n"}));
  EXPECT_EQ(split(Pattern::gpt2, "a12 3", true), (Words{"a", "1", "2", " ", "3"}));
  EXPECT_EQ(split(Pattern::llama3, "(hello) \t x"), (Words{"(hello", ")", " \t", " x"}));
  EXPECT_EQ(split(Pattern::llama3, "'\xC5\xBF'll'"), (Words{"'\xC5\xBF", "'ll", "'"}));
  EXPECT_EQ(split(Pattern::llama3, "  "), (Words{"  "}));
  EXPECT_EQ(split(Pattern::whole, "a b"), (Words{"a b"}));
  EXPECT_TRUE(split(Pattern::llama3, "").empty());
}

TEST(Split, InvalidBytesAreNeitherLetterNorNumberNorSpace) {
  EXPECT_EQ(split(Pattern::llama3, "a\xFF\xFE!b"), (Words{"a", "\xFF\xFE!", "b"}));
  EXPECT_EQ(split(Pattern::gpt2, "a \xC3"), (Words{"a", " \xC3"}));
}

TEST(Split, WordsTogetherAreTheText) {
  test::SplitMix rng(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (std::uint64_t n = rng.below(40); n > 0; --n)
      text.push_back(static_cast<char>(rng.below(3) ? rng.below(256) : " \n'a1\xE2"[rng.below(6)]));
    for (const Pattern p : {Pattern::whole, Pattern::gpt2, Pattern::llama3, Pattern::qwen2}) {
      std::string again;
      for (const std::string& w : split(p, text, i % 2 == 0)) {
        ASSERT_FALSE(w.empty());
        again += w;
      }
      ASSERT_EQ(again, text);
    }
  }
}

TEST(Split, PatternsAreFoundByTheirRegex) {
  for (const Pattern p : {Pattern::gpt2, Pattern::llama3, Pattern::qwen2}) EXPECT_EQ(find_pattern(pattern_regex(p)), p);
  EXPECT_EQ(find_pattern(R"(\s+|\S+)"), std::nullopt);
  EXPECT_EQ(find_pattern(""), std::nullopt);
}

}  // namespace
}  // namespace bhyt
