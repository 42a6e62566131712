// What is known of a run before its first step, and what is said of a long one: memory, repeated data, keys of no use, lines of progress.
#include "io/format.h"
#include "model/checkpoint.h"
#include "ops/norm/config.h"
#include "tests/train/helpers.h"
#include "train/batches.h"
#include "train/console.h"
#include "train/memory.h"
#include "train/optimizer.h"

namespace bhyt::train {
namespace {

// Settled as a session settles it.
RunConfig settled_config(const Words& words) {
  RunConfig c = config_of(words);
  c.run.dtype = c.run.dtype.value_or(DType::f32);
  c.model.config.vocab = kVocab;
  return c;
}

std::string refusal(const RunConfig& c, const FreeMemory& free) {
  try {
    check_memory(c, plan_memory(c, c.train.micro_batch), free);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

TEST(Memory, WhatIsPlannedIsWhatIsTaken) {
  const Folder tmp;
  for (const char* type : {"dtype=fp32", "dtype=bf16"})
    for (const char* attend : {"data.attend=row", "data.attend=document"})
      for (const char* method : {"norm.method=bhyt", "norm.method=peri", "norm.method=dyt"}) {
        const RunConfig c = settled_config(small_run(tmp, "a") + Words{type, attend, method, "train.micro_batch=4", "model.tied=false"});
        const MemoryPlan plan = plan_memory(c, 4);
        Context ctx;
        const Model model(ctx, c.model.config, *c.run.dtype);
        const Gradients gradients(ctx, model.parameters());
        const auto optimizer = make_optimizer(c.train, model.parameters());
        const MemoryUse use = TrainPass(ctx, model, {.batch = 4, .seq = 32}).memory();
        EXPECT_EQ(plan.weights, static_cast<double>(model.parameters().value_bytes()));
        EXPECT_EQ(plan.gradients, static_cast<double>(gradients.arena.memory.bytes()));
        EXPECT_EQ(plan.optimizer, static_cast<double>(optimizer->bytes()));
        EXPECT_EQ(plan.activations, static_cast<double>(use.activations + use.workspace));
        EXPECT_EQ(plan.batches, 2 * 2 * (64 * 4 + 6 * 32 * 4 * (c.data.attend == Attend::document ? 4 : 2)));
      }
}

// Where norms are fitted, the model that they come from stands beside the one that is trained.
TEST(Memory, CalibrationIsPlannedToo) {
  const Folder tmp;
  train(small_run(tmp, "rms") + Words{"norm.method=rmsnorm", "train.steps=1", "model.tied=false"});
  Words words = small_run(tmp, "a") +
                Words{"model.init=" + tmp / "rms/checkpoint-1", "norm.method=bhyt", "norm.from=calibrate", "train.micro_batch=4"};
  std::erase_if(words, [](const std::string& w) { return w.starts_with("model.") && !w.starts_with("model.init"); });
  RunConfig c = settled_config(words);
  Context ctx;
  const Model source(ctx, read_model_config(tmp / "rms/checkpoint-1/config.json"), DType::f32);
  const double weights = static_cast<double>(source.parameters().value_bytes());
  const MemoryPlan plan = plan_memory(c, 4);
  EXPECT_GT(plan.calibration, weights + 16384.0 * 32 * (4 + 4 + 4));  // both streams, and a site's inputs
  EXPECT_EQ(plan.device(), plan.fixed() + plan.activations + plan.batches + plan.calibration);
  says(refusal(c, {.device = plan.device() - 1, .host = plan.device() - 1}), ", norm.from=calibrate ");
  c.norm_from = NormFrom::checkpoint;
  EXPECT_EQ(plan_memory(c, 4).calibration, 0);
}

TEST(Memory, ARunThatDoesNotFitIsRefusedWithNumbers) {
  const Folder tmp;
  const RunConfig c = settled_config(small_run(tmp, "a") + Words{"train.batch=1000", "train.micro_batch=1000"});
  const MemoryPlan plan = plan_memory(c, 1000);
  const double needed = plan.device() + plan.host;
  EXPECT_EQ(refusal(c, {.device = needed, .host = needed}), "");
  EXPECT_EQ(refusal(c, {}), "");  // the system does not say
  const std::string message = refusal(c, {.device = needed - 1, .host = needed - 1});
  says(message, fmt::format("this run needs {} (weights ", human_bytes(needed)));
  says(message,
       fmt::format("this machine has {} free; lower train.batch or train.micro_batch (now 1000 and 1000)", human_bytes(needed - 1)));
  says(refusal(c, {.device = 1000, .host = 1000}), "the model is too large");
}

TEST(Memory, AutoTakesTheWholeBatchWhereItFits) {
  const Folder tmp;
  RunConfig c = settled_config(small_run(tmp, "a"));
  settle_memory(c, {});
  EXPECT_EQ(c.train.micro_batch, 6);
}

// What train.micro_batch: auto becomes.
std::int64_t settled_micro_batch(RunConfig c, const FreeMemory& free) {
  log::set_quiet(true);
  settle_memory(c, free);
  return c.train.micro_batch;
}

TEST(Memory, AutoTakesWhatOthersLeave) {
  const Folder tmp;
  const RunConfig c = settled_config(small_run(tmp, "a") + Words{"train.batch=1000"});
  const MemoryPlan ten = plan_memory(c, 10);
  const double enough = ten.device() + ten.host;
  EXPECT_EQ(settled_micro_batch(c, {.device = enough, .host = enough}), 10);
  EXPECT_EQ(settled_micro_batch(c, {.device = enough - 1, .host = enough - 1}), 9);  // pieces of equal size: 112 of them
  EXPECT_EQ(settled_micro_batch(c, {}), 1000);                                       // the system does not say
  const MemoryPlan one = plan_memory(c, 1);
  const double least = one.device() + one.host;
  EXPECT_EQ(settled_micro_batch(c, {.device = least, .host = least}), 1);
  EXPECT_THROW(settled_micro_batch(c, {.device = least - 1, .host = least - 1}), UsageError);
}

// A CPU is heard from between micro-batches: of so many tokens and operations that this is soon.
TEST(Memory, AutoTakesWhatACpuIsSoonDoneWith) {
  const Folder tmp;
  const auto rows = [&](const Words& words) { return settled_micro_batch(settled_config(small_run(tmp, "a") + words), {}); };
  EXPECT_EQ(rows({"train.batch=2048"}), 2048);
  EXPECT_EQ(rows({"train.batch=2049"}), 1025);  // 65,536 tokens are 2048 rows of 32
  const Words wide{"train.batch=4096", "model.d=512", "model.mlp=2048", "model.layers=8"};
  const RunConfig c = settled_config(small_run(tmp, "a") + wide);
  const auto operations = [&](std::int64_t n) { return static_cast<double>(n * 32) * flops_per_token(c.model.config, 32); };
  const std::int64_t n = rows(wide);
  EXPECT_LE(operations(n), 1e12);
  EXPECT_GT(operations(n + n / 8), 1e12);                                                      // little is given away
  EXPECT_EQ(rows(wide + Words{"model.layers=200", "data.seq_len=8192", "train.batch=2"}), 1);  // one row, however long it takes
}

TEST(Memory, AMicroBatchThatTakesLongIsNamed) {
  const Folder tmp;
  RunConfig c = settled_config(small_run(tmp, "a") + Words{"train.batch=4096", "train.micro_batch=2048"});
  const double flops = 32 * flops_per_token(c.model.config, 32);  // of a row
  EXPECT_EQ(slow_micro_batch(c, 1), "");
  c.train.micro_batch = 4096;
  EXPECT_EQ(slow_micro_batch(c, flops * 4096 / 7.5),
            "one micro-batch of 4,096 × 32 tokens takes this machine at least 7.5 s; the run tells how far it is, and stops when "
            "asked, only between them; lower train.micro_batch");
  c.train.micro_batch = 1;
  c.data.seq_len = 1 << 17;
  const std::string lone = slow_micro_batch(c, 1e9);
  says(lone, "one micro-batch of 1 × 131,072 tokens");
  EXPECT_TRUE(lone.ends_with("only between them"));
  c.device = Device::cuda(0);
  EXPECT_EQ(slow_micro_batch(c, 1e9), "");
}

TEST(Repetition, IsNamedWhenThereIsMuchOfIt) {
  const auto said = [](std::int64_t steps, std::int64_t batch, std::int64_t rows) {
    TrainSection t;
    t.steps = steps;
    t.batch = batch;
    return repetition(t, rows);
  };
  EXPECT_EQ(said(400, 10, 1000), "");
  EXPECT_EQ(said(3400, 10, 1000), "the run goes over its data, 1,000 rows, 34 times; give more data, or fewer steps (400 are 4 passes)");
  EXPECT_EQ(
      said(1, 2000, 1000),
      "a batch of 2,000 rows is larger than the data, 1,000 rows: each step goes over it 2 times; lower train.batch, or give more data");
}

TEST(UnusedKeys, AreNamedByWhatAMethodHas) {
  const auto unused = [](const Words& words) { return fmt::format("{}", fmt::join(unused_keys(config_of(words).model.config.norm), " ")); };
  EXPECT_EQ(unused({"norm.method=dyt", "norm.lambda=[3, 1]"}), "norm.lambda");
  EXPECT_EQ(unused({"norm.method=rmsnorm", "norm.p=0.9", "norm.refresh=3", "norm.alpha=[1, 1, 1]"}),
            "norm.kappa (norm.p) norm.refresh norm.alpha");
  EXPECT_EQ(unused({"norm.method=bhyt", "norm.p=0.9", "norm.lambda=[3, 1]", "norm.refresh=3", "norm.exact_layers=1",
                    "norm.stop_gradient=true", "norm.aux_loss=1", "norm.aux_every=2", "norm.lambda_last=1", "norm.gain=unit"}),
            "");
  EXPECT_EQ(unused({"norm.method=bhyt_exact", "norm.refresh=3", "norm.kappa=3", "norm.aux_every=2"}), "norm.refresh norm.aux_every");
  EXPECT_EQ(unused({"norm.method=rmsnorm_shared", "norm.stop_gradient=true", "norm.exact_layers=1", "norm.refresh=2"}), "norm.refresh");
  EXPECT_EQ(unused({"norm.method=dyt", "norm.alpha=[1, 1, 1]", "norm.elsewhere=peri"}), "norm.elsewhere");
  EXPECT_EQ(unused({"norm.method=rmsnorm", "norm.layers=[1, 2]", "norm.elsewhere=bhyt", "norm.lambda=[3, 1]"}), "");
  for (const Method& m : methods()) EXPECT_EQ(unused({fmt::format("norm.method={}", m.name)}), "") << m.name;
}

TEST(WorkLine, IsThereForLongWorkOnly) {
  WorkLine work("step     3/20", "micro-batches", 100);
  EXPECT_EQ(work.due(102.9, 10, 400, true), "");
  EXPECT_EQ(work.due(110, 40, 400, true), "step     3/20  40 of 400 micro-batches  eta 1:30");
  EXPECT_EQ(work.due(110.1, 41, 400, true), "");
  EXPECT_NE(work.due(110.3, 42, 400, true), "");
  EXPECT_EQ(work.due(120, 400, 400, true), "");  // the line of the step itself comes next
  WorkLine file("valid   step 5", "rows", 0);
  EXPECT_EQ(file.due(19, 10, 4000, false), "");
  EXPECT_EQ(file.due(20, 2000, 4000, false), "valid   step 5  2,000 of 4,000 rows  eta 0:20");
  EXPECT_EQ(file.due(39, 2100, 4000, false), "");
  EXPECT_NE(file.due(40, 2200, 4000, false), "");
}

}  // namespace
}  // namespace bhyt::train
