// Whole runs of tiny models inside this process; tests/cli kills the program itself.
#include "train/state.h"

#include <limits>

#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "tests/train/helpers.h"
#include "train/run_dir.h"
#include "train/state.h"

namespace bhyt::train {
namespace {

TEST(Trainer, ResolvedConfigRepeatsTheRun) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"norm.p=0.9", "train.steps=null", "train.tokens=1.9K", "train.micro_batch=auto"});
  log::set_quiet(true);
  Trainer again(read_run_config(config_tree(tmp / "a" + "/resolved.yaml", {"run.dir=" + tmp / "b"})), {});
  EXPECT_EQ(again.run().step, 10);
  expect_same_runs(tmp.path / "a", tmp.path / "b");
}

TEST(Trainer, ThreadsDoNotChangeABit) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=4"});
  for (const char* threads : {"threads=2", "threads=3"}) {
    train(small_run(tmp, threads) + Words{"train.steps=4", threads});
    expect_same_runs(tmp.path / "a", tmp.path / threads);
  }
}

TEST(Trainer, TheSplitChangesNothingButRounding) {
  const Folder tmp;
  const Words words = {"norm.aux_loss=0.5", "train.log_every=1", "data.attend=document"};
  const auto near = [](double a, double b) { return std::fabs(a - b) < 2e-4; };
  train(small_run(tmp, "whole") + words);
  const auto whole = metrics_of(tmp.path / "whole");
  for (const char* split : {"1", "4", "5"}) {
    train(small_run(tmp, split) + words + Words{std::string("train.micro_batch=") + split});
    const auto cut = metrics_of(tmp.path / split);
    ASSERT_EQ(cut.size(), whole.size());
    for (std::size_t i = 0; i < cut.size(); ++i)
      for (const char* key : {"loss", "grad_norm", "valid_loss"})
        EXPECT_TRUE(!whole[i].contains(key) || near(cut[i][key], whole[i][key])) << split << " " << whole[i];
  }
}

// Before the first update two runs differ by nothing but what their tokens may see.
TEST(Trainer, DocumentsReachTheModel) {
  const Folder tmp;
  const Words words = {"train.steps=1", "train.log_every=1"};
  train(small_run(tmp, "row") + words);
  train(small_run(tmp, "document") + words + Words{"data.attend=document"});
  const auto loss = [&](const char* run) {
    for (const auto& line : metrics_of(tmp.path / run))
      if (line.contains("loss")) return line["loss"].get<double>();
    return 0.0;
  };
  EXPECT_GT(loss("row"), 1);
  EXPECT_GT(std::fabs(loss("row") - loss("document")), 1e-6);
}

TEST(Trainer, LearnsAndReportsAsTheInterfaceSays) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=40", "train.log_every=10", "train.eval_every=20"});
  std::vector<double> losses, valid;
  std::int64_t layers = 0;
  for (const auto& line : metrics_of(tmp.path / "a")) {
    if (line.contains("loss")) {
      losses.push_back(line["loss"]);
      EXPECT_EQ(line["tokens"], line["step"].get<std::int64_t>() * 6 * 32);
      EXPECT_GT(line["grad_norm"], 0);
      EXPECT_GT(line["lr"], 0);
    } else if (line.contains("valid_loss")) {
      valid.push_back(line["valid_loss"]);
      EXPECT_EQ(line["valid_tokens"], 3 * 6 * 32);
    } else {
      ++layers;
      for (const char* key : {"norm", "abs", "variance"}) EXPECT_EQ(line["layers"][key].size(), 3u);
      for (const char* key : {"lambda_attn", "lambda_mlp"}) EXPECT_EQ(line["layers"][key].size(), 2u);
    }
  }
  ASSERT_EQ(losses.size(), 4u);
  ASSERT_EQ(valid.size(), 2u);
  EXPECT_NEAR(losses[0], std::log(kVocab), 0.6);
  EXPECT_LT(losses[3], losses[0] - 0.5);
  EXPECT_LT(valid[1], valid[0]);
  EXPECT_GE(layers, 5);
  const std::string first = read_text(tmp.path / "a" / "metrics.jsonl");
  says(first, "{\"step\":10,\"tokens\":1920,\"loss\":");
  for (const char* file : {"resolved.yaml", "log.txt", "checkpoint-40/config.json", "checkpoint-40/model.safetensors",
                           "checkpoint-40/optimizer.safetensors", "checkpoint-40/trainer_state.json"})
    EXPECT_TRUE(fs::exists(tmp.path / "a" / file)) << file;
  const Json state = Json::parse(read_text(tmp.path / "a" / "checkpoint-40" / "trainer_state.json"));
  EXPECT_EQ(state["global_step"], 40);
  EXPECT_EQ(state["log_history"].size(), 6u);
  EXPECT_EQ(state["best_metric"], valid[1]);
}

