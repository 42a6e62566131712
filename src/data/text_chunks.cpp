#include "data/text_chunks.h"

#include <algorithm>

#include "core/check.h"
#include "data/json_text.h"

namespace bhyt {

namespace {
constexpr std::size_t kStep = 1 << 20;
}

bool TextChunkReader::next(TextChunk& chunk) {
  if (!stream_) {
    if (at_ == files_.size()) return false;
    stream_ = open_input(files_[at_]);
    line_ = 1;
  }
  chunk.file = &files_[at_];
  chunk.first_line = line_;
  chunk.begun = consumed_;
  chunk.data.swap(rest_);
  rest_.clear();
  const bool lines = chunk.file->records == Records::jsonl;
  for (bool ended = false; !ended;) {
    const std::size_t size = chunk.data.size();
    chunk.data.resize(size + kStep);
    const std::size_t n = stream_->read(chunk.data.data() + size, kStep);
    chunk.data.resize(size + n);
    ended = n == 0;
    const std::size_t newline = lines && !ended ? chunk.data.rfind('\n') : chunk.data.npos;
    if (newline != chunk.data.npos && chunk.data.size() >= kStep) {
      rest_ = chunk.data.substr(newline + 1);
      chunk.data.resize(newline + 1);
      break;
    }
    if (ended) done_ += files_[at_++].bytes;
    if (ended) stream_.reset();
  }
  if (lines && line_ == 1 && chunk.data.starts_with("\xEF\xBB\xBF")) chunk.data.erase(0, 3);  // a byte order mark
  line_ += std::count(chunk.data.begin(), chunk.data.end(), '\n');
  chunk.consumed = consumed_ = done_ + (stream_ ? stream_->consumed() : 0);
  return true;
}

void for_each_text(const TextChunk& chunk, const std::string& key, const std::function<void(std::string_view, std::int64_t)>& use) {
  if (chunk.file->records != Records::jsonl) return use(chunk.data, 1);
  JsonText json(key);
  std::string_view rest = chunk.data;
  for (std::int64_t number = chunk.first_line; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    std::string_view text;
    check(json.scan(line, text), "{}:{}: {}", chunk.file->path, number, json.error());
    use(text, number);
  }
}

}  // namespace bhyt
