#include "study/summary.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/log.h"

namespace bhyt::study {

namespace {

constexpr const char* kRates = "train.lr";
constexpr double kNoise = 2;  // standard errors

Point without_seed(const Point& point) {
  Point out;
  for (const auto& entry : point)
    if (entry.first != kSeedAxis) out.push_back(entry);
  return out;
}

Spread spread_over(const std::vector<const Record*>& runs, const auto& value) {
  std::vector<double> values;
  for (const Record* r : runs)
    if (r->status == Status::done)
      if (const std::optional<double> v = value(*r)) values.push_back(*v);
  return spread_of(values);
}

const std::string* label_on(const Point& point, const std::string& axis) {
  for (const auto& [name, label] : point)
    if (name == axis) return &label;
  return nullptr;
}

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
}

// Axes that have several values, in their order.
std::vector<std::string> axes_of(const std::vector<Group>& groups) {
  std::vector<std::pair<std::string, std::vector<std::string>>> axes;
  for (const Group& g : groups)
    for (const auto& entry : g.point) {
      auto found = std::find_if(axes.begin(), axes.end(), [&](const auto& a) { return a.first == entry.first; });
      if (found == axes.end()) found = axes.insert(axes.end(), {entry.first, {}});
      add_once(found->second, entry.second);
    }
  std::vector<std::string> several;
  for (const auto& [axis, labels] : axes)
    if (labels.size() > 1) several.push_back(axis);
  return several;
}

// What tells a point from the others, but for one axis.
std::string label_without(const Point& point, const std::vector<std::string>& axes, const std::string& left_out) {
  Point rest;
  for (const auto& entry : point)
    if (entry.first != left_out && std::find(axes.begin(), axes.end(), entry.first) != axes.end()) rest.push_back(entry);
  return rest.empty() ? "all" : name_of(rest);
}

std::string at_column(const Pivot& pivot, const Group& g) {
  const std::string* label = pivot.across.empty() ? nullptr : label_on(g.point, pivot.across);
  return label ? fmt::format(" at {} {}", pivot.across.substr(pivot.across.rfind('.') + 1), *label) : "";
}

std::string distance(const Spread& best, const Spread& other, bool lower, int digits) {
  const double errors = std::fabs(standard_errors(other, best));
  const std::string by = fmt::format("{:.{}f} {}", std::fabs(other.mean - best.mean), digits, lower ? "above" : "below");
  if (!std::isfinite(errors)) return by;
  return fmt::format("{} ({:.1f} standard errors{})", by, errors, errors < kNoise ? ": within noise" : "");
}

std::string table_row(const std::vector<std::string>& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); }

std::string detail_table(const std::vector<Group>& groups) {
  std::string out = table_row({"run", "seeds", "validation loss", "lowest on the way", "training loss", "tok/s"}) +
                    table_row({"---", "---:", "---:", "---:", "---:", "---:"});
  for (const Group& g : groups)
    out += table_row({g.label, fmt::format("{}", g.valid.n), cell_text(&g), spread_text(g.best), spread_text(g.loss),
                      g.tok_s.n > 0 ? log::human_count(g.tok_s.mean) : "–"});
  return out;
}

Json spread_json(const Spread& s) {
  const auto number = [](double v) { return std::isfinite(v) ? Json(v) : Json(); };
  return {{"n", s.n}, {"mean", number(s.mean)}, {"std", number(s.std)}, {"stderr", number(s.error())}};
}

}  // namespace

double Spread::error() const { return std / std::sqrt(static_cast<double>(n)); }

Spread spread_of(const std::vector<double>& values) {
  Spread s{.n = values.size()};
  if (values.empty()) return s;
  const auto n = static_cast<double>(s.n);
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  s.mean = sum / n;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  if (s.n > 1) s.std = std::sqrt(squares / (n - 1));
  return s;
}

