// Reading run directories: what is there, what is missing, what is broken.
#include <gtest/gtest.h>

#include <sstream>

#include "core/error.h"
#include "report/run.h"
#include "tests/report/fake_runs.h"

namespace bhyt::report {

namespace fs = std::filesystem;

namespace {

Run metrics_of(const std::string& text) {
  report::Run run;
  std::istringstream in(text);
  read_metrics(in, run);
  return run;
}

std::string error_of(const std::vector<std::string>& paths) {
  try {
    read_runs(paths);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Metrics, TakesEveryKindOfLine) {
  const report::Run r = metrics_of(
      "{\"step\":10,\"tokens\":80,\"loss\":3.5,\"grad_norm\":0.5,\"lr\":1e-3,\"tok_s\":100,\"step_ms\":500,\"time\":1000}\n"
      "{\"step\":10,\"valid_loss\":3.4,\"valid_tokens\":64}\n"
      "{\"step\":10,\"layers\":{\"norm\":[1,2],\"variance\":[0.5,0.25],\"lambda_attn\":[2.0],\"other\":7}}\n"
      "{\"step\":12,\"event\":\"skipped_step\"}\n"
      "\n"
      "{\"step\":20,\"tokens\":160,\"loss\":3.0,\"grad_norm\":0.4,\"lr\":2e-3,\"tok_s\":200,\"step_ms\":250,\"time\":1005}\n");
  EXPECT_EQ(r.loss.x, (std::vector<double>{10, 20}));
  EXPECT_EQ(r.loss.y, (std::vector<double>{3.5, 3.0}));
  EXPECT_EQ(r.valid.last(), 3.4);
  EXPECT_EQ(r.valid_tokens, 64);
  EXPECT_EQ(r.tokens.last(), 160);
  EXPECT_DOUBLE_EQ(r.seconds.last(), 10 * 0.5 + 10 * 0.25);
  ASSERT_EQ(r.layers.size(), 1u);
  EXPECT_EQ(r.layers[0].norm, (std::vector<double>{1, 2}));
  EXPECT_EQ(r.layers[0].lambda_attn, (std::vector<double>{2}));
  EXPECT_TRUE(r.layers[0].lambda_mlp.empty());
  EXPECT_EQ(r.skipped, (std::vector<double>{12}));
  EXPECT_TRUE(r.notes.empty());
}

TEST(Metrics, TasksByTheirMainMetricAndGroupsAsOne) {
  const std::string at10 =
      R"({"step":10,"tasks":{"arc_easy":{"acc":0.2,"acc_norm":0.3,"acc_norm_stderr":0.1},"mmlu":{"acc":0.25},"mmlu_anatomy":{"acc":0.1},"wikitext":{"bits_per_byte":2,"word_perplexity":50}}})"
      "\n";
  const std::string at20 = R"({"step":20,"tasks":{"arc_easy":{"acc":0.2,"acc_norm":0.4}}})"
                           "\n";
  const report::Run r = metrics_of(at10 + at20);
  ASSERT_EQ(r.tasks.size(), 3u);
  EXPECT_EQ(r.tasks.at("arc_easy acc_norm").x, (std::vector<double>{10, 20}));
  EXPECT_EQ(r.tasks.at("arc_easy acc_norm").y, (std::vector<double>{0.3, 0.4}));
  EXPECT_EQ(r.tasks.at("mmlu acc").y, (std::vector<double>{0.25}));
  EXPECT_EQ(r.tasks.at("wikitext bits_per_byte").y, (std::vector<double>{2}));
  EXPECT_EQ(metrics_of(at10 + at20 + at10).tasks.at("arc_easy acc_norm").x, (std::vector<double>{10}));  // resumed
}

TEST(Metrics, WhatIsNotFiniteBecomesAGap) {
  const report::Run r = metrics_of(
      "{\"step\":1,\"loss\":null,\"grad_norm\":1e300}\n"
      "{\"step\":2,\"loss\":NaN,\"grad_norm\":-Infinity}\n"
      "{\"step\":3,\"loss\":nan,\"note\":\"NaN stays \\\"inf\\\" here\",\"grad_norm\":inf}\n"
      "{\"step\":4,\"loss\":\"3\"}\n"
      "{\"step\":5,\"loss\":2.5}\n");
  ASSERT_EQ(r.loss.size(), 5u);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(r.loss.y[static_cast<std::size_t>(i)])) << i;
  for (const double g : r.grad_norm.y) EXPECT_TRUE(std::isnan(g));
  EXPECT_EQ(r.loss.last(), 2.5);
  EXPECT_TRUE(r.notes.empty());
}

TEST(Metrics, ATruncatedLastLineIsLeftOutAndSaid) {
  const report::Run r = metrics_of("{\"step\":1,\"loss\":3}\n{\"step\":2,\"lo");
  EXPECT_EQ(r.loss.size(), 1u);
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_NE(r.notes[0].find("last line is incomplete"), std::string::npos);
}

TEST(Metrics, BrokenLinesAreCounted) {
  const report::Run r =
      metrics_of("{\"step\":1,\"loss\":3}\nrubbish\n[1,2]\n{\"loss\":1}\n{\"step\":-4,\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
  EXPECT_EQ(r.loss.y, (std::vector<double>{3, 2}));
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_NE(r.notes[0].find("4 of 6 lines"), std::string::npos);
  EXPECT_NE(r.notes[0].find("line 2"), std::string::npos);
}

// First in an object: a tree of it would be copied when the next key comes.
const std::string kDeep = "{\"x\":" + std::string(50000, '[') + std::string(50000, ']') + ",";

TEST(Metrics, ALineNestedWithoutEndIsLeftOut) {
  const report::Run r =
      metrics_of("{\"step\":1,\"loss\":3}\n" + kDeep + "\"step\":2,\"loss\":2,\"y\":1,\"z\":1}\n{\"step\":3,\"loss\":1}\n");
  EXPECT_EQ(r.loss.y, (std::vector<double>{3, 1}));
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_NE(r.notes[0].find("1 of 3 lines"), std::string::npos);
}

TEST(Runs, FilesNestedWithoutEndAreDamaged) {
  const fake::Folder folder;
  const fs::path dir = folder / "r";
  fake::write(dir / "metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
  fake::write(dir / "resolved.yaml", "train: {steps: 1}\n");
  fake::write(dir / "run.json", kDeep + "\"version\":\"1\",\"device\":\"cpu\"}");
  fake::write(dir / "analysis.json", kDeep + "\"models\":[],\"more\":1}");
  fake::write(dir / "checkpoint-9/trainer_state.json", kDeep + R"("bhyt":{"progress":{"step":9,"loss_count":1,"loss_sum":1}},"more":1})");
  const report::Run r = read_run(dir);
  EXPECT_FALSE(r.saved);
  ASSERT_EQ(r.notes.size(), 2u);
  EXPECT_NE(r.notes[0].find("run.json is missing or damaged"), std::string::npos);
  EXPECT_NE(r.notes[1].find("analysis.json cannot be read"), std::string::npos);
}

TEST(Metrics, AnEmptyFileIsARunWithoutLoss) {
  const report::Run r = metrics_of("");
  EXPECT_EQ(r.steps(), 0);
  ASSERT_EQ(r.notes.size(), 1u);
}

// A run that went on from an earlier checkpoint without cutting its metrics: the later records hold.
TEST(Metrics, AStepThatGoesBackReplacesWhatFollowed) {
  const report::Run r = metrics_of(
      "{\"step\":10,\"loss\":5,\"step_ms\":1000}\n{\"step\":20,\"loss\":4,\"step_ms\":1000}\n{\"step\":20,\"valid_loss\":4}\n"
      "{\"step\":25,\"event\":\"skipped_step\"}\n{\"step\":30,\"loss\":9,\"step_ms\":1000}\n"
      "{\"step\":20,\"loss\":4.5,\"step_ms\":2000}\n{\"step\":20,\"valid_loss\":4.25}\n");
  EXPECT_EQ(r.loss.x, (std::vector<double>{10, 20}));
  EXPECT_EQ(r.loss.y, (std::vector<double>{5, 4.5}));
  EXPECT_EQ(r.valid.y, (std::vector<double>{4.25}));
  EXPECT_TRUE(r.skipped.empty());
  EXPECT_DOUBLE_EQ(r.seconds.last(), 10 + 20);
}

TEST(Metrics, TimeWithoutStepMsComesFromTheClock) {
  const report::Run r = metrics_of("{\"step\":1,\"loss\":5,\"time\":100}\n{\"step\":2,\"loss\":4,\"time\":103}\n");
  EXPECT_DOUBLE_EQ(r.seconds.last(), 3);
}

TEST(Metrics, ManyLayerRecordsAreThinnedButFirstAndLastStay) {
  std::string text;
  for (int s = 1; s <= 5000; ++s) text += fmt::format("{{\"step\":{},\"layers\":{{\"norm\":[1,{}]}}}}\n", s, s);
  const report::Run r = metrics_of(text);
  EXPECT_LE(r.layers.size(), 65u);
  EXPECT_GE(r.layers.size(), 32u);
  EXPECT_EQ(r.layers.front().step, 1);
  EXPECT_EQ(r.layers.back().step, 5000);
  for (std::size_t i = 0; i < r.layers.size(); ++i) EXPECT_EQ(r.layers[i].norm, (std::vector<double>{1, r.layers[i].step}));
}

TEST(Config, IsFlattened) {
  report::Run r;
  read_config("model: {preset: small, rope: {theta: 500000}}\nnorm:\n  lambda: [2.0, 1.0]\nempty:\n", r);
  ASSERT_TRUE(r.value("model.rope.theta"));
  EXPECT_EQ(*r.value("model.rope.theta"), "500000");
  EXPECT_EQ(*r.value("norm.lambda"), "[2.0, 1.0]");
  EXPECT_FALSE(r.value("empty"));
  EXPECT_TRUE(r.notes.empty());
}

TEST(Config, BrokenYamlIsANote) {
  report::Run r;
  read_config("a: [1, 2\nb: }", r);
  EXPECT_TRUE(r.config.empty());
  ASSERT_EQ(r.notes.size(), 1u);
  find_floor(".", r);
  EXPECT_FALSE(r.floor);
}

TEST(Floor, IsFoundWhereTheDataIs) {
  const fake::Folder folder;
  const double rate = fake::language(folder);
  synthesize({.out = (folder / "other").string(), .tokens = 500, .vocab = 80, .progress = false});
  synthesize({.out = (folder / "text").string(), .tokens = 500, .vocab = 64, .documents = true, .progress = false});
  fake::write(folder / "plain/train.tok", "no token file");
  fs::create_directories(folder / "torn");
  fs::copy_file(folder / "lang/info.json", folder / "torn/info.json");
  fs::copy_file(folder / "lang/train.tok", folder / "torn/train.tok");
  fs::resize_file(folder / "torn/train.tok", fs::file_size(folder / "torn/train.tok") - 1);
  std::vector<std::string> notes;
  const auto floor = [&](const std::string& train) {
    report::Run r;
    read_config(fmt::format("data: {{train: {}, tokenizer: bytes}}", train), r);
    find_floor(folder / "runs/x", r);
    notes = r.notes;
    return r.floor;
  };
  EXPECT_EQ(floor("lang/train.tok"), rate);  // relative to a folder above the run
  EXPECT_EQ(floor((folder / "lang/train.tok").string()), rate);
  EXPECT_EQ(floor("[{path: lang/train.tok, weight: 0.5}, {path: lang/valid.tok, weight: 0.5}]"), rate);
  const std::optional<double> bytes = floor("[text/train.jsonl]");  // the same language, counted in bytes
  ASSERT_TRUE(bytes);
  EXPECT_LT(*bytes, rate);
  EXPECT_FALSE(floor("[lang/train.tok, other/train.tok]"));  // a mixture's rate is not known
  EXPECT_FALSE(floor("plain/train.tok"));
  EXPECT_FALSE(floor("nowhere/train.tok"));
  EXPECT_TRUE(notes.empty());
  EXPECT_FALSE(floor("torn/train.tok"));
  EXPECT_EQ(notes.size(), 1u);
}

TEST(About, RunJsonOrANote) {
  const fake::Folder folder;
  const fs::path dir = folder / "r";
  fs::create_directories(dir);
  report::Run none;
  read_about(dir, none);
  EXPECT_EQ(none.notes.size(), 1u);

  fs::create_directories(dir / "checkpoint-9");
  fs::create_directories(dir / "checkpoint-100");
  fs::create_directories(dir / "checkpoint-200.part");
  // A run of before there was run.json, and one whose run.json is damaged: what else is there.
  for (const char* text : {"", "{", "[1]", "3"}) {
    if (*text) fake::write(dir / "run.json", text);
    report::Run old;
    read_about(dir, old);
    EXPECT_EQ(old.about, (Entries{{"newest checkpoint", "checkpoint-100"}})) << text;
    EXPECT_EQ(old.notes.size(), 1u);
  }
  fake::write(dir / "run.json", "{\"version\":\"0.2\",\"threads\":2,\"nested\":{\"a\":1},\"none\":null}");
  report::Run json;
  read_about(dir, json);
  EXPECT_EQ(json.about, (Entries{{"version", "0.2"}, {"threads", "2"}, {"newest checkpoint", "checkpoint-100"}}));
  EXPECT_TRUE(json.notes.empty());
}

TEST(Standing, IsTheNewerOfMetricsAndCheckpoint) {
  report::Run r = metrics_of("{\"step\":10,\"loss\":3,\"tokens\":100}\n{\"step\":20,\"loss\":null,\"tokens\":200}\n");
  EXPECT_EQ(r.standing().step, 20);
  EXPECT_EQ(r.standing().loss, 3);
  EXPECT_EQ(r.standing().loss_step, 10);
  EXPECT_EQ(r.standing().tokens, 200);
  r.saved = Standing{.step = 25, .loss_step = 25, .loss = 2, .tokens = 250};
  EXPECT_EQ(r.standing().step, 25);
  EXPECT_EQ(r.standing().loss, 2);
  EXPECT_EQ(r.standing().loss_step, 25);
  EXPECT_EQ(r.standing().tokens, 250);
  r.saved->step = 15;  // the run went on and left only an old one
  EXPECT_EQ(r.standing().step, 20);
  EXPECT_EQ(r.standing().loss, 3);
}

TEST(Runs, AFolderOfRunsIsTakenWhole) {
  const fake::Folder folder;
  fake::run(folder, "b", {.steps = 4});
  fake::run(folder, "a", {.steps = 4});
  fake::write(folder / "report.html", "not a run");
  const std::vector<report::Run> runs = read_runs({folder.path().string(), (folder / "a").string()});
  ASSERT_EQ(runs.size(), 2u);  // the same run again is not a second one
  EXPECT_EQ(runs[0].name, "a");
  EXPECT_EQ(runs[1].name, "b");
  EXPECT_EQ(runs[0].floor, fake::language(folder));
}

TEST(Runs, NamesAreDistinct) {
  const fake::Folder folder;
  fake::run(folder, "x/same", {.steps = 4});
  fake::run(folder, "y/same", {.steps = 4});
  const std::vector<report::Run> runs = read_runs({(folder / "x/same/").string(), (folder / "y/same").string()});
  EXPECT_NE(runs[0].name, runs[1].name);
  EXPECT_EQ(read_runs({(folder / "x/same/").string()})[0].name, "same");
}

TEST(Runs, AFolderInARunStandsForTheRun) {
  const fake::Folder folder;
  const std::string run = fake::run(folder, "r", {.steps = 4}).string(), lone = (folder / "lone/checkpoint-4").string();
  fs::create_directories(run + "/checkpoint-4");
  fs::create_directories(lone);
  EXPECT_EQ(run_around(run + "/checkpoint-4"), run);
  EXPECT_EQ(run_around(run + "/checkpoint-4/"), run);
  for (const std::string& other : {run, folder.path().string(), lone, run + "/checkpoint-5", run + "/metrics.jsonl"})
    EXPECT_EQ(run_around(other), other);
  fake::run(folder, "r/again", {.steps = 4});  // a run that holds runs
  EXPECT_EQ(run_around(run + "/again"), run + "/again");
}

TEST(Runs, WhatIsMissingIsNamed) {
  const fake::Folder folder;
  const std::string nowhere = (folder / "nowhere").string(), empty = (folder / "empty").string();
  fs::create_directories(empty);
  EXPECT_NE(error_of({nowhere}).find(nowhere + ": no such directory"), std::string::npos);
  EXPECT_NE(error_of({empty}).find(empty + ": no metrics.jsonl"), std::string::npos);
  fake::write(folder / "empty/file", "");
  EXPECT_NE(error_of({empty + "/file"}).find(empty + "/file is a file; expected a run directory"), std::string::npos);
  fake::write(folder / "bare/metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
  const report::Run bare = read_run(folder / "bare");
  EXPECT_EQ(bare.loss.last(), 3);
  EXPECT_EQ(bare.notes.size(), 2u);  // no resolved.yaml, no machine
}

}  // namespace
}  // namespace bhyt::report
