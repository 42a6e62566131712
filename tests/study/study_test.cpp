// Studies as files: every one at every scale comes to a plan, recipes are the paper's, tables hold what they say.
#include "study/study.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/log.h"
#include "io/yaml.h"
#include "study/files.h"
#include "study/reproduce.h"
#include "study/table.h"
#include "tests/temporary_folder.h"

namespace bhyt::study {
namespace {

struct Quiet {
  Quiet() { log::set_quiet(true); }
  ~Quiet() { log::set_quiet(false); }
};

TEST(Studies, AllOfThemAreThere) {
  std::vector<std::string> names;
  for (const StudyHead& s : list_studies()) {
    names.push_back(s.name);
    EXPECT_FALSE(s.title.empty()) << s.name;
    EXPECT_FALSE(s.paper.empty()) << s.name;
    EXPECT_NE(std::find(s.scales.begin(), s.scales.end(), "tiny"), s.scales.end()) << s.name;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"ablation", "approximation", "curves", "depth", "embedding", "gain", "generation", "lambda", "layers",
                                      "lr-robustness", "norm-latency", "p", "pretraining", "sft", "statistics", "time-to-loss", "toy"}));
}

TEST(Studies, EveryScaleComesToRunsOrCommands) {
  const Quiet quiet;
  for (const StudyHead& head : list_studies())
    for (const std::string& scale : head.scales) {
      if (head.name == "sft" && scale == "paper") continue;  // starts from checkpoints that have to be there
      Study s = open_study(head.name, scale, 0, scale == "59m" ? std::vector<std::string>{"data.train=x.tok"} : std::vector<std::string>{});
      name_data(s, "somewhere");
      EXPECT_GT(plan_of(s).runs.size() + s.commands.size(), 0u) << head.name << " " << scale;
      // What the table is ranked by is one of its columns, and what the target is one of its rows.
      const auto named = [&](const Column& c) { return c.name == s.rank_by; };
      EXPECT_TRUE(s.rank_by.empty() || std::any_of(s.columns.begin(), s.columns.end(), named)) << head.name << " " << scale;
      for (const Column& c : s.columns)
        if (!c.of.empty()) {
          const auto kinds = column_kinds();
          EXPECT_NE(std::find(kinds.begin(), kinds.end(), c.of), kinds.end()) << head.name << ": " << c.of;
        }
    }
}

TEST(Studies, ThePapersScaleIsThePapersRecipe) {
  const Quiet quiet;
  Study s = open_study("pretraining", "paper", 0, {"device=cpu"});
  const Plan plan = plan_of(s);
  ASSERT_EQ(plan.runs.size(), 10u);
  for (const PlannedRun& run : plan.runs) {
    std::string name = run.point[0].second;  // "1B BHyT" → llama-1b-bhyt
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return c == ' ' ? '-' : static_cast<char>(std::tolower(c)); });
    const auto& recipes = recipe_files();
    const auto found = std::find_if(recipes.begin(), recipes.end(), [&](const BuiltInFile& f) { return f.name == "llama-" + name; });
    ASSERT_NE(found, recipes.end()) << name;
    Json recipe = parse_yaml(found->text, name);
    recipe["run"] = {{"dtype", "bf16"}, {"device", "cpu"}, {"seed", 0}};
    EXPECT_EQ(train::mathematics(train::resolved_tree(train::read_run_config(run.tree))),
              train::mathematics(train::resolved_tree(train::read_run_config(recipe))))
        << name;
  }
}

// What a study of ours turns on at other scales is not the paper's.
TEST(Studies, ThePaperScalesNoEmbedding) {
  const Quiet quiet;
  for (const StudyHead& head : list_studies()) {
    if (std::find(head.scales.begin(), head.scales.end(), "paper") == head.scales.end()) continue;
    Study s = open_study(head.name, "paper", 0, {"device=cpu", "data.train=x.tok"});
    if (!s.commands.empty() || head.name == "sft" || head.paper == "ours") continue;  // sft starts from models that must be there
    for (const PlannedRun& run : plan_of(s).runs)
      EXPECT_EQ(train::resolved_tree(train::read_run_config(run.tree))["model"]["embedding_scale"], "none") << head.name << " " << run.id;
  }
}

