#include "eval/findings.h"

#include <utility>

#include "core/check.h"
#include "eval/table.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

bool is_single(const Findings& f) { return f.models.size() == 1 && f.models.front().seeds.size() == 1; }

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

Findings findings_of(const Catalog& catalog, const std::vector<ScoredModel>& models, const std::vector<std::int64_t>& seeds,
                     const std::vector<std::string>& columns) {
  check(!models.empty() && !seeds.empty(), "an evaluation needs models and seeds");
  Findings findings;
  for (const ScoredModel& model : models) findings.models.push_back(results_of(catalog, model, seeds));
  if (!columns.empty() && !is_single(findings)) findings.summary = summarize(columns, findings.models);
  for (std::size_t i = 1; i < models.size(); ++i)
    findings.comparisons.push_back(compare(catalog, models[i].name, models[i].documents, models[0].name, models[0].documents));
  return findings;
}

Json to_full_json(const Findings& findings) {
  Json models = Json::array(), comparisons = Json::array();
  for (const ModelResults& model : findings.models) {
    Json seeds = Json::array();
    for (const SeedResults& seed : model.seeds) {
      seeds.push_back({{"seed", seed.seed}});
      seeds.back().update(to_json(seed.results));
    }
    models.push_back({{"model", model.model}, {"seeds", std::move(seeds)}});
  }
  Json out = {{"models", std::move(models)}};
  if (findings.summary) out["summary"] = to_json(*findings.summary);
  for (const Comparison& comparison : findings.comparisons) comparisons.push_back(to_json(comparison));
  if (!comparisons.empty()) out["comparisons"] = std::move(comparisons);
  return out;
}

Json to_json(const Findings& findings) {
  return is_single(findings) ? to_json(findings.models.front().seeds.front().results) : to_full_json(findings);
}

std::string to_table(const Findings& findings) {
  if (is_single(findings)) return to_table(findings.models.front().seeds.front().results);
  std::string out = findings.summary ? to_table(*findings.summary) : "";
  const auto add = [&](const std::string& table) { out += (out.empty() || table.empty() ? "" : "\n") + table; };
  add(perplexity_table(findings.models));
  for (const Comparison& comparison : findings.comparisons) add(to_table(comparison));
  return out;
}

}  // namespace bhyt
