// Texts out of files: read as chunks of about a megabyte, taken apart by whoever has the time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/input.h"

namespace bhyt {

// Whole lines of one JSONL file, or one whole text.
struct TextChunk {
  std::string data;
  const InputFile* file = nullptr;
  std::int64_t first_line = 1;
  std::uint64_t begun = 0, consumed = 0;  // bytes of all files on disk: before it, and with it
};

class TextChunkReader {
 public:
  explicit TextChunkReader(const std::vector<InputFile>& files) : files_(files) {}  // which must outlive the chunks, too

  bool next(TextChunk& chunk);

 private:
  const std::vector<InputFile>& files_;
  std::size_t at_ = 0;
  std::unique_ptr<InputStream> stream_;
  std::string rest_;  // the start of a line that the next chunk completes
  std::int64_t line_ = 1;
  std::uint64_t done_ = 0, consumed_ = 0;
};

// Calls use(text, number of its line) for each text, which lasts as long as the call: the strings under `key` of JSON lines, but for blank
// lines, or the whole of a text. Error that names file and line for a line that holds none.
void for_each_text(const TextChunk& chunk, const std::string& key, const std::function<void(std::string_view, std::int64_t)>& use);

}  // namespace bhyt
