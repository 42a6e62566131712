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
  std::string fill(const Row& row) const { return fill(row, false); }
  // As fill, but whole numbers are taken too, as their digits.
  std::string fill_label(const Row& row) const { return fill(row, true); }
  // Of a template that is a column by itself: the texts of the list that it holds.
  bool is_column() const { return pieces_.size() == 1 && !pieces_.front().column.empty(); }
  std::vector<std::string> fill_list(const Row& row) const;
  std::vector<std::string> columns() const;  // what a document needs to have: "choices" of {choices.text}

 private:
  struct Piece {
    std::string text;    // as it stands, where it is not a column
    std::string column;  // "choices.text"
    std::vector<Filter> filters;
  };
  static Piece parse_column(std::string_view inside, std::string_view source);
  static std::string filtered(const Piece& piece, std::string text, const Row& row);
  std::string fill(const Row& row, bool numbers) const;

  std::vector<Piece> pieces_;
};

// Of one template that is a column by itself the texts in its list, else a text of each template.
std::vector<std::string> fill_all(const std::vector<Template>& templates, const Row& row);

}  // namespace bhyt
