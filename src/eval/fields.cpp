#include "eval/fields.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "core/check.h"
#include "eval/python_text.h"
#include "text/letter_case.h"

namespace bhyt {

namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

// The shortest pieces in square brackets that stand on one line.
std::string without_brackets(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::size_t end = text[at] == '[' ? text.find_first_of("]\n", at + 1) : std::string_view::npos;
    if (end != std::string_view::npos && text[end] == ']')
      at = end;
    else
      out += text[at];
  }
  return out;
}

using Result = std::optional<std::string>;

Result strip(std::string_view text, std::string_view) { return std::string(python_strip(text)); }
Result lstrip(std::string_view text, std::string_view) {
  const std::string_view inside = python_strip(text);
  return inside.empty() ? "" : std::string(text.substr(static_cast<std::size_t>(inside.data() - text.data())));
}
Result capitalize(std::string_view text, std::string_view) { return unicode::capitalize(text); }
Result spaces(std::string_view text, std::string_view) { return replaced(std::string(text), "_", " "); }

Result before(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return at == std::string_view::npos ? Result() : std::string(text.substr(0, at));
}

Result after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return at == std::string_view::npos ? Result() : std::string(text.substr(at + mark.size()));
}

// Marks that WikiHow's articles have left in hellaswag. White space at the ends goes first, so what a mark leaves there stays.
Result wikihow(std::string_view text, std::string_view) {
  return replaced(without_brackets(replaced(std::string(python_strip(text)), " [title]", ". ")), "  ", " ");
}

struct FilterRow {
  std::string_view name;
  bool argument;
  Result (*function)(std::string_view text, std::string_view argument);  // nothing where the argument is not in the text
};
constexpr FilterRow kFilters[] = {
    {"strip", false, strip},  {"lstrip", false, lstrip}, {"capitalize", false, capitalize}, {"spaces", false, spaces},
    {"before", true, before}, {"after", true, after},    {"wikihow", false, wikihow},
};

std::string filter_names() {
  std::string all;
  for (const FilterRow& row : kFilters) all += fmt::format("{}{}{}", all.empty() ? "" : ", ", row.name, row.argument ? " X" : "");
  return all;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; (end = text.find(at)) != std::string_view::npos; text.remove_prefix(end + 1))
    parts.push_back(text.substr(0, end));
  parts.push_back(text);
  return parts;
}

// The item of a list at a place that stands there as digits.
const Document* item(const Document& list, std::string_view place) {
  std::size_t i = 0;
  const auto [stop, error] = std::from_chars(place.data(), place.data() + place.size(), i);
  return error == std::errc() && stop == place.data() + place.size() && i < list.size() ? &list[i] : nullptr;
}

const Document& find_column(const Row& row, std::string_view path) {
  const Document* at = &row.columns;
  for (const std::string_view step : split(path, '.')) {
    const Document* next = nullptr;
    if (at->is_object()) {
      const auto it = at->find(step);
      next = it == at->end() ? nullptr : &*it;
    } else if (at->is_array()) {
      next = item(*at, step);
    }
    if (!next && at == &row.columns) row.fail_columns(fmt::format("a column {}", step));
    if (!next) row.fail(path, fmt::format("something under {}", step), *at);
    at = next;
  }
  return *at;
}

}  // namespace

Filter::Filter(std::string_view spec) {
  const std::size_t space = std::min(spec.find(' '), spec.size());
  const std::string_view name = spec.substr(0, space);
  argument_ = spec.substr(std::min(space + 1, spec.size()));
  const auto row = std::ranges::find(kFilters, name, &FilterRow::name);
  check_usage(row != std::end(kFilters), "unknown filter {:?}; expected one of {}", name, filter_names());
  check_usage(row->argument == !argument_.empty(), "filter {} takes {}, got {:?}", name,
              row->argument ? "a text to look for" : "nothing more", spec);
  function_ = row->function;
}

std::string Filter::apply(std::string_view text, const Row& row, std::string_view column) const {
  Result out = function_(text, argument_);
  if (!out) row.fail(column, fmt::format("a text with {}", argument_), Document(text));
  return std::move(*out);
}

Template::Template(std::string_view source) {
  const auto literal = [&](std::string_view text) {
    if (pieces_.empty() || !pieces_.back().column.empty()) pieces_.emplace_back();
    pieces_.back().text += text;
  };
  for (std::string_view rest = source; !rest.empty();) {
    const std::size_t brace = rest.find_first_of("{}");
    if (brace != 0) literal(rest.substr(0, brace));
    if (brace == std::string_view::npos) return;
    rest.remove_prefix(brace);
    if (rest.starts_with("{{") || rest.starts_with("}}")) {
      literal(rest.substr(0, 1));
      rest.remove_prefix(2);
      continue;
    }
    const std::size_t end = rest.find('}');
    check_usage(rest[0] == '{' && end != std::string_view::npos, "{:?}: a {} has no partner (a brace itself is written twice)", source,
                rest[0]);
    pieces_.push_back(parse_column(rest.substr(1, end - 1), source));
    rest.remove_prefix(end + 1);
  }
}

Template::Piece Template::parse_column(std::string_view inside, std::string_view source) {
  const std::vector<std::string_view> parts = split(inside, '|');
  check_usage(!parts.front().empty() && inside.find('{') == std::string_view::npos, "{:?}: expected a column's name in braces, got {{{}}}",
              source, inside);
  return {.text = "", .column = std::string(parts.front()), .filters = {parts.begin() + 1, parts.end()}};
}

std::string Template::filtered(const Piece& piece, std::string text, const Row& row) {
  for (const Filter& f : piece.filters) text = f.apply(text, row, piece.column);
  return text;
}

std::string Template::fill(const Row& row, bool numbers) const {
  std::string out;
  for (const Piece& piece : pieces_) {
    if (piece.column.empty()) {
      out += piece.text;
      continue;
    }
    const Document& value = find_column(row, piece.column);
    const bool number = numbers && value.is_number_integer();
    if (!value.is_string() && !number) row.fail(piece.column, numbers ? "a text or a whole number" : "a text", value);
    out += filtered(piece, number ? value.dump() : value.get<std::string>(), row);
  }
  return out;
}

std::vector<std::string> Template::fill_list(const Row& row) const {
  const Piece& piece = pieces_.front();
  const Document& value = find_column(row, piece.column);
  const bool texts = value.is_array() && !value.empty() && std::ranges::all_of(value, [](const Document& v) { return v.is_string(); });
  if (!texts) row.fail(piece.column, "a list of texts", value);
  std::vector<std::string> out;
  for (const Document& v : value) out.push_back(filtered(piece, v.get<std::string>(), row));
  return out;
}

std::vector<std::string> Template::columns() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_)
    if (!piece.column.empty()) names.push_back(piece.column.substr(0, piece.column.find('.')));
  return names;
}

std::vector<std::string> fill_all(const std::vector<Template>& templates, const Row& row) {
  if (templates.size() == 1 && templates.front().is_column()) return templates.front().fill_list(row);
  std::vector<std::string> out;
  for (const Template& t : templates) out.push_back(t.fill(row));
  return out;
}

}  // namespace bhyt
