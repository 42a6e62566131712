#include "eval/summary.h"

#include <functional>
#include <map>

#include "core/check.h"
#include "eval/metrics.h"
#include "eval/table.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

Spread spread_of(const std::vector<double>& values) { return {.mean = mean_of(values).value, .deviation = deviation(values)}; }

const Metric& accuracy_of(const Results& results, const std::string& task) {
  const Metric& metric = results.row(task).main();
  check(metric.name == "acc" || metric.name == "acc_norm", "a summary is of accuracies, but {} has {}", task, metric.name);
  return metric;
}

SummaryRow row_of(const std::vector<std::string>& tasks, const ModelResults& model) {
  SummaryRow row{.model = model.model};
  std::vector<double> averages(model.seeds.size());
  for (const std::string& task : tasks) {
    std::vector<double> values;
    for (std::size_t s = 0; s < model.seeds.size(); ++s) {
      values.push_back(accuracy_of(model.seeds[s].results, task).value);
      averages[s] += values.back() / static_cast<double>(tasks.size());
    }
    row.tasks.push_back(spread_of(values));
  }
  row.average = spread_of(averages);
  return row;
}

std::string percent(const Spread& spread) {
  const std::string mean = fmt::format("{:.2f}", 100 * spread.mean);
  return spread.deviation ? fmt::format("{} ± {:.2f}", mean, 100 * *spread.deviation) : mean;
}

Json spread_json(const Spread& spread) {
  return {{"mean", spread.mean}, {"std", spread.deviation ? Json(*spread.deviation) : Json("N/A")}};
}

// "acc_norm of arc_easy, piqa; acc of boolq"
std::string metrics_in_words(const Summary& summary) {
  std::map<std::string, std::string, std::greater<>> tasks;
  for (std::size_t i = 0; i < summary.tasks.size(); ++i) {
    std::string& list = tasks[summary.metrics[i]];
    list += (list.empty() ? "" : ", ") + summary.tasks[i];
  }
  std::string words;
  for (const auto& [metric, list] : tasks) words += fmt::format("{}{} of {}", words.empty() ? "" : "; ", metric, list);
  return words;
}

}  // namespace

Summary summarize(const std::vector<std::string>& tasks, std::span<const ModelResults> models) {
  check(!tasks.empty() && !models.empty() && !models.front().seeds.empty(), "a summary needs tasks, models and seeds");
  Summary summary{.tasks = tasks, .seeds = static_cast<std::int64_t>(models.front().seeds.size())};
  for (const std::string& task : tasks) summary.metrics.push_back(accuracy_of(models.front().seeds.front().results, task).name);
  for (const ModelResults& model : models) {
    check(model.seeds.size() == models.front().seeds.size(), "a summary needs the same seeds of every model: {} has {}, {} has {}",
          models.front().model, models.front().seeds.size(), model.model, model.seeds.size());
    summary.rows.push_back(row_of(tasks, model));
  }
  return summary;
}

Json to_json(const Summary& summary) {
  Json metrics = Json::object(), models = Json::array();
  for (std::size_t i = 0; i < summary.tasks.size(); ++i) metrics[summary.tasks[i]] = summary.metrics[i];
  for (const SummaryRow& row : summary.rows) {
    Json tasks = Json::object();
    for (std::size_t i = 0; i < summary.tasks.size(); ++i) tasks[summary.tasks[i]] = spread_json(row.tasks[i]);
    models.push_back({{"model", row.model}, {"tasks", tasks}, {"average", spread_json(row.average)}});
  }
  return {{"seeds", summary.seeds}, {"metrics", metrics}, {"models", models}};
}

std::string to_table(const Summary& summary) {
  std::vector<std::string> headers = {"Model"};
  headers.insert(headers.end(), summary.tasks.begin(), summary.tasks.end());
  headers.emplace_back("Average");
  std::vector<std::vector<TableCell>> rows;
  for (const SummaryRow& row : summary.rows) {
    rows.push_back({row.model});
    for (const Spread& task : row.tasks) rows.back().emplace_back(percent(task));
    rows.back().emplace_back(percent(row.average));
  }
  return fmt::format("{}\n{}, in percent{}.\n", markdown_table(headers, rows), metrics_in_words(summary),
                     summary.seeds > 1 ? fmt::format("; mean ± standard deviation over {} few-shot seeds", summary.seeds) : "");
}

}  // namespace bhyt