std::vector<Group> group_runs(const Index& index) {
  std::vector<Group> groups;
  for (const Record& r : index.runs) {
    const Point point = without_seed(r.point);
    auto found = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.point == point; });
    if (found == groups.end()) found = groups.insert(groups.end(), Group{.point = point});
    found->runs.push_back(&r);
  }
  for (Group& g : groups) {
    // Without validation data the training loss is what there is.
    g.valid = spread_over(g.runs, [](const Record& r) { return r.valid_loss ? r.valid_loss : r.loss; });
    g.best = spread_over(g.runs, [](const Record& r) { return r.best_valid_loss; });
    g.loss = spread_over(g.runs, [](const Record& r) { return r.loss; });
    g.tok_s = spread_over(g.runs, [](const Record& r) { return std::optional(r.tok_s); });
    for (const Record* r : g.runs) {
      const bool badly = r->status == Status::failed || r->status == Status::diverged;
      g.ended_badly += badly;
      g.missing += !badly && r->status != Status::done;
    }
  }
  const std::vector<std::string> axes = axes_of(groups);
  for (Group& g : groups) g.label = label_without(g.point, axes, "");
  return groups;
}

std::optional<double> as_number(const std::string& text) {
  double v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(v) : std::nullopt;
}

Pivot pivot_of(const std::vector<Group>& groups) {
  const std::vector<std::string> axes = axes_of(groups);
  Pivot p;
  if (axes.size() > 1) p.across = std::find(axes.begin(), axes.end(), kRates) != axes.end() ? kRates : axes.back();
  const auto row_of = [&](const Group& g) { return label_without(g.point, axes, p.across); };
  const auto column_of = [&](const Group& g) {
    const std::string* label = label_on(g.point, p.across);
    return label ? *label : std::string(p.across.empty() ? "validation loss" : "–");
  };
  for (const Group& g : groups) {
    add_once(p.rows, row_of(g));
    add_once(p.columns, column_of(g));
  }
  if (std::all_of(p.columns.begin(), p.columns.end(), as_number))
    std::sort(p.columns.begin(), p.columns.end(), [](const auto& a, const auto& b) { return *as_number(a) < *as_number(b); });
  for (const std::string& axis : axes)
    if (axis != p.across && p.down.empty()) p.down = axis;
  const auto place = [](const std::vector<std::string>& list, const std::string& text) {
    return static_cast<std::size_t>(std::find(list.begin(), list.end(), text) - list.begin());
  };
  p.cells.assign(p.rows.size(), std::vector<const Group*>(p.columns.size(), nullptr));
  for (const Group& g : groups) p.cells[place(p.rows, row_of(g))][place(p.columns, column_of(g))] = &g;
  return p;
}

std::string cell_text(const Group* g) {
  if (!g) return "–";
  std::string bad;
  for (const Record* r : g->runs)
    if (r->status == Status::failed || r->status == Status::diverged) bad = name_of(r->status);
  if (g->valid.n == 0) return bad.empty() ? "–" : bad;
  std::string out = spread_text(g->valid);
  if (g->ended_badly > 0) out += fmt::format(" ({} of {} {})", g->ended_badly, g->runs.size(), bad);
  return out;
}

double standard_errors(const Spread& a, const Spread& b) {
  const double error = std::hypot(a.error(), b.error());
  return error > 0 ? (a.mean - b.mean) / error : std::numeric_limits<double>::quiet_NaN();
}

std::string spread_text(const Spread& s, int digits) {
  if (s.n == 0) return "–";
  return s.n == 1 ? fmt::format("{:.{}f}", s.mean, digits) : fmt::format("{:.{}f} ± {:.{}f}", s.mean, digits, s.std, digits);
}

std::string rank_text(std::vector<Ranked> all, const std::string& what, bool lower, int digits) {
  std::erase_if(all, [](const Ranked& r) { return r.value.n == 0; });
  if (all.empty()) return "There is nothing to compare yet.";
  std::stable_sort(all.begin(), all.end(),
                   [&](const Ranked& a, const Ranked& b) { return lower ? a.value.mean < b.value.mean : a.value.mean > b.value.mean; });
  const Ranked& first = all.front();
  std::string out = fmt::format("{} {}: {}, {}{}.", lower ? "Lowest" : "Highest", what, first.name, spread_text(first.value, digits),
                                first.value.n > 1 ? fmt::format(" ({} seeds)", first.value.n) : "");
  std::vector<std::string> others;
  bool one_seed = first.value.n < 2;
  for (std::size_t i = 1; i < all.size(); ++i) {
    one_seed = one_seed || all[i].value.n < 2;
    others.push_back(fmt::format("{} is {}", all[i].name, distance(first.value, all[i].value, lower, digits)));
  }
  if (!others.empty()) out += fmt::format(" {}.", fmt::join(others, "; "));
  if (!others.empty() && one_seed) out += " Where there is one value the spread is not known: such a difference may be noise.";
  return out;
}

