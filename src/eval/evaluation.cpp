#include "eval/evaluation.h"

#include <utility>

#include "core/check.h"
#include "eval/table.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

bool is_single(const Evaluation& e) { return e.models.size() == 1 && e.models.front().seeds.size() == 1; }

ModelResults results_of(const Catalog& catalog, const ScoredModel& model, const std::vector<std::int64_t>& seeds) {
  ModelResults results{.model = model.name, .seeds = {}};
  for (const std::int64_t seed : seeds) results.seeds.push_back({seed, collect(catalog, model.documents, seed)});
  return results;
}

// Texts have no few-shot examples: the first seed's results are those of all.
std::string perplexity_table(const std::vector<ModelResults>& models) {
  std::vector<std::vector<TableCell>> rows;
  for (const ModelResults& model : models)
    for (const ResultRow& row : model.seeds.front().results.rows) {
      if (row.main().higher_is_better) continue;
      rows.push_back({model.model, row.name});
      for (const Metric& metric : row.metrics) rows.back().emplace_back(fmt::format("{:.4f}", metric.value));
    }
  return rows.empty() ? "" : markdown_table({"Model", "Text", "bits_per_byte", "byte_perplexity", "word_perplexity"}, rows);
}

}  // namespace

Evaluation evaluate(const Catalog& catalog, const std::vector<ScoredModel>& models, const std::vector<std::int64_t>& seeds,
                    const std::vector<std::string>& columns) {
  check(!models.empty() && !seeds.empty(), "an evaluation needs models and seeds");
  Evaluation evaluation;
  for (const ScoredModel& model : models) evaluation.models.push_back(results_of(catalog, model, seeds));
  if (!columns.empty() && !is_single(evaluation)) evaluation.summary = summarize(columns, evaluation.models);
  for (std::size_t i = 1; i < models.size(); ++i)
    evaluation.comparisons.push_back(compare(catalog, models[i].name, models[i].documents, models[0].name, models[0].documents));
  return evaluation;
}

Json to_full_json(const Evaluation& evaluation) {
  Json models = Json::array(), comparisons = Json::array();
  for (const ModelResults& model : evaluation.models) {
    Json seeds = Json::array();
    for (const SeedResults& seed : model.seeds) {
      seeds.push_back({{"seed", seed.seed}});
      seeds.back().update(to_json(seed.results));
    }
    models.push_back({{"model", model.model}, {"seeds", std::move(seeds)}});
  }
  Json out = {{"models", std::move(models)}};
  if (evaluation.summary) out["summary"] = to_json(*evaluation.summary);
  for (const Comparison& comparison : evaluation.comparisons) comparisons.push_back(to_json(comparison));
  if (!comparisons.empty()) out["comparisons"] = std::move(comparisons);
  return out;
}

Json to_json(const Evaluation& evaluation) {
  return is_single(evaluation) ? to_json(evaluation.models.front().seeds.front().results) : to_full_json(evaluation);
}

std::string to_table(const Evaluation& evaluation) {
  if (is_single(evaluation)) return to_table(evaluation.models.front().seeds.front().results);
  std::string out = evaluation.summary ? to_table(*evaluation.summary) : "";
  const auto add = [&](const std::string& table) { out += (out.empty() || table.empty() ? "" : "\n") + table; };
  add(perplexity_table(evaluation.models));
  for (const Comparison& comparison : evaluation.comparisons) add(to_table(comparison));
  return out;
}

}  // namespace bhyt
