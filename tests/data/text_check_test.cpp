#include "data/text_check.h"

#include <fmt/format.h>

#include <random>

#include "data/pack.h"
#include "test_util.h"

namespace bhyt {
namespace {

using namespace test;

// One byte after the other: the same rule without blocks.
std::uint64_t one_by_one(const std::string& text) {
  const auto at = [&](std::ptrdiff_t i) -> unsigned {
    return i >= 0 && i < std::ssize(text) ? static_cast<unsigned char>(text[static_cast<std::size_t>(i)]) : 0;
  };
  const auto goes_on = [&](std::ptrdiff_t i) { return at(i) >= 0x80 && at(i) < 0xC0; };
  std::uint64_t count = 0;
  for (std::ptrdiff_t i = 0; i < std::ssize(text); ++i) {
    const bool led = at(i - 1) >= 0xC0 || at(i - 2) >= 0xE0 || at(i - 3) >= 0xF0;
    count += at(i) == 0 || (goes_on(i) && !led) || (at(i) >= 0xC0 && !goes_on(i + 1));
  }
  return count;
}

TEST(StrangeBytes, TextHasNoneAndOtherThingsHaveMany) {
  EXPECT_EQ(strange_bytes(""), 0u);
  EXPECT_EQ(strange_bytes("plain text\r\n\t"), 0u);
  EXPECT_EQ(strange_bytes("Grüße 中文 \xF0\x9F\x98\x80"), 0u);
  EXPECT_EQ(strange_bytes(std::string("a\0b", 3)), 1u);
  EXPECT_EQ(strange_bytes("Gr\xFC\xDF"
                          "e"),
            2u);                              // Latin-1
  EXPECT_EQ(strange_bytes("\x80x\xBF"), 2u);  // what goes on with nothing
  EXPECT_EQ(strange_bytes("x\xC3"), 1u);      // torn at the end
  std::string wide;
  for (const char c : std::string(500, 'w')) wide += {c, '\0'};
  EXPECT_EQ(strange_bytes(wide), 500u);  // UTF-16
}

TEST(StrangeBytes, BlocksChangeNothing) {
  std::mt19937 random(7);
  for (const std::size_t size : {1u, 2u, 239u, 240u, 241u, 479u, 480u, 481u, 1000u})
    for (int kind = 0; kind < 3; ++kind) {
      std::string text;
      while (text.size() < size) {
        if (kind == 0 || (kind == 1 && random() % 100 == 0))
          text += static_cast<char>(random());
        else
          text += random() % 3 ? "ascii" : "中é";
      }
      text.resize(size);
      EXPECT_EQ(strange_bytes(text), one_by_one(text)) << size << " " << kind;
    }
}

class PackedText : public ::testing::Test {
 protected:
  void pack_all(const std::vector<std::string>& names) {
    std::vector<std::string> inputs;
    for (const std::string& n : names) inputs.push_back(dir / n);
    pack(*make_byte_tokenizer(), {.out = dir / "x.tok", .inputs = inputs, .progress = false});
  }
  // What is said while packing.
  std::string said(const std::vector<std::string>& names) {
    ::testing::internal::CaptureStderr();
    pack_all(names);
    return ::testing::internal::GetCapturedStderr();
  }
  const TempDir dir;
};

TEST_F(PackedText, ThatHoldsNothingIsRefusedByName) {
  write_file(dir / "e.txt", "");
  write_file(dir / "white.txt", " \n\t\r\n");
  write_file(dir / "white.jsonl", "{\"text\": \" \"}\n{\"text\": \"\"}\n");
  for (const char* name : {"e.txt", "white.txt", "white.jsonl"})
    EXPECT_HAS(message_of([&] { pack_all({name}); }), fmt::format("no document has any text in {}", dir / name));
  EXPECT_EQ(dir.files(), 3u);
}

TEST_F(PackedText, FilesWithoutTextAreNamed) {
  write_file(dir / "a.txt", "text");
  write_file(dir / "b.txt", "");
  write_file(dir / "c.txt", "\n");
  EXPECT_EQ(said({"a.txt"}), "");
  EXPECT_EQ(said({"a.txt", "b.txt"}), fmt::format("warning: {} holds no text\n", dir / "b.txt"));
  EXPECT_HAS(said({"a.txt", "b.txt", "c.txt"}), "2 of 3 files hold no text, the first: " + dir / "b.txt");
}

TEST_F(PackedText, BytesThatAreNoTextAreNamedWithTheirShare) {
  write_file(dir / "fine.txt", std::string(990, 'x').append(10, '\0'));  // one in a hundred
  write_file(dir / "odd.txt", std::string(750000, 'x') + std::string(250000, '\0'));
  write_file(dir / "nul.jsonl", "{\"text\": \"\\u0000\\u0000ab\"}\n");
  EXPECT_EQ(said({"fine.txt"}), "");
  EXPECT_EQ(said({"fine.txt", "odd.txt"}),
            fmt::format("warning: {}: 25.0 % of its bytes are NUL or not UTF-8; is it text?\n", dir / "odd.txt"));
  EXPECT_HAS(said({"nul.jsonl"}), "nul.jsonl: 50.0 %");
}

}  // namespace
}  // namespace bhyt