std::string verdict(const Pivot& pivot) {
  std::vector<Ranked> rows;
  std::vector<std::string> without;
  for (std::size_t row = 0; row < pivot.rows.size(); ++row) {
    const Group* best = nullptr;
    bool ended = false;
    // What all seeds came through goes before what only some did: those that are left are the lucky ones.
    const auto better = [](const Group& a, const Group& b) {
      const bool whole_a = a.ended_badly == 0, whole_b = b.ended_badly == 0;
      return whole_a != whole_b ? whole_a : a.valid.mean < b.valid.mean;
    };
    for (const Group* g : pivot.cells[row]) {
      ended = ended || (g && g->ended_badly > 0);
      if (g && g->valid.n > 0 && (!best || better(*g, *best))) best = g;
    }
    if (!best && ended) without.push_back(pivot.rows[row]);
    if (!best) continue;
    std::string name = pivot.rows[row] + at_column(pivot, *best);
    if (best->ended_badly > 0) name += fmt::format(" (without {} of {} seeds, which ended badly)", best->ended_badly, best->runs.size());
    rows.push_back({name, best->valid});
  }
  const std::string what = pivot.across.empty() ? "validation loss" : "validation loss, each at its best";
  const std::string ranked = rank_text(std::move(rows), what, true);
  return without.empty() ? ranked : fmt::format("{} No run came through: {}.", ranked, fmt::join(without, ", "));
}

std::string pivot_markdown(const Pivot& pivot) {
  std::vector<std::string> head = {pivot.down.empty() ? "" : pivot.down}, rule = {"---"};
  for (const std::string& column : pivot.columns) {
    head.push_back(pivot.across.empty() ? column : fmt::format("{} {}", pivot.across.substr(pivot.across.rfind('.') + 1), column));
    rule.emplace_back("---:");
  }
  std::string out = table_row(head) + table_row(rule);
  for (std::size_t row = 0; row < pivot.rows.size(); ++row) {
    std::vector<std::string> cells = {pivot.rows[row]};
    for (const Group* g : pivot.cells[row]) cells.push_back(cell_text(g));
    out += table_row(cells);
  }
  return out;
}

std::string summary_markdown(const Index& index, const std::string& title) {
  const std::vector<Group> groups = group_runs(index);
  const Pivot pivot = pivot_of(groups);
  std::string out = fmt::format("# {}\n\n{}\n\nLosses in nats per token, mean ± standard deviation over seeds.\n\n", title, verdict(pivot));
  if (!pivot.across.empty()) out += pivot_markdown(pivot) + "\n";
  out += detail_table(groups);
  std::string bad;
  for (const Record& r : index.runs)
    if (!r.error.empty()) bad += fmt::format("- {}: {}, {}\n", name_of(r.point), name_of(r.status), r.error);
  if (!bad.empty()) out += "\nRuns that ended early:\n\n" + bad;
  return out;
}

Json summary_json(const Index& index) {
  const std::vector<Group> groups = group_runs(index);
  Json list = Json::array();
  for (const Group& g : groups) {
    Json point = Json::object();
    for (const auto& [axis, label] : g.point) point[axis] = label;
    Json ids = Json::array();
    for (const Record* r : g.runs) ids.push_back(r->id);
    list.push_back({{"label", g.label},
                    {"point", point},
                    {"valid_loss", spread_json(g.valid)},
                    {"best_valid_loss", spread_json(g.best)},
                    {"loss", spread_json(g.loss)},
                    {"tok_s", spread_json(g.tok_s)},
                    {"ended_badly", g.ended_badly},
                    {"missing", g.missing},
                    {"runs", ids}});
  }
  return {{"version", 1}, {"verdict", verdict(pivot_of(groups))}, {"groups", list}};
}

}  // namespace bhyt::study
