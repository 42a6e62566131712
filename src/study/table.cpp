#include "study/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"
#include "ops/norm/config.h"

namespace bhyt::study {

namespace {

using Value = std::optional<double>;

Value finite(double v) { return std::isfinite(v) ? Value(v) : std::nullopt; }

// The value of a curve at the last of its points that is not beyond x.
Value value_at(const report::Series& s, double x) {
  Value out;
  for (std::size_t i = 0; i < s.size() && s.x[i] <= x; ++i) out = finite(s.y[i]);
  return out;
}

// Where a validation curve first comes down to a loss.
Value first_step_at(const report::Series& s, double loss) {
  for (std::size_t i = 0; i < s.size(); ++i)
    if (s.y[i] <= loss) return s.x[i];
  return std::nullopt;
}

Value target_loss(const Result& r) {
  if (!r.to || !r.to->run) return std::nullopt;
  return value_at(r.to->run->valid, r.target_at * r.to->run->steps());
}

Value target_step(const Result& r) {
  const Value loss = target_loss(r);
  return loss ? first_step_at(r.run->valid, *loss) : std::nullopt;
}

Value target_seconds(const Result& r) {
  const Value step = target_step(r);
  return step ? value_at(r.run->seconds, *step) : std::nullopt;
}

// The mean over tasks of what each was last found to be.
Value task_average(const Result& r) {
  double sum = 0;
  std::size_t n = 0;
  for (const auto& [name, series] : r.run->tasks)
    if (!name.ends_with("bits_per_byte") && std::isfinite(series.last())) {
      sum += series.last();
      ++n;
    }
  return n > 0 ? Value(100 * sum / static_cast<double>(n)) : std::nullopt;
}

Value of_last_layer(const Result& r, const std::vector<double> report::LayerRecord::*what) {
  if (r.run->layers.empty() || (r.run->layers.back().*what).empty()) return std::nullopt;
  return finite((r.run->layers.back().*what).back());
}

struct Kind {
  const char* name;
  Value (*of)(const Result&);
};
constexpr double kHour = 3600;
const Kind kKinds[] = {
    {"loss", [](const Result& r) { return r.record->loss; }},
    {"valid_loss", [](const Result& r) { return r.record->valid_loss; }},
    {"best_valid_loss", [](const Result& r) { return r.record->best_valid_loss; }},
    {"perplexity", [](const Result& r) { return r.record->valid_loss ? finite(std::exp(*r.record->valid_loss)) : std::nullopt; }},
    {"tok_s", [](const Result& r) { return finite(r.record->tok_s); }},
    {"steps_s",
     [](const Result& r) { return r.record->seconds > 0 ? Value(static_cast<double>(r.record->step) / r.record->seconds) : std::nullopt; }},
    {"average", task_average},
    {"magnitude", [](const Result& r) { return of_last_layer(r, &report::LayerRecord::norm); }},
    {"variance", [](const Result& r) { return of_last_layer(r, &report::LayerRecord::variance); }},
    {"target_loss", target_loss},
    {"target_step", target_step},
    {"target_seconds", target_seconds},
    {"target_hours",
     [](const Result& r) {
       const Value seconds = target_seconds(r);
       return seconds ? Value(*seconds / kHour) : std::nullopt;
     }},
};

// a.0.b.*.c: every value that the path leads to.
void collect(const Json& j, std::string_view path, std::vector<double>& out) {
  if (path.empty()) {
    if (j.is_number()) out.push_back(j.get<double>());
    return;
  }
  const std::size_t dot = path.find('.');
  const std::string head(path.substr(0, dot));
  const std::string_view rest = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  if (head == "*") {
    for (const Json& item : j) collect(item, rest, out);
  } else if (j.is_array()) {
    std::size_t at = 0;
    const auto [end, error] = std::from_chars(head.data(), head.data() + head.size(), at);
    if (error == std::errc() && at < j.size()) collect(j[at], rest, out);
  } else if (j.is_object() && j.contains(head)) {
    collect(j[head], rest, out);
  }
}

Value printed_value(const Column& c, const Json& printed) {
  std::vector<double> all;
  collect(printed, c.path, all);
  if (all.empty()) return std::nullopt;
  if (c.as == "min") return *std::min_element(all.begin(), all.end());
  if (c.as == "max") return *std::max_element(all.begin(), all.end());
  if (c.as == "last") return all.back();
  check_usage(c.as == "mean", "table.columns: as must be mean, min, max or last, got {}", c.as);
  return spread_of(all).mean;
}

std::string seed_of(const Record& r) {
  for (const auto& [axis, label] : r.point)
    if (axis == kSeedAxis) return label;
  return "";
}

std::string line(const std::vector<std::string>& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); }

std::string rules(std::size_t columns) {
  std::vector<std::string> cells(columns, "---:");
  cells.front() = "---";
  return line(cells);
}

int decimals(const Json& value) {
  const std::string text = label_of(value);
  const std::size_t dot = text.find('.');
  return value.is_number() && dot != std::string::npos ? static_cast<int>(text.size() - dot - 1) : 0;
}

// The values of a column have as many digits as the longest of them.
std::string paper_text(const PaperNumbers& paper, std::size_t column, const Json& value) {
  if (!value.is_number()) return value.is_null() ? "–" : label_of(value);
  int digits = 0;
  for (const auto& row : paper.rows) digits = std::max(digits, decimals(row.second[column]));
  return fmt::format("{:.{}f}", value.get<double>(), digits);
}

// What the paper has in the row and column of ours; "" where it has nothing.
std::string beside_ours(const std::optional<PaperNumbers>& paper, const std::string& row, const std::string& column) {
  if (!paper) return "";
  const auto found = std::find_if(paper->rows.begin(), paper->rows.end(), [&](const auto& r) { return r.first == row; });
  const auto at = std::find(paper->columns.begin(), paper->columns.end(), column) - paper->columns.begin();
  if (found == paper->rows.end() || at == std::ssize(paper->columns)) return "";
  const Json& value = found->second[static_cast<std::size_t>(at)];
  return value.is_null() ? "" : fmt::format(" (paper {})", paper_text(*paper, static_cast<std::size_t>(at), value));
}

}  // namespace

