// bhyt reproduce: studies from the command line, at the scale that takes seconds.
#include "tests/cli/training.h"

namespace bhyt::test {
namespace {

Outcome reproduce(const Place& place, const Words& words) {
  return bhyt(Words{"reproduce"} + words + Words{"--out", (place.path / "study").string()});
}

TEST(Reproduce, ListsItsStudies) {
  const Outcome out = bhyt({"reproduce"});
  EXPECT_EQ(out.code, 0);
  for (const char* name : {"lr-robustness", "pretraining", "time-to-loss", "norm-latency"}) says(out.out, name);
  EXPECT_EQ(bhyt({"reproduce", "pretrainig"}).code, 2);
  EXPECT_EQ(bhyt({"reproduce", "gain", "scale=huge"}).code, 2);
  EXPECT_EQ(bhyt({"reproduce", "gain", "seeds=none"}).code, 2);
  EXPECT_EQ(bhyt({"reproduce", "gain", "train.lrr=1"}).code, 2);
}

TEST(Reproduce, ADryRunOfEveryStudyRunsNothing) {
  const Place place;
  for (const char* name : {"ablation", "approximation", "curves", "depth", "embedding", "gain", "generation", "lambda", "layers",
                           "lr-robustness", "norm-latency", "p", "pretraining", "sft", "statistics", "time-to-loss", "toy"}) {
    const Outcome out = reproduce(place, {name, "--dry-run"});
    EXPECT_EQ(out.code, 0) << name << out.err;
    says(out.out, "runs    ");
  }
  says(reproduce(place, {"lr-robustness", "seeds=4", "--dry-run"}).out, "runs    16");
  EXPECT_FALSE(fs::exists(place.path / "study"));
}

TEST(Reproduce, AStudyEndsInItsTableAndGoesOn) {
  const Place place;
  const Words study = {"lr-robustness", "seeds=2", "train.steps=10", "--jobs", "2"};
  const Outcome out = reproduce(place, study);
  ASSERT_EQ(out.code, 0) << out.err;
  says(out.out, "| variant | lr 0.002 | lr 0.008 |");
  says(out.out, "standard errors");
  const Json study_json = Json::parse(read_text(place.path / "study" / "study.json"));
  EXPECT_EQ(study_json["rows"].size(), 4u);
  EXPECT_EQ(study_json["rows"][0]["valid_loss"]["n"], 2);
  const std::string page = read_text(place.path / "study" / "report.html");
  says(page, "Loss by lr");
  says(page, "<svg class=\"plot\" id=\"across\"");
  const Outcome again = reproduce(place, study);
  says(again.err, "8 of 8 runs have ended already");
  EXPECT_EQ(again.out, out.out);
}

TEST(Reproduce, ColumnsAndThePapersNumbers) {
  const Place place;
  const Outcome out = reproduce(place, {"layers", "seeds=1", "train.steps=10", "--json"});
  ASSERT_EQ(out.code, 0) << out.err;
  const Json j = Json::parse(out.out);
  ASSERT_EQ(j["rows"].size(), 2u);
  // The last block's output as the run itself wrote it.
  for (const Json& row : j["rows"]) {
    Json layers;
    for (const Json& line : metrics_of(place.path / "study" / (row["label"].get<std::string>() + "_seed-0")))
      if (line.contains("layers")) layers = line["layers"];
    EXPECT_EQ(row["values"]["last variance"]["mean"], layers["variance"].back());
  }
  says(read_text(place.path / "study" / "study.md"), "| BHyT | 140 | 8 |");
}

TEST(Reproduce, FineTuningStartsFromModelsThatItTrainsFirst) {
  const Place place;
  const Outcome out = reproduce(place, {"sft", "seeds=1"});
  ASSERT_EQ(out.code, 0) << out.err;
  says(out.out, "|  | train loss | eval loss | text PPL |");
  EXPECT_EQ(names_in(place.path / "study" / "first", "RMSNorm"), Words{"RMSNorm"});
  EXPECT_EQ(names_in(place.path / "study" / "first", "DyT"), Words{});  // nobody asks for it at this scale
  const Json study_json = Json::parse(read_text(place.path / "study" / "study.json"));
  for (const Json& row : study_json["rows"]) EXPECT_GT(row["values"]["text PPL"]["mean"].get<double>(), 1);
}

// A dry run tells of the models that are trained first by their own folder, whatever lies beside it.
TEST(Reproduce, ADryRunBesideFineTunedRunsIsAnAnswer) {
  const Place place;
  const Words study = {"sft", "seeds=1", "train.epochs=1", "--keep", "none"};
  ASSERT_EQ(reproduce(place, study).code, 0);
  const Outcome out = reproduce(place, study + Words{"--dry-run"});
  EXPECT_EQ(out.code, 0) << out.err;
  says(out.out, "runs    2, of which 2 are done");
}

TEST(Reproduce, WithoutCheckpointsTheRunsAreLookedAtFirst) {
  const Place place;
  const Words study = {"approximation", "seeds=1", "--keep", "none", "--json"};
  const Outcome out = reproduce(place, study);
  ASSERT_EQ(out.code, 0) << out.err;
  const Json rows = Json::parse(out.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  for (const Json& row : rows) EXPECT_TRUE(row["values"]["r, mean of layers"]["mean"].is_number()) << row.dump();
  for (const char* id : {"BHyT_seed-0", "BHyT-unit-gain_seed-0"}) {
    EXPECT_TRUE(fs::exists(place.path / "study" / id / "metrics.jsonl"));
    EXPECT_EQ(names_in(place.path / "study" / id, "checkpoint-"), Words{}) << id;
  }
  // Going on, it knows what was seen while they were there.
  const Outcome again = reproduce(place, study);
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, out.out);
}

TEST(Reproduce, AModelThatDivergedCostsItsOwnRowAlone) {
  const Place place;
  const auto study = [&](const std::string& good) {
    write_text(place.path / "mine.yaml", R"({title: Mine, paper: ours, question: none, command: sft,
first: {base: {model.vocab: null, train.steps: 6}, axes: [{variant: {Good: {)" +
                                             good + R"(norm.method: rmsnorm},
  Wild: {norm.method: rmsnorm, train.lr: 1e30, train.clip: 0, train.warmup_ratio: 0, train.max_skipped: 2}}}]},
base: {data: {seq_len: 64}, train: {epochs: 1, lr: 1e-4, batch: 4}},
axes: [{variant: {Good: {model.init: "{first}/Good"}, Wild: {model.init: "{first}/Wild"}}}],
scales: {tiny: {synth: {tokens: 60000, documents: true, conversations: 8}, keys: {run: {device: cpu, dtype: fp32}}}}})");
    return reproduce(place, {(place.path / "mine.yaml").string(), "seeds=1"});
  };
  const Outcome out = study("");
  EXPECT_EQ(out.code, 0) << out.err;
  says(out.out, "Wild: left out, the model that it starts from ended as diverged");
  EXPECT_EQ(names_in(place.path / "study", "Good"), Words{"Good_seed-0"});
  EXPECT_EQ(names_in(place.path / "study", "Wild"), Words{});
  fs::remove_all(place.path / "study");
  const Outcome none = study("train.lr: 1e30, train.clip: 0, train.warmup_ratio: 0, train.max_skipped: 2, ");
  EXPECT_EQ(none.code, 1);
  says(none.err, "none of the models to start from came through");
}

TEST(Reproduce, StudiesTakeWhatOtherCommandsPrint) {
  const Place place;
  const auto rows = [&](const char* name) {
    const Outcome out = bhyt({"reproduce", name, "--json", "--out", (place.path / name).string()});
    EXPECT_EQ(out.code, 0) << name << out.err;
    return Json::parse(out.out)["rows"];
  };
  for (const Json& row : rows("approximation")) {
    const double r = row["values"]["r, mean of layers"]["mean"].get<double>();
    EXPECT_GT(r, 0.1);
    EXPECT_LT(r, 1);
  }
  EXPECT_GT(rows("toy").size(), 20u);
  for (const Json& row : rows("norm-latency")) EXPECT_GT(row["values"]["32"]["mean"].get<double>(), 0);
}

TEST(Reproduce, KeysOfCommandsAreCheckedBeforeAnythingIsWritten) {
  const Place place;
  const auto refused = [&](const Words& words, const std::string& why) {
    for (const Words& how : {Words{}, Words{"--dry-run"}}) {
      const Outcome out = reproduce(place, words + how);
      EXPECT_EQ(out.code, 2) << out.out;
      says(out.err, why);
      EXPECT_EQ(out.out, "");
      EXPECT_FALSE(fs::exists(place.path / "study"));
    }
  };
  refused({"toy", "foo=3"}, "unknown key foo; expected device, dtype or threads");
  refused({"norm-latency", "norm.lamda=2"}, "unknown key norm.lamda (did you mean norm.lambda?)");
  refused({"generation", "train.lrr=1"}, "unknown key train.lrr (did you mean train.lr?)");
  refused({"generation", "data.seq_len=many"}, "data.seq_len must be a whole number");
}

TEST(Reproduce, AFileOfTheWrongShapeIsToldWhole) {
  const Place place;
  const auto refused = [&](const std::string& text, const std::string& why) {
    write_text(place.path / "mine.yaml", text);
    const Outcome out = reproduce(place, {(place.path / "mine.yaml").string(), "--dry-run"});
    EXPECT_EQ(out.code, 2) << text;
    EXPECT_EQ(out.err, "error: " + why + "\n");
  };
  refused("title: x\nafter: 5\n", "after must be a list of words, got 5");
  refused("statistics: foo\n", "statistics must be true or false, got \"foo\"");
  refused("alone: 5\n", "alone must be true or false, got 5");
  refused("", (place.path / "mine.yaml").string() + " must be a map of keys, got nothing");
  refused("first: 5\n", "first must be a map of keys, got 5");
  refused("axes: 5\n", "axes must be a list of axes, got 5");
}

TEST(Reproduce, WhatACommandCannotDoIsToldByName) {
  const Place place;
  write_text(place.path / "mine.yaml",
             "{title: Mine, paper: ours, question: none, commands: {one: [nonsense, --json], two: [nonsense, --json]}, "
             "table: {columns: [{name: x, path: a}]}}");
  const Outcome out = reproduce(place, {(place.path / "mine.yaml").string()});
  EXPECT_EQ(out.code, 1);
  says(out.out, "this study needs `bhyt nonsense --json`, which this program does not have");
}

}  // namespace
}  // namespace bhyt::test
