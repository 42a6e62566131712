#include "eval/results.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"
#include "eval/metrics.h"
#include "eval/table.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

// What a task's documents have given.
struct Tally {
  std::vector<double> acc, acc_norm;
  std::vector<Rolled> texts;

  std::int64_t count() const { return static_cast<std::int64_t>(acc.size() + texts.size()); }
  void add(const Graded& graded) {
    acc.push_back(graded.acc);
    if (graded.acc_norm) acc_norm.push_back(*graded.acc_norm);
  }
  void add(const Rolled& text) { texts.push_back(text); }
};

using Means = std::map<std::string, std::vector<Mean>>;  // of each metric, one for each member of a group

Metric accuracy(const std::string& name, const Mean& mean) { return {.name = name, .value = mean.value, .error = mean.error}; }

std::vector<Metric> metrics_of(const Tally& tally, Means& means) {
  if (!tally.texts.empty()) {
    const Perplexities p = perplexities(tally.texts);
    return {{"bits_per_byte", p.bits_per_byte, {}, false}, {"byte_perplexity", p.byte, {}, false}, {"word_perplexity", p.word, {}, false}};
  }
  std::vector<Metric> metrics;
  for (const auto& [name, values] : {std::pair("acc", &tally.acc), std::pair("acc_norm", &tally.acc_norm)}) {
    if (values->empty()) continue;
    means[name].push_back(mean_of(*values));
    metrics.push_back(accuracy(name, means[name].back()));
  }
  return metrics;
}

// Walks the groups and puts a row down for each, its members behind it.
class Collector {
 public:
  Collector(const Catalog& catalog, std::map<std::string, Tally> tallies) : catalog_(catalog), tallies_(std::move(tallies)) {}

  // The members of a group ("" is the top), by name. Their means are added to `means`.
  void members(const std::string& group, std::size_t depth, Means& means) {
    std::map<std::string, std::pair<const TaskEntry*, const GroupEntry*>> sorted;
    for (const TaskEntry& task : catalog_.tasks)
      if (task.group == group && tallies_.contains(task.name)) sorted[task.name].first = &task;
    for (const GroupEntry& inner : catalog_.groups)
      if (inner.group == group) sorted[inner.name].second = &inner;
    for (const auto& [name, entry] : sorted) {
      if (entry.first) add_task(*entry.first, depth, means);
      if (entry.second) add_group(*entry.second, depth, means);
    }
  }

  Results results;

 private:
  static std::string indented(const std::string& alias, std::size_t depth) {
    return depth == 0 ? alias : std::string(depth, ' ') + "- " + alias;
  }

  void add_task(const TaskEntry& task, std::size_t depth, Means& means) {
    const Tally& tally = tallies_.at(task.name);
    results.rows.push_back({.name = task.name,
                            .alias = indented(task.alias, depth),
                            .version = task.version,
                            .shots = task.shots,
                            .metrics = metrics_of(tally, means),
                            .documents = task.documents,
                            .scored = tally.count()});
  }

  void add_group(const GroupEntry& group, std::size_t depth, Means& means) {
    const std::size_t at = results.rows.size();
    results.rows.push_back({.name = group.name, .alias = indented(group.alias, depth), .version = group.version, .group = true});
    Means inside;
    members(group.name, depth + 1, inside);
    if (inside.empty()) return results.rows.resize(at);  // none of its tasks was asked for
    ResultRow& row = results.rows[at];
    for (auto& [name, parts] : inside) {
      row.metrics.push_back(accuracy(name, pool(parts)));
      row.scored = pool(parts).count;
      means[name].insert(means[name].end(), parts.begin(), parts.end());  // an outer group is pooled from tasks, not from groups
    }
  }

  const Catalog& catalog_;
  std::map<std::string, Tally> tallies_;
};

Json error_of(const Metric& metric) { return metric.error ? Json(*metric.error) : Json("N/A"); }

Json row_json(const ResultRow& row) {
  Json out = {{"alias", row.alias}};
  for (const Metric& m : row.metrics) {
    out[m.name + ",none"] = m.value;
    out[m.name + "_stderr,none"] = error_of(m);
  }
  return out;
}

