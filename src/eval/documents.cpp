#include "eval/documents.h"

#include <algorithm>

#include "core/check.h"
#include "data/bytes_in.h"
#include "data/files.h"
#include "data/json_text.h"
#include "io/json.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kShown = 80;

std::string shown(const Document& value) {
  std::string text = value.dump(-1, ' ', false, Document::error_handler_t::replace);
  if (text.size() <= kShown) return text;
  std::size_t end = kShown;
  while ((text[end] & 0xC0) == 0x80) --end;  // not inside a character
  return text.substr(0, end) + "…";
}

Document parse(std::string_view line, const std::string& file, std::int64_t number) {
  Document row = json_or_discarded<Document>(line);
  if (row.is_object()) return row;
  throw Error(fmt::format("{}, line {}: {}", file, number, json_mistake(line)));
}

void for_each_line(const std::string& file, const std::function<bool(Document&&, std::int64_t)>& take) {
  InputBytes bytes(find_inputs({file}).at(0));
  std::int64_t number = 0;
  for (std::string line; bytes.line(line);) {
    ++number;
    if (!take(parse(line, file, number), number)) return;
  }
  check(number > 0, "{} is empty: expected one JSON object a line", file);
}

}  // namespace

void Row::fail(std::string_view column, std::string_view expected, const Document& found) const {
  throw Error(fmt::format("{}, line {}, column {}: expected {}, found {}", file, line, column, expected, shown(found)));
}

void Row::fail_columns(std::string_view expected) const {
  std::string found;
  for (const auto& [name, value] : columns.items()) found += (found.empty() ? "" : ", ") + name;
  throw Error(fmt::format("{}, line {}: expected {}, found {}", file, line, expected, found.empty() ? "none" : found));
}

std::optional<fs::path> find_split(const fs::path& data, const std::string& task, const std::string& split) {
  for (const char* ending : {".jsonl", ".jsonl.gz", ".jsonl.zst"})
    if (fs::path file = data / task / (split + ending); is_there(file.string())) return file;
  return std::nullopt;
}

void for_each_row(const fs::path& file, const std::function<bool(const Row&)>& take) {
  const std::string name = file.string();
  for_each_line(name, [&](Document&& columns, std::int64_t line) { return take({columns, name, line}); });
}

Documents read_documents(const fs::path& file) {
  Documents all{.file = file.string(), .rows = {}};
  for_each_line(all.file, [&](Document&& columns, std::int64_t) {
    all.rows.push_back(std::move(columns));
    return true;
  });
  return all;
}

}  // namespace bhyt