TEST(Progress, TheLastLossIsNoOlderOne) {
  Progress p;
  EXPECT_FALSE(p.last("loss"));
  p.log_history = {{{"loss", 3.0}}, {{"eval_loss", 2.5}}, {{"loss", 2.0}}};
  EXPECT_EQ(p.last("loss"), 2.0);
  EXPECT_EQ(p.last("eval_loss"), 2.5);
  p.log_history.push_back({{"eval_loss", nullptr}});  // not finite
  EXPECT_FALSE(p.last("eval_loss"));
  EXPECT_EQ(p.last("loss"), 2.0);
}

TEST(Trainer, RefreshesTheConstantOfTheApproximation) {
  const Folder tmp;
  const auto stored = [](const fs::path& checkpoint) {
    const SafeTensors file(checkpoint / "optimizer.safetensors");
    std::vector<float> c(2);
    SafeTensors::to_float(file.at("c_attn"), 0, 2, c.data());
    return c;
  };
  const auto of_weights = [](const fs::path& checkpoint) {
    Context cpu;
    const auto model = load_model(cpu, checkpoint, DType::f32);
    const auto* c = model->constants().as<float>();
    return std::vector<float>(c, c + 2);
  };
  train(small_run(tmp, "often") + Words{"norm.refresh=4", "train.steps=8"});
  const fs::path often = tmp.path / "often";
  EXPECT_EQ(stored(often / "checkpoint-4"), of_weights(often / "checkpoint-4"));
  EXPECT_EQ(stored(often / "checkpoint-8"), of_weights(often / "checkpoint-8"));
  EXPECT_NE(stored(often / "checkpoint-4"), stored(often / "checkpoint-8"));
  train(small_run(tmp, "never") + Words{"norm.refresh=9", "train.steps=8"});
  const fs::path never = tmp.path / "never";
  EXPECT_EQ(stored(never / "checkpoint-4"), stored(never / "checkpoint-8"));
  EXPECT_NE(stored(never / "checkpoint-4"), of_weights(never / "checkpoint-4"));
  EXPECT_GT(stored(never / "checkpoint-4")[0], 0);  // computed once, right after the initialisation
}

TEST(Trainer, KeepsTheNewest) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.save_every=2", "train.keep=2"});
  EXPECT_FALSE(fs::exists(tmp.path / "a" / "checkpoint-8"));
  EXPECT_TRUE(fs::exists(tmp.path / "a" / "checkpoint-10" / "optimizer.safetensors"));
  EXPECT_TRUE(fs::exists(tmp.path / "a" / "checkpoint-12" / "optimizer.safetensors"));
  train(small_run(tmp, "b") + Words{"train.save_every=2", "train.keep=3", "train.save=weights"});
  for (const char* step : {"8", "10", "12"}) {
    const fs::path at = tmp.path / "b" / (std::string("checkpoint-") + step);
    EXPECT_EQ(verify_manifest(at), "");
    EXPECT_EQ(fs::exists(at / "optimizer.safetensors"), std::string(step) == "12") << step;
  }
  train(small_run(tmp, "c") + Words{"train.save_every=0"});
  const auto names = files_in(tmp.path / "c");
  EXPECT_EQ(std::count_if(names.begin(), names.end(), [](const std::string& n) { return n.starts_with("checkpoint-"); }), 1);
}

// Makes the weights bad before some steps and good again before the next.
TrainerOptions poison(std::int64_t from, std::int64_t to) {
  auto saved = std::make_shared<std::vector<float>>();
  return {.before_step = [=](Model& model, std::int64_t step) {
    const Parameter& p = model.parameters().at("model.layers.0.mlp.down_proj.weight");
    if (step == from) {
      *saved = model.parameters().read_value(p);
      std::vector<float> bad = *saved;
      bad[3] = std::numeric_limits<float>::quiet_NaN();
      model.parameters().write_value(p, bad.data());
    }
    if (step == to) model.parameters().write_value(p, saved->data());
  }};
}