TEST(Studies, MistakesAreTold) {
  const auto refusal = [](const std::string& name, const std::string& scale) {
    try {
      Study s = open_study(name, scale, 0, {});
      name_data(s, "somewhere");
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("gian", "tiny"), "unknown study gian (did you mean gain?); bhyt reproduce lists them all");
  EXPECT_EQ(refusal("gain", "paper"), "study gain has no scale paper; it has tiny, small, 59m");
  EXPECT_NE(refusal("gain", "59m").find("data.train=FILE"), std::string::npos);
  const test::TemporaryFolder folder;
  const std::string file = (folder.path / "mine.yaml").string();
  std::ofstream(file) << "{title: mine, axis: []}";
  EXPECT_NE(refusal(file, "tiny").find("unknown key axis (did you mean axes?)"), std::string::npos);
}

TEST(Studies, SeedsAndWordsGoBeforeWhatTheFileSays) {
  Study s = open_study("p", "tiny", 5, {"norm.p=0.9", "train.lr=7"});
  name_data(s, "somewhere");
  const Plan plan = plan_of(s);
  EXPECT_EQ(plan.runs.size(), 5u);
  EXPECT_EQ(plan.runs[0].tree["norm"]["p"], 0.9);
  EXPECT_EQ(plan.runs[0].tree["train"]["lr"], 7);
  EXPECT_EQ(plan.runs[0].tree["model"]["embedding_scale"], "sqrt_d");
}

TEST(Tables, StatisticsPerBlockAreThePapers) {
  const Study s = open_study("statistics", "tiny", 0, {});
  const Table t = statistics_table(plan_of(s));
  ASSERT_TRUE(s.numbers);
  ASSERT_EQ(t.rows.size(), s.numbers->rows.size());
  for (std::size_t i = 0; i < t.rows.size(); ++i) {
    EXPECT_EQ(t.rows[i].label, s.numbers->rows[i].first);
    EXPECT_EQ(t.rows[i].values[0].mean, s.numbers->rows[i].second[0]) << t.rows[i].label;
  }
}

// Two runs whose curves are known: when does each come down to what "b" has at three quarters of its steps?
TEST(Tables, TimeToALossByHand) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& id, const std::vector<double>& valid, double step_ms) {
    fs::create_directories(folder.path / id);
    std::ofstream out(folder.path / id / "metrics.jsonl");
    for (std::size_t i = 0; i < valid.size(); ++i) {
      const auto step = 10 * (i + 1);
      out << Json{{"step", step}, {"tokens", step}, {"loss", valid[i]}, {"step_ms", step_ms}}.dump() << "\n";
      out << Json{{"step", step}, {"valid_loss", valid[i]}}.dump() << "\n";
    }
  };
  write("a", {9, 8, 7, 6.4}, 100);
  write("b", {8, 7, 6.5, 6}, 50);
  Index index;
  for (const char* id : {"a", "b"}) index.runs.push_back({.id = id, .point = {{"variant", id}}, .status = Status::done, .dir = id});
  for (Record& r : index.runs) read_outcome(r, folder.path);
  EXPECT_EQ(index.runs[0].valid_loss, 6.4);
  EXPECT_EQ(index.runs[1].step, 40);
  Study s;
  s.target = {.row = "b", .at = 0.75};
  for (const char* of : {"target_loss", "target_step", "target_seconds", "perplexity"}) s.columns.push_back({.name = of, .of = of});
  const Table t = make_table(s, index, folder.path, {});
  ASSERT_EQ(t.rows.size(), 2u);
  EXPECT_EQ(t.rows[0].values[0].mean, 6.5);
  EXPECT_EQ(t.rows[0].values[1].mean, 40);
  EXPECT_NEAR(t.rows[0].values[2].mean, 4.0, 1e-9);
  EXPECT_EQ(t.rows[1].values[1].mean, 30);
  EXPECT_NEAR(t.rows[1].values[2].mean, 1.5, 1e-9);
  EXPECT_NEAR(t.rows[1].values[3].mean, std::exp(6.0), 1e-9);
  EXPECT_NE(table_verdict(t, "target_seconds", true).find("Lowest target_seconds: b, 1.5000. a is 2.5000 above."), std::string::npos);
}

TEST(Tables, ValuesOutOfWhatACommandPrinted) {
  const Json printed = Json::parse(R"({"models": [{"layers": [{"a": {"r": 1}}, {"a": null}, {"a": {"r": 4}}]}]})");
  const auto value = [&](const std::string& path, const std::string& as) {
    return value_of({.path = path, .as = as}, {.printed = printed});
  };
  EXPECT_EQ(value("models.0.layers.*.a.r", "mean"), 2.5);
  EXPECT_EQ(value("models.0.layers.*.a.r", "min"), 1);
  EXPECT_EQ(value("models.0.layers.*.a.r", "last"), 4);
  EXPECT_EQ(value("models.0.layers.2.a.r", "max"), 4);
  EXPECT_FALSE(value("models.1.layers.*.a.r", "mean"));
  EXPECT_THROW((void)value_of({.of = "nonsense"}, {}), UsageError);
}

TEST(Tables, ThePapersNumbersStandBesideOrBehind) {
  Table t{.columns = {{.name = "eval loss", .of = "valid_loss", .digits = 2}}, .rows = {{.label = "BHyT", .values = {spread_of({2, 3})}}}};
  const PaperNumbers paper{
      .at = "1B", .columns = {"PPL", "eval loss"}, .rows = {{"BHyT", {Json(), Json(2.8)}}, {"LNS", {Json(17), Json(2.75)}}}};
  EXPECT_NE(markdown(t, paper, true).find("| BHyT | 2.50 ± 0.71 (paper 2.80) |"), std::string::npos);
  EXPECT_NE(markdown(t, paper, false).find("| BHyT | 2.50 ± 0.71 |"), std::string::npos);
  EXPECT_NE(paper_markdown(paper).find("| BHyT | – | 2.80 |"), std::string::npos);
}

}  // namespace
}  // namespace bhyt::study
