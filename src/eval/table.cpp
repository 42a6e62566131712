#include "eval/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

namespace bhyt {

namespace {

enum class Kind : std::uint8_t { blank, whole, real, text };

struct Cell {
  Kind kind = Kind::blank;
  std::string text;
  double number = 0;
};

struct Column {
  Kind kind = Kind::blank;
  int places = 0;
  std::size_t width = 3;
  std::vector<Cell> cells;
};

bool is_number(Kind kind) { return kind == Kind::whole || kind == Kind::real; }

// Code points: bytes that do not continue one.
std::size_t characters(const std::string& utf8) {
  return static_cast<std::size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

int places_of(double number) {
  const std::string text = fmt::format("{}", number);
  const auto point = text.find('.');
  return point == std::string::npos ? 0 : static_cast<int>(text.size() - point - 1);
}

std::optional<double> as_number(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size() || std::isnan(number)) return std::nullopt;
  return number;
}

Cell number_cell(double number) { return {.kind = number == std::floor(number) ? Kind::whole : Kind::real, .text = {}, .number = number}; }

Cell text_cell(const std::string& text, bool among_texts) {
  if (text.find_first_not_of(' ') == std::string::npos) return {.kind = Kind::blank, .text = text};
  const std::optional<double> number = among_texts ? std::nullopt : as_number(text);
  return number ? number_cell(*number) : Cell{.kind = Kind::text, .text = text};
}

// Whether most cells so far are text: then pytablewriter takes the next text for one too, even if it is a number (0.0715 below many N/A).
// Of kinds that are as frequent the one that was seen first counts.
class Majority {
 public:
  void add(Kind kind) {
    auto found = std::find_if(counts_.begin(), counts_.end(), [&](const auto& c) { return c.first == kind; });
    if (found == counts_.end()) found = counts_.insert(counts_.end(), {kind, 0});
    ++found->second;
  }
  bool text() const {
    const auto most = std::max_element(counts_.begin(), counts_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return most != counts_.end() && most->first == Kind::text;
  }

 private:
  std::vector<std::pair<Kind, int>> counts_;  // in the order in which they were seen
};

std::string shown(const Cell& cell, const Column& column) {
  if (!is_number(cell.kind)) return cell.text;
  const bool as_it_is = column.kind == Kind::text && cell.kind == Kind::whole;
  return fmt::format("{:.{}f}", cell.number, as_it_is ? 0 : column.places);
}

Column read_column(const std::string& header, const std::vector<std::vector<TableCell>>& rows, std::size_t at) {
  Column column;
  Majority majority;
  for (const auto& row : rows) {
    const auto* number = std::get_if<double>(&row[at]);
    column.cells.push_back(number ? number_cell(*number) : text_cell(std::get<std::string>(row[at]), majority.text()));
    const Cell& cell = column.cells.back();
    majority.add(cell.kind);
    column.kind = std::max(column.kind, cell.kind);
    if (cell.kind == Kind::real) column.places = std::max(column.places, places_of(cell.number));
  }
  column.width = std::max(column.width, characters(header));
  for (const Cell& cell : column.cells) column.width = std::max(column.width, characters(shown(cell, column)));
  return column;
}

std::string spaces(std::size_t n) { return std::string(n, ' '); }

std::string centred(const std::string& text, std::size_t width) {
  const std::size_t free = width - characters(text);
  return spaces(free / 2) + text + spaces(free - free / 2);
}

std::string rule(const Column& column) {
  return is_number(column.kind) ? std::string(column.width - 1, '-') + ":" : std::string(column.width, '-');
}

std::string set_in(const Column& column, const Cell& cell) {
  const std::string text = shown(cell, column), free = spaces(column.width - characters(text));
  return is_number(column.kind == Kind::text ? cell.kind : column.kind) ? free + text : text + free;
}

}  // namespace

std::string markdown_table(const std::vector<std::string>& headers, const std::vector<std::vector<TableCell>>& rows) {
  std::vector<Column> columns;
  std::string top = "|", line = "|", body;
  for (std::size_t c = 0; c < headers.size(); ++c) {
    columns.push_back(read_column(headers[c], rows, c));
    top += centred(headers[c], columns[c].width) + "|";
    line += rule(columns[c]) + "|";
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    body += "|";
    for (const Column& column : columns) body += set_in(column, column.cells[r]) + "|";
    body += "\n";
  }
  return top + "\n" + line + "\n" + body;
}

}  // namespace bhyt