class Skipping : public ::testing::TestWithParam<Device> {
 protected:
  const Folder tmp;
  Words run(const std::string& dir) const { return small_run(tmp, dir) + on(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(On, Skipping, ::testing::ValuesIn(test::devices()),
                         [](const auto& info) { return std::string(info.param.is_cuda() ? "cuda" : "cpu"); });

TEST_P(Skipping, ABadStepIsRecordedAndChangesNothing) {
  train(run("a") + Words{"train.log_every=1"}, poison(3, 5));
  std::vector<std::int64_t> skipped, logged;
  for (const auto& line : metrics_of(tmp.path / "a")) {
    if (line.contains("event")) {
      EXPECT_EQ(line["event"], "skipped_step");
      EXPECT_EQ(line["reason"], "the loss is nan");
      skipped.push_back(line["step"]);
    }
    if (line.contains("loss")) logged.push_back(line["step"]);
  }
  EXPECT_EQ(skipped, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(logged, (std::vector<std::int64_t>{1, 2, 5, 6, 7, 8, 9, 10, 11, 12}));
  const Json state = Json::parse(read_text(tmp.path / "a" / "checkpoint-12" / "trainer_state.json"));
  EXPECT_EQ(state["bhyt"]["progress"]["updates"], 10);
  EXPECT_EQ(state["bhyt"]["progress"]["skipped_in_row"], 0);
  EXPECT_FALSE(fs::exists(tmp.path / "a" / "checkpoint-4"));  // not while in doubt
  EXPECT_TRUE(fs::exists(tmp.path / "a" / "checkpoint-8"));
}

TEST_P(Skipping, SkippedStepsAreRememberedOnResume) {
  train(run("a"), poison(3, 5));
  const Words b = run("b") + Words{"resume=auto"};
  TrainerOptions both = poison(3, 5);
  both.before_step = [bad = both.before_step](Model& model, std::int64_t step) {
    bad(model, step);
    if (step == 10) throw Killed();
  };
  EXPECT_THROW(train(b, both), Killed);
  train(b);
  expect_same_runs(tmp.path / "a", tmp.path / "b");
}

TEST_P(Skipping, TooManyInARowStopTheRun) {
  const Words a = run("a") + Words{"train.max_skipped=3"};
  const std::string message = error_of(a, poison(6, 100));
  says(message, "stopped at step 8: 3 steps in a row were skipped, the loss is nan");
  EXPECT_EQ(verify_manifest(tmp.path / "a" / "checkpoint-4"), "");
  EXPECT_FALSE(fs::exists(tmp.path / "a" / "checkpoint-8"));
  EXPECT_EQ(train(a + Words{"resume=auto"}).step, 12);  // the last good one is good
  train(run("b") + Words{"train.max_skipped=3"});
  expect_same_runs(tmp.path / "a", tmp.path / "b");
}

// An update may ruin the weights although loss and gradient were finite.
TEST_P(Skipping, WeightsThatAreNotFiniteAreNotSaved) {
  const Words a = run("a") + Words{"train.steps=4"};
  train(a);
  const Words ruin = {"train.steps=12", "train.lr=1e39", "train.warmup_ratio=0", "train.save_every=1", "train.keep=1", "resume=auto"};
  says(error_of(a + ruin, {.force = true}), "holds values that are not finite");
  EXPECT_EQ(verify_manifest(tmp.path / "a" / "checkpoint-4"), "");
  EXPECT_FALSE(fs::exists(tmp.path / "a" / "checkpoint-5"));
}

// The loss is read a step later than it is made: what hangs on a skipped step must come out the same wherever it is read.
TEST_P(Skipping, WhenTheResultIsReadChangesNoBit) {
  for (const char* often : {"1", "12"})
    train(run(often) + Words{std::string("train.log_every=") + often, "train.eval_every=0", "train.save_every=0"}, poison(4, 6));
  const fs::path last = "checkpoint-12";
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text(tmp.path / "1" / last / file) == read_text(tmp.path / "12" / last / file)) << file;
  const auto events = [&](const std::string& dir) {
    std::vector<std::string> out;
    for (const auto& line : metrics_of(tmp.path / dir))
      if (line.contains("event")) out.push_back(line.dump());
    return out;
  };
  EXPECT_EQ(events("1").size(), 2u);
  EXPECT_EQ(events("1"), events("12"));
  says(error_of(run("stop") + Words{"train.log_every=12", "train.save_every=0", "train.eval_every=0", "train.max_skipped=2"}, poison(4, 9)),
       "stopped at step 5: 2 steps in a row were skipped");
}

TEST(Init, StartsFromACheckpoint) {
  const Folder tmp;
  const Outcome first = train(small_run(tmp, "a") + Words{"norm.gain=unit"});
  const std::string checkpoint = tmp / "a" + "/checkpoint-12";
  Words b = {"model.init=" + checkpoint,
             "data.seq_len=16",
             "train.batch=6",
             "train.steps=1",
             "train.lr=1e-9",
             "train.eval_batches=0",
             "threads=1",
             "data.train=" + tmp / "train.tok",
             "data.valid=" + tmp / "valid.tok",
             "run.dir=" + tmp / "b"};
  log::set_quiet(true);
  {
    Trainer trainer(config_of(b), {});
    EXPECT_EQ(trainer.config().model.config.norm.seq_len, 32);  // the checkpoint's, not data.seq_len
    EXPECT_EQ(trainer.config().model.config.norm.gain, Gain::unit);
    EXPECT_EQ(trainer.config().model.config.d, 32);
    const ModelConfig preset = config_of(b + Words{"norm.preset=recommended"}).model.config;
    EXPECT_EQ(preset.norm.depth_factor, Depth::inv_sqrt);
    EXPECT_EQ(preset.embedding_scale, EmbeddingScaleKind::none);  // the checkpoint's, too
    EXPECT_LT(*trainer.run().valid_loss, *first.valid_loss + 0.3);
  }
  // Where the checkpoint is gone, the run it began goes on all the same.
  const Json own = read_yaml(tmp / "b" + "/resolved.yaml");
  fs::rename(checkpoint, tmp / "moved");
  Json more = own;
  more["run"]["resume"] = "auto";
  more["train"]["steps"] = 2;
  EXPECT_EQ(Trainer(read_run_config(more), {}).run().step, 2);
  EXPECT_EQ(train(b + Words{"resume=auto", "train.steps=3"}).step, 3);  // by the words that began it
  says(error_of(b + Words{"resume=auto", "run.dir=" + tmp / "e"}), "is neither a checkpoint folder");
  EXPECT_FALSE(fs::exists(tmp / "e"));
  fs::rename(tmp / "moved", checkpoint);
  EXPECT_EQ(Trainer(config_of(b + Words{"norm.seq_len=16", "run.dir=" + tmp / "c"}), {}).config().model.config.norm.seq_len, 16);
  says(error_of(b + Words{"model.preset=tiny"}), "model.preset and model.init");
  says(error_of(b + Words{"model.layers=3", "run.dir=" + tmp / "d"}), "do not fit these keys: model.layers was 2, now is 3");
  says(error_of(b + Words{"norm.method=dyt", "norm.gain=one", "run.dir=" + tmp / "d"}), "norm.method was \"bhyt\", now is \"dyt\"");
  EXPECT_FALSE(fs::exists(tmp / "d"));
}

TEST(Trainer, WhatIsWrongIsSaidBeforeAnythingIsWritten) {
  const Folder tmp;
  const Words a = small_run(tmp, "a");
  says(error_of(a + Words{"model.heads=3", "model.head_dim=8"}), "model.heads");
  says(error_of(a + Words{"norm.exact_layers=[5]"}), "exact_layers");
  says(error_of(a + Words{"device=gpu"}), "run.device must be auto, cpu, cuda or cuda:N, got gpu");
  EXPECT_FALSE(fs::exists(tmp.path / "a"));
  write_synced(tmp / "file", "x");
  says(error_of(a + Words{"run.dir=" + tmp / "file" + "/run"}), "could not make the run directory");
}

}  // namespace
}  // namespace bhyt::train
