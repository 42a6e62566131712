// Studies as files: every one at every scale comes to a plan, recipes are the paper's, tables hold what they say.
#include "study/study.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/log.h"
#include "io/yaml.h"
#include "study/console.h"
#include "study/files.h"
#include "study/reproduce.h"
#include "study/table.h"
#include "tests/message_of.h"
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

// Every wrong type is told with its key; nothing is left out in silence.
TEST(Studies, AWrongTypeIsTold) {
  const Quiet quiet;
  const test::TemporaryFolder folder;
  const std::string file = (folder.path / "mine.yaml").string();
  const auto refusal = [&](const std::string& text) {
    std::ofstream(file) << text;
    try {
      Study s = open_study(file, "tiny", 0, {});
      name_data(s, "somewhere");
      (void)plan_of(s);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const auto told = [&](const std::string& text, const std::string& expected) { EXPECT_EQ(refusal(text), expected) << text; };
  told("", file + " must be a map of keys, got nothing");
  told("[1]", file + " must be a map of keys, got [1]");
  told("title: [3]", "title must be a text, got [3]");
  told("paper: {a: 5}", "paper must be a text, got {\"a\":5}");
  told("title: x\nafter: 5", "after must be a list of words, got 5");
  told("after: [[perplexity]]", "after must be a list of words, got [[\"perplexity\"]]");
  told("statistics: foo", "statistics must be true or false, got \"foo\"");
  told("alone: 5", "alone must be true or false, got 5");
  told("first: 5", "first must be a map of keys, got 5");
  told("first: {base: {}}", "first.axes is missing: the models that are trained first, by name");
  told("{first: {axes: [{train.lr: [1, 2]}]}}", "first.axes.train.lr must be a map of named variants, got [1,2]");
  told("base: 5", "base must be a map of keys, got 5");
  told("axes: 5", "axes must be a list of axes, got 5");
  told("axes: [5]", "axes must be a list of names with their values, as train.lr: [1e-3, 2e-3], got 5");
  told("axes: [{variant: {a: {config: [5]}}}]", "config must be a text, got [5]");
  told("commands: [bench]", "commands must be a map of keys, got [\"bench\"]");
  told("commands: {one: bench}", "commands.one must be a list of words, got \"bench\"");
  told("commands: {one: []}", "commands.one holds no words");
  told("table: 5", "table must be a map of keys, got 5");
  told("table: {columns: 5}", "table.columns must be a list of columns, got 5");
  told("table: {columns: [5]}", "table.columns must be a map of keys, got 5");
  told("table: {columns: [{of: loss, as: foo}]}", "table.columns.as must be one of mean, min, max, last, got \"foo\"");
  EXPECT_EQ(refusal("table: {columns: [{of: foo}]}").find("table.columns.of must be one of loss, "), 0u);
  told("table: {columns: [{of: loss}], rank_by: lost}", "table.rank_by must be the name of a column, got lost");
  told("table: {target: 5}", "table.target must be a map of keys, got 5");
  told("numbers: {at: x, columns: [a], rows: {b: [[c]]}}", "numbers.rows.b must be a list of 1 numbers (or words, or null), got [[\"c\"]]");
  told("command: foo", "command must be one of pretrain, sft, got \"foo\"");
  told("scales: 5", "scales must be a map of keys, got 5");
  told("scales: {tinny: {}}", "unknown key scales.tinny (did you mean scales.tiny?)");
  told("scales: {small: 5}", "scales.small must be a map of keys, or false, got 5");
  told("scales: {tiny: {keys: 5}}", "scales.tiny.keys must be a map of keys, got 5");
  told("scales: {tiny: {synth: 5}}", "scales.tiny.synth must be a map of keys, got 5");
  told("columns: [{of: loss}]", "unknown key columns (did you mean command?)");
  told("{title: 3, paper: 5, table: {columns: [{of: loss}], rank_by: loss}}", "accepted");
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

TEST(Indexes, NestingWithoutEndIsRefused) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path / kIndexFile) << "{\"x\":" << std::string(50000, '[') << std::string(50000, ']')
                                          << ",\"version\":1,\"runs\":[]}";
  EXPECT_EQ(test::message_of([&] { (void)read_index(folder.path); }),
            (folder.path / kIndexFile).string() + ": not an index of a sweep: nested more than 500 deep");
}

// What a run says at its end, in as many lines as it takes.
TEST(Logs, TheLastErrorIsWhole) {
  const test::TemporaryFolder folder;
  const fs::path log = folder.path / "log.txt";
  const auto last = [&](const std::string& text) {
    std::ofstream(log) << text;
    return last_error(log, 1);
  };
  EXPECT_EQ(last("warning: a\nerror: first\n"), "first");
  EXPECT_EQ(last("error: first\nmore\nwarning: b\nerror: it cannot go on:\n  checkpoint-6: weights only\nresume=restart\n"),
            "it cannot go on:\n  checkpoint-6: weights only\nresume=restart");
  EXPECT_EQ(last("error: last\n  of them\nwarning: b\nstep 3\n"), "last\n  of them");
  EXPECT_EQ(last("step 3\n"), "ended with exit code 1; see " + log.string());
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
