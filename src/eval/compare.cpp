#include "eval/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <utility>

#include "core/check.h"
#include "eval/metrics.h"
#include "eval/table.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;
using DocumentKey = std::pair<std::string, std::int64_t>;             // task and row
using BySeed = std::map<std::int64_t, double>;                        // what counts of a document, for each seed
using Values = std::map<std::string, std::map<DocumentKey, BySeed>>;  // by task, a group as one

constexpr const char* kBits = "bits_per_byte";

struct NamedModel {
  const std::string& name;
  Values values;
};

std::string metric_of(const Scored& document) {
  if (std::holds_alternative<Rolled>(document.what)) return kBits;
  return std::get<Graded>(document.what).acc_norm ? "acc_norm" : "acc";
}

double value_of(const Graded& graded) { return graded.acc_norm.value_or(graded.acc); }
double value_of(const Rolled& text) {  // a text without bytes has none to be predicted
  return text.bytes > 0 ? -text.sum / static_cast<double>(text.bytes) / std::numbers::ln2 : 0;
}

Values values_of(const Catalog& catalog, std::span<const Scored> documents) {
  Values values;
  std::map<std::string, std::string> tops;
  for (const Scored& d : documents) {
    std::string& top = tops[d.task];
    if (top.empty()) top = catalog.top(d.task);
    values[top][{d.task, d.document}][d.seed] = std::visit([](const auto& what) { return value_of(what); }, d.what);
  }
  return values;
}

// Whatever `one` has, `other` must have.
void check_covered(const NamedModel& one, const NamedModel& other) {
  for (const auto& [top, documents] : one.values)
    for (const auto& [document, seeds] : documents)
      for (const auto& [seed, value] : seeds) {
        const auto task = other.values.find(top);
        const bool there = task != other.values.end() && task->second.contains(document) && task->second.at(document).contains(seed);
        check(there, "models are compared on the same documents: {} was scored on {} document {} (seed {}), {} was not", one.name,
              document.first, document.second, seed, other.name);
      }
}

double mean_over(const BySeed& seeds) {
  double sum = 0;
  for (const auto& [seed, value] : seeds) sum += value;
  return sum / static_cast<double>(seeds.size());
}

// Of several seeds the same answers may add up to means that differ in their last bits.
bool differ(double a, double b) { return std::abs(a - b) > 1e-12 * std::max(std::abs(a), std::abs(b)); }

Difference difference_of(const std::map<DocumentKey, BySeed>& first, const std::map<DocumentKey, BySeed>& second) {
  Difference result;
  std::vector<double> a, b, differences;
  for (const auto& [document, seeds] : first) {
    a.push_back(mean_over(seeds));
    b.push_back(mean_over(second.at(document)));
    differences.push_back(differ(a.back(), b.back()) ? a.back() - b.back() : 0);
    result.up += differences.back() > 0;
    result.down += differences.back() < 0;
  }
  const Mean mean = mean_of(differences);
  result.documents = mean.count;
  result.first = mean_of(a).value;
  result.second = mean_of(b).value;
  result.difference = mean.value;
  result.error = mean.error;
  result.p = sign_test(result.up, result.down);
  return result;
}

std::optional<Difference> over_all(const std::vector<Difference>& tasks) {
  Difference all{.metric = "accuracy"};
  double count = 0, squares = 0;
  bool errors = true;
  for (const Difference& task : tasks) {
    if (task.metric == kBits) continue;
    count += 1;
    all.documents += task.documents;
    all.first += task.first;
    all.second += task.second;
    all.difference += task.difference;
    all.up += task.up;
    all.down += task.down;
    errors &= task.error.has_value();
    squares += task.error.value_or(0) * task.error.value_or(0);
  }
  if (count < 2) return std::nullopt;
  all.first /= count;
  all.second /= count;
  all.difference /= count;
  if (errors) all.error = std::sqrt(squares) / count;
  all.p = sign_test(all.up, all.down);
  return all;
}

