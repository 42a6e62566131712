#include "data/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <random>

namespace bhyt {
namespace {

using nlohmann::json;

std::optional<std::string> ours(const std::string& line, const std::string& key = "text") {
  JsonText j(key);
  std::string_view text;
  if (!j.scan(line, text)) {
    EXPECT_FALSE(j.error().empty());
    return std::nullopt;
  }
  return std::string(text);
}

std::optional<std::string> theirs(const std::string& line, const std::string& key = "text") {
  const json j = json::parse(line, nullptr, false);
  if (!j.is_object() || !j.contains(key) || !j[key].is_string()) return std::nullopt;
  return j[key].get<std::string>();
}

TEST(JsonText, Cases) {
  EXPECT_EQ(ours(R"({"text": "abc"})"), "abc");
  EXPECT_EQ(ours(R"(  {"id":7,"text":"a\"b\\c\/\b\f\n\r\t","x":null}  )"), "a\"b\\c/\b\f\n\r\t");
  EXPECT_EQ(ours(R"({"text":"\u00e9\u4e2d\ud83d\ude00A"})"), "é中😀A");
  EXPECT_EQ(ours(R"({"text":"\u0000x"})"), std::string("\0x", 2));
  EXPECT_EQ(ours(R"({"t\u0065xt":"escaped key"})"), "escaped key");
  EXPECT_EQ(ours(R"({"meta":{"text":"inner"},"text":"outer","l":[1,-2.5e+3,{"a":[]},true,false]})"), "outer");
  EXPECT_EQ(ours(R"({"text":"first","text":"last"})"), "last");
  EXPECT_EQ(ours(R"({"text":""})"), "");
  EXPECT_EQ(ours(R"({"body":"b","text":"t"})", "body"), "b");
  EXPECT_EQ(ours(R"({"text":"a\nb","other":"c\nd"})"), "a\nb");  // an escaped string after it must not overwrite it
}

TEST(JsonText, Refusals) {
  for (const char* bad : {"",
                          "null",
                          "[]",
                          "\"text\"",
                          "{",
                          "{}",
                          "{\"text\"}",
                          "{\"text\":}",
                          "{\"text\":\"a}",
                          "{\"text\":\"a\"",
                          "{\"text\":\"a\"}x",
                          "{\"text\":\"a\",}",
                          "{\"text\":null}",
                          "{\"text\":5}",
                          "{\"text\":\"a\",\"text\":5}",
                          "{'text':'a'}",
                          "{\"text\":\"\\x\"}",
                          "{\"text\":\"\\u12\"}",
                          "{\"text\":\"\\ud800\"}",
                          "{\"text\":\"\\udc00\"}",
                          "{\"text\":\"\\ud800\\u0041\"}",
                          "{\"text\":\"a\tb\"}",
                          "{\"text\":\"\xff\"}",
                          "{\"text\":\"\xc0\x80\"}",
                          "{\"text\":\"\xed\xa0\x80\"}",
                          "{\"text\":\"\xf4\x90\x80\x80\"}",
                          "{\"text\":\"\xe4\xb8\"}",
                          "{\"n\":01,\"text\":\"a\"}",
                          "{\"n\":1.,\"text\":\"a\"}",
                          "{\"n\":-,\"text\":\"a\"}",
                          "{\"n\":tru,\"text\":\"a\"}",
                          "{\"n\":NaN,\"text\":\"a\"}"}) {
    EXPECT_EQ(ours(bad), std::nullopt) << bad;
    EXPECT_EQ(theirs(bad), std::nullopt) << bad;
  }
  std::string deep = "{\"a\":" + std::string(100000, '[');
  EXPECT_EQ(ours(deep), std::nullopt);
}

// Specials at every place of a word, with and without escapes.
TEST(JsonText, EveryOffset) {
  for (const std::string special : {"\"", "\\", "\n", "é", "中", "😀", "\x7f"})
    for (std::size_t n = 0; n < 20; ++n)
      for (std::size_t m = 0; m < 20; ++m) {
        const std::string text = std::string(n, 'x') + special + std::string(m, 'y');
        EXPECT_EQ(ours(json{{"text", text}}.dump()), text);
        EXPECT_EQ(ours(json{{"text", text}}.dump(-1, ' ', true)), text);
      }
}

std::string random_text(std::mt19937& r) {
  static const char* const pieces[] = {"a",  "word ", "\"", "\\", "\n", "\t", "é", "中",
                                       "😀", "\x01",  "/",  "{",  "}",  ":",  ",", "longer plain run of text "};
  std::string s;
  for (unsigned n = r() % 12; n > 0; --n) s += pieces[r() % std::size(pieces)];
  return s;
}

json random_value(std::mt19937& r, int depth) {
  switch (r() % (depth > 2 ? 5 : 7)) {
    case 0: return nullptr;
    case 1: return r() % 2 == 0;
    case 2: return static_cast<int>(r()) % 1000;
    case 3: return 0.5 * static_cast<int>(r() % 200);  // short: damage must not make a number beyond a double, which only they refuse
    case 4: return random_text(r);
    case 5: {
      json a = json::array();
      for (unsigned n = r() % 4; n > 0; --n) a.push_back(random_value(r, depth + 1));
      return a;
    }
    default: {
      json o = json::object();
      for (unsigned n = r() % 4; n > 0; --n) o[random_text(r)] = random_value(r, depth + 1);
      return o;
    }
  }
}

TEST(JsonText, AgreesWithAFullParserOnRandomObjects) {
  std::mt19937 r(11);
  for (int i = 0; i < 4000; ++i) {
    json o = {{"a" + random_text(r), random_value(r, 0)}, {"text", random_text(r)}, {"z", random_value(r, 0)}};
    std::string line = o.dump(i % 3 == 0 ? 1 : -1, ' ', i % 2 == 0);
    ASSERT_EQ(ours(line), theirs(line)) << line;
    // The same with damage: both must agree on whether it still is JSON.
    for (int k = 0; k < 4; ++k) {
      std::string bad = line;
      const std::size_t at = r() % bad.size();
      if (k == 0) bad.erase(at, 1);
      if (k == 1) bad[at] = static_cast<char>(r() % 256);
      if (k == 2) bad.resize(at);
      if (k == 3) bad.insert(at, 1, "\"\\{}[],:0e-u"[r() % 12]);
      ASSERT_EQ(ours(bad), theirs(bad)) << bad;
    }
  }
}

}  // namespace
}  // namespace bhyt
