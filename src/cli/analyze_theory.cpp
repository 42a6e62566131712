// bhyt analyze theory.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "analysis/theory.h"
#include "cli/analyze.h"
#include "cli/analyze_model.h"
#include "cli/cli.h"
#include "io/format.h"

namespace bhyt::cli {

namespace {

nlohmann::ordered_json to_json(const analysis::Finding& f) {
  nlohmann::ordered_json j{{"verdict", analysis::name_of(f.verdict)},
                           {"checks", f.checks},
                           {"failed", f.failed},
                           {"beyond", f.beyond},
                           {"beyond_failed", f.beyond_failed}};
  j["margin"] = f.checks > 0 ? nlohmann::ordered_json(f.margin) : nlohmann::ordered_json(nullptr);
  j["mean_margin"] = f.checks > 0 ? nlohmann::ordered_json(f.mean_margin) : nlohmann::ordered_json(nullptr);
  j["worst"] = f.worst;
  j["assumptions"] = nlohmann::ordered_json::array();
  for (const analysis::Assumption& a : f.assumptions) {
    nlohmann::ordered_json one{{"name", a.name}, {"met", a.met}, {"expected", a.expected}, {"measured", a.measured}};
    if (a.layer > 0) one["layer"] = a.layer;
    one["says"] = a.says;
    j["assumptions"].push_back(one);
  }
  return j;
}

void print(const char* on, const analysis::Finding& f, const std::string& unit) {
  fmt::print("  on {:<12} {}", on, analysis::name_of(f.verdict));
  if (f.checks > 0)
    fmt::print("; {} checks{}, least margin {:.3g} ({}): {}", grouped(f.checks), f.failed ? fmt::format(" of which {} fail", f.failed) : "",
               f.margin, unit, f.worst);
  if (f.beyond > 0) fmt::print("; beyond its assumptions {} of {} fail", grouped(f.beyond_failed), grouped(f.beyond));
  fmt::print("\n");
  for (const analysis::Assumption& a : f.assumptions) fmt::print("    {:<8} {}: {}\n", a.met ? "met" : "not met", a.name, a.says);
}

}  // namespace

int analyze_theory(const Args& args) {
  CLI::App app("The paper's statements in numbers, on random inputs and on a model", "bhyt analyze theory");
  OnModel on;
  bool json = false;
  std::vector<std::string> words;
  on.add_to(app);
  app.add_flag("--json", json, "print the findings as JSON");
  app.add_option("key=value", words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
  parse(app, args);
  const Placement where = take_placement(words, "auto");
  on.check();
  Context ctx(where.device, where.threads);
  std::vector<analysis::Statement> all = analysis::check_theory(ctx);
  std::string name;
  if (!on.model.empty()) {
    const OnModel::Opened o = on.open(ctx, where.dtype);
    analysis::check_theory_on(ctx, *o.model, o.rows, all);
    const bool own = o.model->norms().blocks[0].site1.scale == ScaleKind::lambda;
    name = fmt::format("{} ({}{}), {} rows of {} tokens", o.name, o.model->config().norm.method,
                       own ? "" : "; what is said of λ is said as if it had λ 2 and 1, κ 10", o.rows.batch, o.rows.seq);
  }
  if (json) {
    nlohmann::ordered_json j{{"model", name.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(name)},
                             {"statements", nlohmann::ordered_json::array()}};
    for (const analysis::Statement& s : all) {
      nlohmann::ordered_json one{
          {"id", s.id}, {"title", s.title}, {"claim", s.claim}, {"margin_unit", s.unit}, {"random", to_json(s.random)}};
      if (s.model) one["on_model"] = to_json(*s.model);
      j["statements"].push_back(one);
    }
    fmt::print("{}\n", j.dump(2));
    return 0;
  }
  if (!name.empty()) fmt::print("model: {}\n\n", name);
  for (const analysis::Statement& s : all) {
    fmt::print("{}: {}\n", s.title, s.claim);
    print("random", s.random, s.unit);
    if (s.model) print("this model", *s.model, s.unit);
    fmt::print("\n");
  }
  return 0;
}

}  // namespace bhyt::cli
