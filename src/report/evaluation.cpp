#include "report/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "report/figure.h"
#include "report/html.h"

namespace bhyt::report {

namespace {

using Json = nlohmann::ordered_json;

std::string fixed(const Json& number, int digits, double factor = 1) {
  return number.is_number() ? fmt::format("{:.{}f}", factor * number.get<double>(), digits) : "N/A";
}

std::string table(const std::vector<std::string>& headers, const std::string& rows) {
  std::string head;
  for (const std::string& header : headers) head += fmt::format("<th>{}</th>", escape(header));
  return fmt::format("<div class=\"scroll\"><table class=\"numbers\"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>", head,
                     rows);
}

std::string row_start(const std::string& name) { return fmt::format("<tr><th>{}</th>", escape(name)); }

std::string percent(const Json& spread) {
  const std::string mean = fixed(spread.at("mean"), 2, 100);
  return spread.at("std").is_number() ? mean + " ± " + fixed(spread.at("std"), 2, 100) : mean;
}

// The best mean of a column; "" is the average.
double best_of(const Json& models, const std::string& task) {
  double best = 0;
  for (const Json& model : models)
    best = std::max(best, (task.empty() ? model.at("average") : model.at("tasks").at(task)).at("mean").get<double>());
  return best;
}

std::string summary_section(const Json& summary) {
  const Json& models = summary.at("models");
  std::vector<std::string> headers = {"model"};
  for (const auto& [task, metric] : summary.at("metrics").items())
    headers.push_back(fmt::format("{} ({})", task, metric.get<std::string>()));
  headers.emplace_back("average");
  std::string rows;
  for (const Json& model : models) {
    const auto value = [&](const std::string& name, const Json& spread, const std::string& task) {
      const bool best = models.size() > 1 && spread.at("mean").get<double>() == best_of(models, task);
      return cell(name, percent(spread), best ? "best" : "");
    };
    rows += row_start(model.at("model"));
    for (const auto& [task, spread] : model.at("tasks").items()) rows += value(task, spread, task);
    rows += value("average", model.at("average"), "") + "</tr>";
  }
  const auto seeds = summary.at("seeds").get<std::int64_t>();
  const std::string lead = seeds > 1 ? fmt::format("In percent, mean ± standard deviation over {} few-shot seeds.", seeds) : "In percent.";
  return section("Accuracy", lead, "wide", table(headers, rows));
}

bool is_text(const Json& result) { return result.contains("bits_per_byte,none"); }

std::string perplexity_section(const Json& models) {
  std::string rows;
  for (const Json& model : models)
    for (const auto& [task, result] : model.at("seeds").at(0).at("results").items()) {
      if (!is_text(result)) continue;
      rows += row_start(model.at("model")) + cell("text", task) + cell("bits per byte", fixed(result.at("bits_per_byte,none"), 4), "main") +
              cell("byte perplexity", fixed(result.at("byte_perplexity,none"), 4)) +
              cell("word perplexity", fixed(result.at("word_perplexity,none"), 4)) + "</tr>";
    }
  if (rows.empty()) return "";
  return section("Perplexity", "", "wide", table({"model", "text", "bits per byte", "byte perplexity", "word perplexity"}, rows));
}

std::string p_text(const Json& difference) {
  const double p = difference.at("sign_test_p");
  return p < 0.0001 ? "<0.0001" : fmt::format("{:.4f}", p);
}

// Accuracies in percent, texts in bits.
std::string difference_row(const std::string& name, const Json& d) {
  const bool text = d.at("metric") == "bits_per_byte";
  const double factor = text ? 1 : 100;
  const int digits = text ? 4 : 2;
  return row_start(name) + cell("metric", d.at("metric")) + cell("documents", d.at("documents").dump()) +
         cell("first", fixed(d.at("first"), digits, factor)) + cell("second", fixed(d.at("second"), digits, factor)) +
         cell("difference", fixed(d.at("difference"), digits, factor) + " ± " + fixed(d.at("stderr"), digits, factor), "main") +
         cell("above", d.at("up").dump()) + cell("below", d.at("down").dump()) + cell("p", p_text(d)) + "</tr>";
}

std::string comparison_section(const Json& comparison) {
  const std::string first = comparison.at("first"), second = comparison.at("second");
  std::string rows;
  for (const auto& [task, difference] : comparison.at("tasks").items()) rows += difference_row(task, difference);
  if (comparison.contains("all")) rows += difference_row("all tasks alike", comparison.at("all"));
  const std::string lead = fmt::format(
      "{0} − {1} on the same documents, ± the standard error of the difference; accuracies in percent. Above and below count the documents "
      "on which {0} is above or below {1}, p is the exact two-sided sign test over them.",
      escape(first), escape(second));
  return section(first + " against " + second, lead, "wide",
                 table({"task", "metric", "documents", first, second, "difference", "above", "below", "p"}, rows));
}

// Every row of the harness's table, seed by seed.
std::string details_of(const Json& model, const Json& seed) {
  std::string rows;
  for (const auto& [task, result] : seed.at("results").items())
    for (const auto& [key, value] : result.items()) {
      const auto comma = key.find(',');
      if (comma == std::string::npos || key.substr(0, comma).ends_with("_stderr")) continue;
      const std::string metric = key.substr(0, comma);
      rows += row_start(task) + cell("metric", metric) + cell("value", fixed(value, 4), "main") +
              cell("standard error", fixed(result.at(metric + "_stderr,none"), 4)) + "</tr>";
    }
  return fmt::format("<details><summary>{}, seed {}</summary>{}</details>", escape(model.at("model")), seed.at("seed").dump(),
                     table({"task", "metric", "value", "standard error"}, rows));
}

std::string every_result(const Json& models) {
  std::string body;
  for (const Json& model : models)
    for (const Json& seed : model.at("seeds")) body += details_of(model, seed);
  return section("Every result", "", "wide", body);
}

std::string verdict_of(const Json& evaluation) {
  std::string words;
  for (const Json& c : evaluation.value("comparisons", Json::array())) {
    if (!c.contains("all")) continue;
    const Json& all = c.at("all");
    const double points = 100 * all.at("difference").get<double>();
    words +=
        fmt::format("{}{} is {:.2f} ± {} points {} {}, every task alike.", words.empty() ? "" : " ", c.at("first").get<std::string>(),
                    std::abs(points), fixed(all.at("stderr"), 2, 100), points < 0 ? "below" : "above", c.at("second").get<std::string>());
  }
  return words;
}

std::string title_of(const Json& models) {
  if (models.size() > 4) return fmt::format("{} models", models.size());
  std::string names;
  for (const Json& model : models) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.at("model").get<std::string>());
  return names;
}

}  // namespace

std::string evaluation_sections(const Json& evaluation) {
  std::string out = evaluation.contains("summary") ? summary_section(evaluation.at("summary")) : "";
  out += perplexity_section(evaluation.at("models"));
  for (const Json& comparison : evaluation.value("comparisons", Json::array())) out += comparison_section(comparison);
  return out + every_result(evaluation.at("models"));
}

std::string render_evaluation(const Json& evaluation) {
  return page_start("Evaluation", title_of(evaluation.at("models")), verdict_of(evaluation), "") + evaluation_sections(evaluation) +
         page_footer("bhyt eval") + "</main></body></html>\n";
}

}  // namespace bhyt::report
