// Texts out of files: every one, in order, with its line, however the chunks fall.
#include "data/text_chunks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/data/test_util.h"

namespace bhyt::test {
namespace {

using Found = std::vector<std::pair<std::string, std::int64_t>>;

Found texts_of(const std::vector<std::string>& paths, const std::string& key = "text") {
  const std::vector<InputFile> files = find_inputs(paths);
  TextChunkReader reader(files);
  Found found;
  TextChunk chunk;
  std::uint64_t before = 0, all = 0;
  for (const InputFile& f : files) all += f.bytes;
  while (reader.next(chunk)) {
    EXPECT_EQ(chunk.begun, before);
    EXPECT_GE(chunk.consumed, before);
    before = chunk.consumed;
    for_each_text(chunk, key, [&](std::string_view text, std::int64_t line) { found.emplace_back(text, line); });
  }
  EXPECT_EQ(before, all);
  return found;
}

TEST(TextChunks, ATextIsAFileOrALine) {
  const TempDir dir;
  write_file(dir / "a.txt", "one\ntwo\n");
  write_file(dir / "b.jsonl",
             "\xEF\xBB\xBF{\"text\": \"three\"}\n\n{\"other\": 1, \"text\": \"fo\\nur\xE2\x80\xA8\"}\r\n \t\r\n{\"text\": \"\"}");
  write_file(dir / "c.txt.gz", gzip("five"));
  write_file(dir / "d.txt", "");
  EXPECT_EQ(texts_of({dir / "a.txt", dir / "b.jsonl", dir / "c.txt.gz", dir / "d.txt"}),
            (Found{{"one\ntwo\n", 1}, {"three", 1}, {"fo\nur\u2028", 3}, {"", 5}, {"five", 1}, {"", 1}}));
}

TEST(TextChunks, LinesGoOnFromChunkToChunk) {
  const TempDir dir;
  std::string lines;
  Found expected;
  for (int i = 0; lines.size() < (5 << 19); ++i) {  // two and a half megabytes, among them one line of more than one
    const std::string text =
        i == 3 ? std::string(5 << 18, 'x') : fmt::format("{} {}", i, std::string(static_cast<std::size_t>(i % 977), 'y'));
    lines += fmt::format("{{\"t\": \"{}\"}}\n", text);
    expected.emplace_back(text, i + 1);
  }
  write_file(dir / "many.jsonl", lines);
  EXPECT_EQ(texts_of({dir / "many.jsonl"}, "t"), expected);
  write_file(dir / "many.jsonl.gz", gzip(lines));
  EXPECT_EQ(texts_of({dir / "many.jsonl.gz"}, "t"), expected);
  write_file(dir / "bad.jsonl", lines + "{\"t\": \n");
  try {
    texts_of({dir / "bad.jsonl"}, "t");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), fmt::format("{}:{}: bad JSON at column 7: expected a value", dir / "bad.jsonl", expected.size() + 1));
  }
}

}  // namespace
}  // namespace bhyt::test
