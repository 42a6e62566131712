// A study's table: what is known of every run, by columns; means over seeds; the paper's numbers beside ours.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/run.h"
#include "study/index.h"
#include "study/study.h"
#include "study/summary.h"

namespace bhyt::study {

// One run, or one command, with all that columns may ask for.
struct Result {
  const Record* record = nullptr;
  const report::Run* run = nullptr;
  Json printed;                // by the command that looked at it
  const Result* to = nullptr;  // the run whose loss is the target, with the same seed
  double target_at = 1;        // see Target
};

// Nothing where it is not known: no such column is an error of the study.
std::optional<double> value_of(const Column& column, const Result& result);
std::vector<std::string> column_kinds();

struct TableRow {
  std::string label;
  std::vector<Spread> values;  // by column
  std::string ended;           // "diverged" … where no run is done
};

struct Table {
  std::vector<Column> columns;
  std::vector<TableRow> rows;
};

// Groups of runs without their seeds; `printed` by id.
Table make_table(const Study& study, const Index& index, const fs::path& folder, const std::map<std::string, Json>& printed);
// One row for each command.
Table make_table(const Study& study, const std::vector<std::pair<std::string, Json>>& printed);
// Statistics over a row that each method computes in a block.
Table statistics_table(const Plan& plan);

// With the paper's numbers in brackets where `beside`, else in a table of their own behind it.
std::string markdown(const Table& table, const std::optional<PaperNumbers>& paper, bool beside);
std::string paper_markdown(const PaperNumbers& paper);
Json to_json(const Table& table);
std::string table_verdict(const Table& table, const std::string& rank_by, bool lower_is_better);

}  // namespace bhyt::study