// The tasks as the catalog has them, groups in the place of their first member.
std::vector<std::string> order_of(const Catalog& catalog, const Values& values) {
  std::vector<std::string> order;
  for (const TaskEntry& task : catalog.tasks) {
    const std::string& top = catalog.top(task.name);
    if (values.contains(top) && std::find(order.begin(), order.end(), top) == order.end()) order.push_back(top);
  }
  return order;
}

std::string p_text(double p) { return p < 0.0001 ? "<0.0001" : fmt::format("{:.4f}", p); }

std::vector<TableCell> row_of(const std::string& name, const Difference& d) {
  return {name,
          d.metric,
          d.metric == kBits ? "↓" : "↑",
          fmt::format("{}", d.documents),
          fmt::format("{:.4f}", d.first),
          fmt::format("{:.4f}", d.second),
          fmt::format("{:.4f}", d.difference),
          "±",
          d.error ? fmt::format("{:.4f}", *d.error) : "N/A",
          fmt::format("{}", d.up),
          fmt::format("{}", d.down),
          p_text(d.p)};
}

Json difference_json(const Difference& d) {
  return {{"metric", d.metric},
          {"documents", d.documents},
          {"first", d.first},
          {"second", d.second},
          {"difference", d.difference},
          {"stderr", d.error ? Json(*d.error) : Json("N/A")},
          {"up", d.up},
          {"down", d.down},
          {"sign_test_p", d.p}};
}

}  // namespace

double sign_test(std::int64_t up, std::int64_t down) {
  const auto n = static_cast<double>(up + down);
  double tail = 0;  // of as few as the fewer of them, or fewer; from the largest term down, so that the sum can end
  for (std::int64_t k = std::min(up, down); k >= 0; --k) {
    const auto few = static_cast<double>(k);
    const double term = std::exp(std::lgamma(n + 1) - std::lgamma(few + 1) - std::lgamma(n - few + 1) - n * std::numbers::ln2);
    tail += term;
    if (term < tail * 1e-18) break;
  }
  return std::min(1.0, 2 * tail);
}

Comparison compare(const Catalog& catalog, const std::string& first, std::span<const Scored> of_first, const std::string& second,
                   std::span<const Scored> of_second) {
  const NamedModel one{first, values_of(catalog, of_first)}, other{second, values_of(catalog, of_second)};
  check_covered(one, other);
  check_covered(other, one);
  std::map<std::string, std::string> metrics;
  for (const Scored& document : of_first) metrics.emplace(catalog.top(document.task), metric_of(document));
  Comparison result{.first = first, .second = second};
  for (const std::string& task : order_of(catalog, one.values)) {
    Difference difference = difference_of(one.values.at(task), other.values.at(task));
    difference.task = task;
    difference.metric = metrics.at(task);
    result.tasks.push_back(std::move(difference));
  }
  result.all = over_all(result.tasks);
  return result;
}

Json to_json(const Comparison& comparison) {
  Json tasks = Json::object();
  for (const Difference& d : comparison.tasks) tasks[d.task] = difference_json(d);
  Json out = {{"first", comparison.first}, {"second", comparison.second}, {"tasks", tasks}};
  if (comparison.all) out["all"] = difference_json(*comparison.all);
  return out;
}

std::string to_table(const Comparison& c) {
  std::vector<std::vector<TableCell>> rows;
  for (const Difference& d : c.tasks) rows.push_back(row_of(d.task, d));
  if (c.all) rows.push_back(row_of("all tasks alike", *c.all));
  return fmt::format(
      "{}\nDifference: {} − {}, document by document, ± its standard error. Above, Below: documents on which {} is above or below {}; "
      "p: exact two-sided sign test over them.\n",
      markdown_table({"Tasks", "Metric", "", "n", c.first, c.second, "Difference", "", "Stderr", "Above", "Below", "p"}, rows), c.first,
      c.second, c.first, c.second);
}

}  // namespace bhyt
