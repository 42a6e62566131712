// Templates over the columns of a document: "Question: {question|strip}\nAnswer:".
//   {goal}  {choices.text}  {choices.0}     a column; a key or a place inside it follows behind a dot
//   {question|strip}  {sentence|before _}   what a column holds, through filters
//   {{  }}                                  the braces themselves
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/documents.h"

namespace bhyt {

// One function of a text, by name: strip, lstrip, capitalize, spaces, before X, after X, wikihow (docs/evaluation.md).
class Filter {
 public:
  Filter(std::string_view spec);  // "strip", "before _"; UsageError with all names for an unknown one
  Filter(const char* spec) : Filter(std::string_view(spec)) {}
  // Error that names the column where the text is not one the filter is for.
  std::string apply(std::string_view text, const Row& row, std::string_view column) const;

 private:
  using Function = std::optional<std::string> (*)(std::string_view text, std::string_view argument);
  Function function_ = nullptr;
  std::string argument_;
};

class Template {
 public:
  Template() = default;
  Template(std::string_view source);  // UsageError for a brace without its partner or an unknown filter
  Template(const char* source) : Template(std::string_view(source)) {}

  bool empty() const { return pieces_.empty(); }
  // With the document's columns put in, each of which must be a text.
  std::string fill(const Row& row) const;
  // As fill, but whole numbers are taken too, as their digits.
  std::string fill_label(const Row& row) const;
  // Of a template that is a column by itself: the texts of the list that it holds.
  bool is_column() const { return pieces_.size() == 1 && !pieces_.front().column.empty(); }
  std::vector<std::string> fill_list(const Row& row) const;
  bool has_columns(const Row& row) const;  // whether the document has every column that is asked for
  std::string columns() const;             // "ctx_a, ctx_b": their names without what is inside them

 private:
  struct Piece {
    std::string text;    // as it stands, where it is not a column
    std::string column;  // "choices.text"
    std::vector<Filter> filters;
  };
  static Piece parse_column(std::string_view inside, std::string_view source);
  std::string fill(const Row& row, bool numbers) const;

  std::vector<Piece> pieces_;
};

// A list of texts: of one template the list in its column, of several one text each.
std::vector<std::string> fill_all(const std::vector<Template>& templates, const Row& row);

// What Python takes for white space: str.strip, str.split, \s.
bool is_python_space(char32_t code);
std::string_view python_lstrip(std::string_view text);
std::string_view python_rstrip(std::string_view text);
std::string_view python_strip(std::string_view text);
std::int64_t code_points(std::string_view text);

}  // namespace bhyt
