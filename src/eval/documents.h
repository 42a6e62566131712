// The rows of a data set: DIR/TASK/SPLIT.jsonl, plain or with .gz or .zst, one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bhyt {

using Document = nlohmann::json;  // columns by name; equal whatever their order

// A document and where it stands.
struct Row {
  const Document& columns;
  const std::string& file;
  std::int64_t line = 0;  // from 1

  // Throw Error: "FILE, line 3, column label: expected a text, found 7", "FILE, line 3: expected the columns a, b, found a, c".
  [[noreturn]] void fail(std::string_view column, std::string_view expected, const Document& found) const;
  [[noreturn]] void fail_columns(std::string_view expected) const;
};

struct Documents {
  std::string file;
  std::vector<Document> rows;

  Row row(std::int64_t i) const { return {rows[static_cast<std::size_t>(i)], file, i + 1}; }
};

// The file of a split, or nothing.
std::optional<std::filesystem::path> find_split(const std::filesystem::path& data, const std::string& task, const std::string& split);

// Calls `take` for each row in order until it says false. Error for a file that is damaged or holds no rows, and for a line that is not an
// object.
void for_each_row(const std::filesystem::path& file, const std::function<bool(const Row&)>& take);
Documents read_documents(const std::filesystem::path& file);

}  // namespace bhyt