constexpr const char* kUnversioned = "Yaml";  // the harness's word

TableCell version_cell(const ResultRow& row) { return row.version ? TableCell(*row.version) : TableCell(kUnversioned); }

std::string table_of(const char* title, const std::vector<const ResultRow*>& shown) {
  std::vector<std::vector<TableCell>> rows;
  for (const ResultRow* row : shown)
    for (const Metric& m : row->metrics) {
      const bool first = &m == &row->metrics.front();
      rows.push_back({first ? row->alias : "", first ? version_cell(*row) : "", "none", row->shots ? fmt::format("{}", *row->shots) : " ",
                      m.name, m.higher_is_better ? "↑" : "↓", fmt::format("{:.4f}", m.value), "±",
                      m.error ? fmt::format("{:.4f}", *m.error) : "   N/A"});
    }
  return markdown_table({title, "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"}, rows);
}

}  // namespace

const std::string& Catalog::top(const std::string& task) const {
  const auto found = std::find_if(tasks.begin(), tasks.end(), [&](const TaskEntry& t) { return t.name == task; });
  check(found != tasks.end(), "no task is called {}", task);
  const std::string* name = &found->name;
  const std::string* group = &found->group;
  while (!group->empty()) {
    const auto outer = std::find_if(groups.begin(), groups.end(), [&](const GroupEntry& g) { return g.name == *group; });
    check(outer != groups.end(), "no group is called {}", *group);
    name = &outer->name;
    group = &outer->group;
  }
  return *name;
}

const Metric& ResultRow::main() const {
  for (const Metric& m : metrics)
    if (m.name == "acc_norm") return m;
  return metrics.front();  // they stand by name: acc, bits_per_byte
}

const ResultRow& Results::row(const std::string& name) const {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const ResultRow& r) { return r.name == name; });
  check(found != rows.end(), "there are no results of {}", name);
  return *found;
}

Results collect(const Catalog& catalog, std::span<const Scored> documents) {
  std::map<std::string, Tally> tallies;
  for (const Scored& document : documents) std::visit([&](const auto& what) { tallies[document.task].add(what); }, document.what);
  for (const auto& [name, tally] : tallies) catalog.top(name);  // known, and so are its groups
  Collector collector(catalog, std::move(tallies));
  Means unused;
  collector.members("", 0, unused);
  return std::move(collector.results);
}

Results collect(const Catalog& catalog, std::span<const Scored> documents, std::int64_t seed) {
  std::vector<Scored> chosen;
  for (const Scored& document : documents)
    if (document.seed == seed) chosen.push_back(document);
  return collect(catalog, chosen);
}

Json to_json(const Results& results) {
  Json rows = Json::object(), groups = Json::object(), versions = Json::object(), shots = Json::object();
  Json higher = Json::object(), samples = Json::object();
  for (const ResultRow& row : results.rows) {
    rows[row.name] = row_json(row);
    if (row.group) groups[row.name] = rows[row.name];
    versions[row.name] = row.version ? Json(*row.version) : Json(kUnversioned);
    if (row.shots) shots[row.name] = *row.shots;
    for (const Metric& m : row.metrics) higher[row.name][m.name] = m.higher_is_better;
    if (!row.group) samples[row.name] = {{"original", row.documents}, {"effective", row.scored}};
  }
  Json out = {{"results", rows}};
  if (!groups.empty()) out["groups"] = groups;
  out["versions"] = versions;
  out["n-shot"] = shots;
  out["higher_is_better"] = higher;
  out["n-samples"] = samples;
  return out;
}

std::string to_table(const Results& results) {
  std::vector<const ResultRow*> all, groups;
  for (const ResultRow& row : results.rows) {
    all.push_back(&row);
    if (row.group) groups.push_back(&row);
  }
  const std::string tasks = table_of("Tasks", all);
  return groups.empty() ? tasks : tasks + "\n" + table_of("Groups", groups);
}

}  // namespace bhyt
