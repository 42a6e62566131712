// Whole runs that go on; tests/cli kills the program itself.
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>

#include "model/safetensors.h"
#include "tests/train/helpers.h"
#include "train/run_dir.h"
#include "train/trainer.h"

namespace bhyt::train {
namespace {

// Each kind of state that a resumed run must carry over.
const std::vector<std::pair<const char*, Words>> kVariants = {
    {"rmsnorm", {"norm.method=rmsnorm", "train.micro_batch=4"}},
    {"bhyt", {"norm.correction=eta", "model.embedding_scale=learned", "norm.refresh=3", "norm.aux_loss=0.1", "norm.aux_every=2"}},
    {"bhyt bf16",
     {"dtype=bf16", "norm.gain=unit", "norm.correction=residual_aware", "norm.gamma_in_constant=true", "data.attend=document"}},
    {"dyt untied", {"norm.method=dyt", "model.tied=false", "train.recompute=block"}},
};

// Calls f with each variant's words on each device.
void for_each_variant(const std::function<void(const Words&)>& f) {
  for (const Device device : test::devices())
    for (const auto& [name, words] : kVariants) {
      SCOPED_TRACE(fmt::format("{} {}", name, name_of(device)));
      f(on(device) + words);
    }
}

TEST(Resume, AfterACrashGivesTheSameBits) {
  for_each_variant([](const Words& words) {
    const Folder tmp;
    train(small_run(tmp, "a") + words);
    const Words b = small_run(tmp, "b") + words + Words{"resume=auto"};
    EXPECT_THROW(train(b, crash_before(1)), Killed);   // before anything was trained: starts afresh
    EXPECT_THROW(train(b, crash_before(7)), Killed);   // after checkpoint-4
    EXPECT_THROW(train(b, crash_before(12)), Killed);  // after checkpoint-8
    EXPECT_EQ(train(b).step, 12);
    expect_same_runs(tmp.path / "a", tmp.path / "b");
  });
}

TEST(Resume, AfterAnInterruptGivesTheSameBits) {
  for_each_variant([](const Words& variant) {
    const Words words = variant + Words{"train.micro_batch=6"};  // a step that is one micro-batch is finished
    const Folder tmp;
    train(small_run(tmp, "a") + words);
    const Words b = small_run(tmp, "b") + words + Words{"resume=auto"};
    for (const int at : {2, 5, 10}) {
      const Outcome out = train(b, {.before_step = [at](Model&, std::int64_t step) {
                                  if (step == at) raise(at == 5 ? SIGTERM : SIGINT);
                                }});
      EXPECT_EQ(out.signal, at == 5 ? SIGTERM : SIGINT);
      EXPECT_EQ(out.step, at);
      EXPECT_EQ(verify_manifest(tmp.path / "b" / fmt::format("checkpoint-{}", at)), "");
    }
    EXPECT_EQ(train(b).signal, 0);
    expect_same_runs(tmp.path / "a", tmp.path / "b");
  });
}

// Stops as a person does, when step `at` begins.
TrainerOptions interrupt_before(std::int64_t at) {
  return {.before_step = [at](Model&, std::int64_t step) {
    if (step == at) raise(SIGINT);
  }};
}

// The signal is there when the first of several micro-batches is done: that step is let go, the one before is saved.
TEST(Resume, AStepStoppedHalfWayIsMadeAgain) {
  for_each_variant([](const Words& variant) {
    const Words words = variant + Words{"train.micro_batch=2"};
    const Folder tmp;
    train(small_run(tmp, "a") + words);
    const Words b = small_run(tmp, "b") + words + Words{"resume=auto"};
    const Outcome none = train(b, interrupt_before(1));
    EXPECT_EQ(none.signal, SIGINT);
    EXPECT_EQ(none.step, 0);
    EXPECT_EQ(none.checkpoint, "");
    EXPECT_TRUE(metrics_of(tmp.path / "b").empty());
    for (const int at : {4, 4, 6, 9}) {  // the second 4: nothing was done, what is saved stays
      const Outcome out = train(b, interrupt_before(at));
      EXPECT_EQ(out.signal, SIGINT);
      EXPECT_EQ(out.step, at - 1);
      EXPECT_EQ(out.checkpoint, tmp / "b" + fmt::format("/checkpoint-{}", at - 1));
      EXPECT_EQ(verify_manifest(out.checkpoint), "");
      EXPECT_EQ(metrics_of(tmp.path / "b").back()["step"].get<int>() / 3, (at - 1) / 3);
    }
    EXPECT_EQ(train(b).signal, 0);
    expect_same_runs(tmp.path / "a", tmp.path / "b");
  });
}

// The step in work is one micro-batch and is finished; its validation, of several, is not. Steps 4 and 8 save too, 12 is the last.
TEST(Resume, AValidationStoppedHalfWayIsMadeAgain) {
  for_each_variant([](const Words& words) {
    const Folder tmp;
    const Words due = words + Words{"train.eval_every=4", "train.micro_batch=6"};
    train(small_run(tmp, "a") + due);
    const Words b = small_run(tmp, "b") + due + Words{"resume=auto"};
    for (const int at : {4, 8, 12}) {
      const Outcome out = train(b, interrupt_before(at));
      EXPECT_EQ(out.signal, SIGINT);
      EXPECT_EQ(out.step, at);
      EXPECT_FALSE(out.valid_loss.has_value() && at == 4);
      EXPECT_FALSE(metrics_of(tmp.path / "b").back().contains("valid_loss"));
      EXPECT_EQ(verify_manifest(out.checkpoint), "");
    }
    EXPECT_EQ(train(b).step, 12);
    expect_same_runs(tmp.path / "a", tmp.path / "b");
    EXPECT_EQ(train(b).step, 12);  // nothing is left to do
    expect_same_runs(tmp.path / "a", tmp.path / "b");
  });
}

// Killed behind the validation that was made up for: it is made once more, and stands in the metrics once.
TEST(Resume, AValidationMadeUpForIsNotWrittenTwice) {
  const Folder tmp;
  const Words due = {"train.eval_every=5", "train.save_every=0", "train.micro_batch=6"};
  train(small_run(tmp, "a") + due);
  const Words b = small_run(tmp, "b") + due + Words{"resume=auto"};
  train(b, interrupt_before(5));
  EXPECT_THROW(train(b, crash_before(6)), Killed);
  EXPECT_TRUE(metrics_of(tmp.path / "b").back().contains("valid_loss"));
  train(b);
  expect_same_runs(tmp.path / "a", tmp.path / "b");
  const auto events = [&](const char* run) {
    for (const std::string& name : files_in(tmp.path / run))
      if (name.starts_with("events.")) return fs::file_size(tmp.path / run / name);
    return std::uintmax_t{0};
  };
  EXPECT_EQ(events("a"), events("b"));
}

TEST(Resume, PassesOverDamagedCheckpoints) {
  const Folder tmp;
  train(small_run(tmp, "a"));
  const Words b = small_run(tmp, "b") + Words{"resume=auto"};
  EXPECT_THROW(train(b, crash_before(10)), Killed);
  cut_file(tmp.path / "b" / "checkpoint-8" / "optimizer.safetensors", 5000);
  EXPECT_THROW(train(b, crash_before(6)), Killed);  // from 4
  EXPECT_EQ(metrics_of(tmp.path / "b").back()["step"], 5);
  train(b);
  expect_same_runs(tmp.path / "a", tmp.path / "b");
}

// Whole checkpoints that hold no optimizer state are no reason to begin again and write over them.
TEST(Resume, WeightsAloneAreNotResumed) {
  const Folder tmp;
  const Words a = small_run(tmp, "a") + Words{"train.save=weights"};
  train(a);
  cut_file(tmp.path / "a" / "checkpoint-12" / "model.safetensors", 100);
  says(error_of(a + Words{"resume=auto"}), "checkpoint-8: it holds weights only");
  EXPECT_EQ(verify_manifest(tmp.path / "a" / "checkpoint-8"), "");
}

std::string everything_in(const fs::path& dir) {
  std::string all;
  std::vector<fs::path> files;
  for (const auto& e : fs::recursive_directory_iterator(dir))
    if (e.is_regular_file()) files.push_back(e.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& f : files)
    if (f.filename() != "log.txt") all += fs::relative(f, dir).string() + "\n" + read_text(f);
  return all;
}

TEST(Resume, NeverWritesOverAHistory) {
  const Folder tmp;
  const Words a = small_run(tmp, "a") + Words{"train.keep=1"};
  const fs::path run = tmp.path / "a";
  EXPECT_THROW(train(a, crash_before(3)), Killed);
  const std::string cut_short = everything_in(run);
  says(error_of(a + Words{"resume=auto"}), "there are metrics of earlier steps, but no checkpoint");
  EXPECT_EQ(everything_in(run), cut_short);

  train(a + Words{"resume=restart"});
  EXPECT_EQ(everything_in(run / "earlier-1"), cut_short);
  cut_file(run / "checkpoint-12" / "model.safetensors", 100);
  write_synced(run / "mine.txt", "x");
  const std::string damaged = everything_in(run);
  for (const char* resume : {"resume=auto", "resume=must"})
    says(error_of(a + Words{resume}), "checkpoint-12: model.safetensors has 100 bytes instead of");
  EXPECT_TRUE(everything_in(run) == damaged);
  says(read_text(run / "log.txt"), "passing over " + (run / "checkpoint-12").string());

  // Put aside only once the new run is known to start, and nothing but what a run writes.
  says(error_of(a + Words{"resume=restart", "data.seq_len=1M"}), "needs");
  EXPECT_TRUE(everything_in(run) == damaged);
  EXPECT_EQ(train(a + Words{"resume=restart"}).step, 12);
  EXPECT_TRUE(fs::exists(run / "mine.txt"));
  EXPECT_EQ(everything_in(run / "earlier-1"), cut_short);
  EXPECT_EQ(metrics_of(run / "earlier-2").back()["step"], 12);
  says(read_text(run / "resolved.yaml"), "resume: never");  // given back, it must not put this run aside too
  EXPECT_EQ(train(a + Words{"resume=auto"}).step, 12);
}

// Killed between the last save and what follows it: the next call finishes that.
TEST(Resume, AFinishedRunIsTidied) {
  const Folder tmp;
  const Words a = small_run(tmp, "a") + Words{"train.keep=2"}, b = small_run(tmp, "b");
  train(a);
  train(b);  // keeps what a does not
  fs::copy(tmp.path / "b" / "checkpoint-4", tmp.path / "a" / "checkpoint-4", fs::copy_options::recursive);
  train(a + Words{"resume=auto"});
  EXPECT_EQ(RunDir(tmp / "a").checkpoints(), (std::vector<std::int64_t>{12, 8}));
  // The checkpoint that the run resumed from stays, whatever damaged one has a higher number.
  cut_file(tmp.path / "a" / "checkpoint-12" / "model.safetensors", 100);
  train(a + Words{"resume=auto", "train.steps=8", "train.keep=1"});
  EXPECT_EQ(verify_manifest(tmp.path / "a" / "checkpoint-8"), "");
}

TEST(Resume, WhatMayChangeAndWhatMayNot) {
  const Folder tmp;
  const Words a = small_run(tmp, "a");
  train(a + Words{"train.steps=4"});
  says(error_of(a), "already holds a run; resume=auto goes on with it");
  EXPECT_EQ(train(a + Words{"resume=auto", "train.steps=4"}).step, 4);  // nothing left to do
  says(error_of(a + Words{"resume=auto", "train.steps=3"}), "train.steps must be at least 4");

  const Words changed = a + Words{"resume=auto", "train.lr=1e-3", "norm.kappa=5", "train.steps=5"};
  const std::string message = error_of(changed);
  says(message, "this would change the mathematics of the run: ");
  says(message, "norm.kappa was 10");
  says(message, "train.lr was 0.005, now is 0.001");
  EXPECT_EQ(train(changed, {.force = true}).step, 5);

  write_language(tmp / "other.tok", 5000, 9);
  EXPECT_EQ(train(a + Words{"resume=auto", "train.lr=1e-3", "norm.kappa=5", "data.train=" + tmp / "other.tok", "threads=2",
                            "train.log_every=1", "train.save_every=2", "train.keep=1", "train.eval_every=0", "train.micro_batch=2"})
                .step,
            12);
}

std::vector<float> tensor(const fs::path& file, const std::string& name) {
  const SafeTensors f(file);
  std::vector<float> values(static_cast<std::size_t>(f.at(name).size()));
  SafeTensors::to_float(f.at(name), 0, f.at(name).size(), values.data());
  return values;
}

// Forced into the other type, a run goes on from every bit of its masters.
TEST(Resume, AnotherTypeKeepsTheMasters) {
  const Folder tmp;
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const auto last = [&](const std::string& run) { return tmp.path / run / "checkpoint-6"; };
  for (const Device device : test::devices())
    for (const auto& [type, other] : {std::pair{"bf16", "fp32"}, {"fp32", "bf16"}}) {
      const std::string run = fmt::format("{}-{}", type, name_of(device));
      const Words words = small_run(tmp, run.c_str()) + on(device);
      train(words + Words{"train.steps=5", fmt::format("dtype={}", type)});
      const fs::path before = tmp.path / run / "checkpoint-5";
      const bool wide = std::string(type) == "bf16";  // the masters stand in the optimizer's file
      const auto masters = wide ? tensor(before / "optimizer.safetensors", "master." + name) : tensor(before / "model.safetensors", name);
      const Words go_on = words + Words{"resume=auto", "train.steps=6", "train.lr=1e-30", fmt::format("dtype={}", other)};
      says(error_of(go_on), "run.dtype");
      train(go_on, {.force = true});
      const auto after =
          wide ? tensor(last(run) / "model.safetensors", name) : tensor(last(run) / "optimizer.safetensors", "master." + name);
      ASSERT_EQ(after.size(), masters.size());
      for (std::size_t i = 0; i < after.size(); ++i) ASSERT_EQ(after[i], masters[i]) << run << i;
    }
}

// Constants of another method are not carried over.
TEST(Resume, AnotherMethodHasItsOwnConstants) {
  const Folder tmp;
  const Words a = small_run(tmp, "a");
  train(a + Words{"train.steps=4", "norm.method=rmsnorm"});
  train(a + Words{"resume=auto", "train.steps=5", "norm.method=rmsnorm_approx", "norm.refresh=1000"}, {.force = true});
  for (const float c : tensor(tmp.path / "a" / "checkpoint-5" / "optimizer.safetensors", "c_attn")) EXPECT_GT(c, 0);
}

TEST(Resume, MustAndNever) {
  const Folder tmp;
  const Words a = small_run(tmp, "a");
  says(error_of(a + Words{"resume=must"}), "holds no checkpoint");
  EXPECT_FALSE(fs::exists(tmp.path / "a"));  // a start that fails leaves no directory behind
  EXPECT_THROW(train(a, crash_before(5)), Killed);
  says(error_of(a), "already holds a run");
  EXPECT_EQ(train(a + Words{"resume=auto"}).step, 12);
  EXPECT_EQ(train(a + Words{"resume=must"}).step, 12);
}

}  // namespace
}  // namespace bhyt::train
