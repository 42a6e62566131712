// What a sweep's runs come to: mean ± standard deviation over seeds, tables, and a paragraph about who is ahead and by how much.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "study/index.h"

namespace bhyt::study {

struct Spread {
  std::size_t n = 0;
  double mean = std::numeric_limits<double>::quiet_NaN(), std = mean;  // std: of a sample, NaN below two values
  double error() const;                                                // of the mean
};
Spread spread_of(const std::vector<double>& values);

// Runs that differ in their seed alone.
struct Group {
  Point point;        // without the seed
  std::string label;  // of the axes that have several values
  std::vector<const Record*> runs;
  Spread valid, best, loss, tok_s;  // over those that are done
  std::size_t ended_badly = 0;      // failed or diverged
  std::size_t missing = 0;          // not ended yet
};
std::vector<Group> group_runs(const Index& index);

// Rows of names and columns of losses: the axis across is train.lr where there is one, else the last that has several values. Columns that
// are all numbers are in their order, whatever was run first.
struct Pivot {
  std::string down, across;  // names of the axes; across "" where there is one column
  std::vector<std::string> rows, columns;
  std::vector<std::vector<const Group*>> cells;  // [row][column], null where there is no such run
};
Pivot pivot_of(const std::vector<Group>& groups);
std::optional<double> as_number(const std::string& text);

std::string cell_text(const Group* group);                      // 3.7412 ± 0.0031; "diverged" …
std::string spread_text(const Spread& spread, int digits = 4);  // 3.7412 ± 0.0031, 3.7412 of one value, – of none

// a − b in standard errors of the difference: the seeds of the two are taken as independent. NaN where either has one seed only.
double standard_errors(const Spread& a, const Spread& b);

// A name with its values: who is ahead, by how much, and whose distance is within noise (under two standard errors).
struct Ranked {
  std::string name;
  Spread value;
};
std::string rank_text(std::vector<Ranked> all, const std::string& what, bool lower_is_better, int digits = 4);

// Who has the lowest validation loss, each row at its best column, and whose distance is within noise.
std::string verdict(const Pivot& pivot);

std::string pivot_markdown(const Pivot& pivot);
std::string summary_markdown(const Index& index, const std::string& title);
Json summary_json(const Index& index);

}  // namespace bhyt::study
