// What bhyt analyze found as a page, as figures, and in the report of a run.
#include "report/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "report/page.h"
#include "tests/report/fake_runs.h"
#include "tests/report/helpers.h"

namespace bhyt::report {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json layer_of(int number, bool approximated) {
  Json site{{"lambda", 2.0}, {"gain", 0.2}, {"saturated", 0.01 * number}, {"beyond_lambda", 0.0}, {"chebyshev", 0.01}};
  Json j{{"layer", number},      {"norm", 3.0 * number}, {"variance", 1.0 * number}, {"kurtosis", 3.0},   {"cosine", 0.9},
         {"gradient_norm", 0.1}, {"left_out_loss", 3.5}, {"entropy_relative", 0.7},  {"attention", site}, {"mlp", site}};
  if (approximated) j["approximation"] = {{"ratio", 0.9}, {"r", 0.875}, {"points", {{1, 2}, {2, 1.5}, {50, 40}}}};
  return j;
}

Json model_of(const std::string& name, bool approximated, Json step = {}) {
  return {{"model", name},
          {"step", step},
          {"run", "runs/a"},
          {"loss", 3.25},
          {"tokens", 8192},
          {"batch_loss", 3.0},
          {"embedding", {{"norm", 1.0}, {"variance", 0.1}, {"kurtosis", 3.0}}},
          {"layers", {layer_of(1, approximated), layer_of(2, approximated)}}};
}

TEST(AnalysisPage, HasALineForEachModelAndAScatterForEachApproximatedLayer) {
  const std::string page = render_analysis({{"models", {model_of("mine", true), model_of("other", false)}}});
  EXPECT_TRUE(contains(page, "<h1>mine, other</h1>"));
  for (const char* id : {"magnitude", "variance", "kurtosis", "cosine", "left-out", "entropy", "saturated-mlp", "correlation"})
    EXPECT_EQ(count(page, std::string("id=\"analysis-") + id + "\""), 1u) << id;
  EXPECT_EQ(count(page, "class=\"r0 scatter\""), 2u);
  EXPECT_EQ(count(page, "class=\"r1 scatter\""), 0u);
  EXPECT_TRUE(contains(page, "r = 0.875, mine"));
  EXPECT_TRUE(contains(page, "Chebyshev’s 1 − p = 0.01"));
  EXPECT_FALSE(contains(page, "over training"));
  EXPECT_FALSE(contains(page, "http"));
}

TEST(AnalysisPage, CheckpointsAreShownOverTraining) {
  const std::string page = render_analysis({{"models", {model_of("a/checkpoint-10", true, 10), model_of("a/checkpoint-20", true, 20)}}});
  EXPECT_EQ(count(page, "id=\"analysis-correlation-steps\""), 1u);
  EXPECT_EQ(count(page, "id=\"analysis-ratio-steps\""), 1u);
  Json other = model_of("b/checkpoint-30", true, 30);
  other["run"] = "runs/b";  // no line leads from one run to another
  EXPECT_EQ(count(render_analysis({{"models", {model_of("a/checkpoint-10", true, 10), other}}}), "analysis-ratio-steps"), 0u);
}

TEST(AnalysisPage, NamesCannotBreakOut) {
  const std::string page = render_analysis({{"models", {model_of("<script>alert(1)</script>", true)}}});
  EXPECT_FALSE(contains(page, "<script>alert"));
}

TEST(AnalysisPage, WhatIsMissingIsLeftOut) {
  EXPECT_EQ(analysis_sections({{"models", {nullptr}}}), "");
  EXPECT_EQ(analysis_sections(Json()), "");
  const std::string odd = analysis_sections({{"models", {{{"model", "x"}, {"layers", {{{"layer", 1}, {"norm", "?"}}, 7}}}}}});
  EXPECT_FALSE(contains(odd, "analysis-magnitude"));
}

// Viewers that know no CSS variables show the same colours.
TEST(AnalysisSvgs, StandAlone) {
  const auto figures = analysis_svgs({{"models", {model_of("a/checkpoint-10", true, 10), model_of("a/checkpoint-20", true, 20)}}});
  std::set<std::string> names;
  for (const NamedSvg& f : figures) {
    names.insert(f.name);
    EXPECT_TRUE(f.svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")) << f.name;
    EXPECT_FALSE(contains(f.svg, "var(--")) << f.name;
    EXPECT_FALSE(contains(f.svg, "color-mix")) << f.name;
    EXPECT_EQ(count(f.svg, "<svg"), count(f.svg, "</svg>")) << f.name;
  }
  EXPECT_EQ(names.size(), figures.size());
  for (const char* name : {"magnitude", "variance", "scatter-0-1", "scatter-1-2", "ratio-steps"}) EXPECT_TRUE(names.contains(name)) << name;
  const auto magnitude = std::ranges::find(figures, "magnitude", &NamedSvg::name);
  EXPECT_TRUE(contains(magnitude->svg, ">a/checkpoint-20</text>"));
  EXPECT_TRUE(contains(magnitude->svg, "color:#d55e00"));
}

TEST(AnalysisInAReport, StandsBesideTheRun) {
  const fake::Folder tmp;
  for (const char* name : {"a", "b", "c"}) fake::run(tmp, name, {.steps = 40});
  fake::write(tmp / "a" / kAnalysisFile, Json{{"models", {model_of("x", true), model_of("y", true)}}}.dump());
  fake::write(tmp / "b" / kAnalysisFile, "{\"models\"");
  const std::string alone = render_page({read_run(tmp / "a")});
  EXPECT_EQ(count(alone, "id=\"analysis-magnitude\""), 1u);
  EXPECT_TRUE(contains(alone, ">y</span>"));
  const std::string both = render_page(read_runs({(tmp / "a").string(), (tmp / "b").string()}));
  EXPECT_TRUE(contains(both, "a: loss 3.2500 over 8192 tokens."));  // of several runs the newest, under the run's name
  EXPECT_TRUE(contains(both, "b: analysis.json cannot be read"));
  EXPECT_FALSE(contains(render_page({read_run(tmp / "c")}), "id=\"analysis-magnitude\""));
}

TEST(AnalysisInAReport, WhatTrainingSaidOfTheNorms) {
  const fake::Folder tmp;
  const fs::path dir = fake::run(tmp, "a", {.steps = 40});
  std::ofstream(dir / "metrics.jsonl", std::ios::app)
      << R"({"step":41,"layers":{"norm":[1,2,3],"saturated_attn":[0.25,0.5],"approximation_ratio":[null,0.75],"approximation_r":[null,0.9]}})"
      << "\n";
  const std::string page = render_page({read_run(dir)});
  for (const char* id : {"saturated-attn-0", "ratio-0", "correlation-0"})
    EXPECT_EQ(count(page, std::string("id=\"") + id + "\""), 1u) << id;
  EXPECT_TRUE(contains(page, "Between 0.25 and 0.5 at step 41."));
  EXPECT_FALSE(contains(page, "id=\"saturated-mlp-0\""));
}

}  // namespace
}  // namespace bhyt::report