namespace {

// One row for each command, or for each item of a list that one printed.
std::vector<std::pair<std::string, Json>> rows_of(const Study& study, const std::vector<std::pair<std::string, Json>>& printed) {
  if (study.rows_path.empty()) return printed;
  std::vector<std::pair<std::string, Json>> out;
  for (const auto& [label, json] : printed) {
    if (!json.is_object() || !json.contains(study.rows_path)) continue;
    for (const Json& item : json[study.rows_path]) out.emplace_back(item.value("name", label), item);
  }
  return out;
}

}  // namespace

std::vector<std::string> column_kinds() {
  std::vector<std::string> out;
  for (const Kind& k : kKinds) out.emplace_back(k.name);
  return out;
}

Value value_of(const Column& c, const Result& r) {
  if (!c.path.empty()) return printed_value(c, r.printed);
  for (const Kind& k : kKinds)
    if (c.of == k.name) return k.of(r);
  throw UsageError(fmt::format("table.columns: unknown value {}; expected one of {}", c.of, fmt::join(column_kinds(), ", ")));
}

Table make_table(const Study& study, const Index& index, const fs::path& folder, const std::map<std::string, Json>& printed) {
  std::map<std::string, report::Run> runs;
  std::map<std::string, Result> results;
  for (const Record& r : index.runs)
    if (fs::exists(folder / r.dir / "metrics.jsonl")) {
      runs[r.id] = report::read_run(folder / r.dir);
      results[r.id] = {.record = &r, .run = &runs[r.id], .printed = printed.contains(r.id) ? printed.at(r.id) : Json()};
    }
  const std::vector<Group> groups = group_runs(index);
  std::map<std::string, const Result*> targets;  // by seed
  for (const Group& g : groups)
    for (const Record* r : g.runs)
      if (study.target && g.label == study.target->row && results.contains(r->id)) targets[seed_of(*r)] = &results[r->id];
  Table table{.columns = study.columns};
  for (const Group& g : groups) {
    TableRow row{.label = g.label};
    std::vector<std::vector<double>> values(study.columns.size());
    for (const Record* r : g.runs) {
      if (r->status != Status::done && r->status != Status::planned) row.ended = name_of(r->status);
      if (r->status != Status::done || !results.contains(r->id)) continue;
      Result& result = results[r->id];
      if (study.target) result.target_at = study.target->at;
      if (const auto to = targets.find(seed_of(*r)); to != targets.end()) result.to = to->second;
      for (std::size_t c = 0; c < study.columns.size(); ++c)
        if (const Value v = value_of(study.columns[c], result)) values[c].push_back(*v);
    }
    for (const auto& v : values) row.values.push_back(spread_of(v));
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table make_table(const Study& study, const std::vector<std::pair<std::string, Json>>& printed) {
  Table table{.columns = study.columns};
  for (const auto& [label, json] : rows_of(study, printed)) {
    TableRow row{.label = label};
    if (json.is_null()) row.ended = "failed";
    for (const Column& c : study.columns) {
      const Value v = printed_value(c, json);
      row.values.push_back(spread_of(v ? std::vector<double>{*v} : std::vector<double>{}));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table statistics_table(const Plan& plan) {
  Table table{.columns = {{.name = "exact statistics per block", .of = "statistics", .digits = 2}}};
  for (const PlannedRun& run : plan.runs) {
    const ModelConfig model = train::read_run_config(run.tree, Verify::no).model.config;
    const NormPlan norms = plan_norms(model.norm, model.layers, model.d, model.eps);
    double count = 0;
    const auto add = [&](const SitePlan& site) { count += site.stat != Stat::none && site.stat != Stat::given; };
    for (const BlockPlan& b : norms.blocks) {
      add(b.site1);
      add(b.site2);
      if (b.out1) add(*b.out1);
      if (b.out2) add(*b.out2);
    }
    table.rows.push_back({.label = name_of(run.point), .values = {spread_of({count / static_cast<double>(norms.blocks.size())})}});
  }
  return table;
}

std::string markdown(const Table& table, const std::optional<PaperNumbers>& paper, bool beside) {
  std::vector<std::string> head = {""};
  for (const Column& c : table.columns) head.push_back(c.name);
  std::string out = line(head) + rules(head.size());
  for (const TableRow& row : table.rows) {
    std::vector<std::string> cells = {row.label};
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      const bool nothing = row.values[c].n == 0 && !row.ended.empty();
      cells.push_back((nothing ? row.ended : spread_text(row.values[c], table.columns[c].digits)) +
                      (beside ? beside_ours(paper, row.label, table.columns[c].name) : ""));
    }
    out += line(cells);
  }
  return out;
}

std::string paper_markdown(const PaperNumbers& paper) {
  std::vector<std::string> head = {""};
  head.insert(head.end(), paper.columns.begin(), paper.columns.end());
  std::string out = line(head) + rules(head.size());
  for (const auto& [label, values] : paper.rows) {
    std::vector<std::string> cells = {label};
    for (std::size_t c = 0; c < values.size(); ++c) cells.push_back(paper_text(paper, c, values[c]));
    out += line(cells);
  }
  return out;
}

Json to_json(const Table& table) {
  Json rows = Json::array();
  for (const TableRow& row : table.rows) {
    Json values = Json::object();
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      const Spread& s = row.values[c];
      const auto number = [](double v) { return std::isfinite(v) ? Json(v) : Json(); };
      values[table.columns[c].name] = {{"n", s.n}, {"mean", number(s.mean)}, {"std", number(s.std)}};
    }
    rows.push_back({{"label", row.label}, {"values", values}, {"ended", row.ended.empty() ? Json() : Json(row.ended)}});
  }
  return rows;
}

std::string table_verdict(const Table& table, const std::string& rank_by, bool lower_is_better) {
  std::size_t at = 0;
  for (std::size_t c = 0; c < table.columns.size(); ++c)
    if (rank_by.empty() ? table.columns[c].of == "valid_loss" : table.columns[c].name == rank_by) {
      at = c;
      break;
    }
  std::vector<Ranked> rows;
  for (const TableRow& row : table.rows) rows.push_back({row.label, row.values[at]});
  return rank_text(std::move(rows), table.columns[at].name, lower_is_better, table.columns[at].digits);
}

}  // namespace bhyt::study
