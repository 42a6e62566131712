// Master weights of a bf16 run, the optimizers' table, the source of batches, and training states that no honest run wrote.
#include "train/masters.h"

#include <bit>

#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "tests/train/helpers.h"
#include "train/session.h"
#include "train/token_rows.h"

namespace bhyt::train {
namespace {

std::unique_ptr<Session> open(const Words& words) {
  log::set_quiet(true);
  return open_session(config_of(words), false);
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected, const std::string& name) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(expected[i])) << name << " " << i;
}

std::vector<float> master_of(const Session& s, const Parameter& p) {
  const Shard::Part* part = s.optimizer->shard().find(p);
  return part ? s.optimizer->masters().read(*part) : s.model->parameters().read_value(p);
}

TEST(Masters, BeginWithEveryBitOfTheInitialValues) {
  for (const Device device : test::devices())
    for (const char* type : {"dtype=fp32", "dtype=bf16"}) {
      const Folder tmp;
      const auto s = open(small_run(tmp, "a") + on(device) + Words{type, "seed=5"});
      Context cpu;
      const Model exact(cpu, s->config.model.config, DType::f32);
      exact.parameters().initialize(5);
      for (const Parameter& p : s->model->parameters().list()) {
        const std::vector<float> master = master_of(*s, p);
        expect_same_bits(master, exact.parameters().read_value(exact.parameters().at(p.name)), p.name);
        if (p.value.dtype != DType::bf16) continue;
        const std::vector<float> weight = s->model->parameters().read_value(p);
        for (std::size_t i = 0; i < weight.size(); ++i) ASSERT_EQ(weight[i], to_float(split(master[i]).value)) << p.name;
      }
    }
}

TEST(Masters, BeginWithEveryBitOfAnFp32Checkpoint) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=2", "dtype=fp32"});
  const fs::path checkpoint = tmp.path / "a" / "checkpoint-2";
  for (const Device device : test::devices()) {
    const auto s = open({"model.init=" + checkpoint.string(), "data.train=" + tmp / "train.tok", "data.seq_len=16", "dtype=bf16",
                         "device=" + name_of(device), "run.dir=" + tmp / "b-" + name_of(device)});
    const SafeTensors file(checkpoint / "model.safetensors");
    for (const Parameter& p : s->model->parameters().list()) expect_same_bits(master_of(*s, p), read_tensor(file, p.name, p.size), p.name);
  }
}

TEST(Optimizers, AnUnknownOneIsRefusedByName) {
  const Folder tmp;
  EXPECT_EQ(optimizer_names(), std::vector<std::string>{"adamw"});
  EXPECT_EQ(error_of(small_run(tmp, "a") + Words{"train.optimizer=sgd"}), "train.optimizer must be one of adamw, got \"sgd\"");
  EXPECT_EQ(error_of(small_run(tmp, "a") + Words{"train.optimizer=3"}), "train.optimizer must be one of adamw, got 3");
}

TEST(TokenRows, TheSeedDecidesTheOrderOfTrainingAndNotOfValidation) {
  const Folder tmp;
  const std::vector<DataPart> parts = {{tmp / "train.tok", 0}};
  const auto rows = [&](const char* seed, bool training, std::int64_t from) {
    const RunConfig config = config_of(small_run(tmp, "a") + Words{seed});
    const auto source = training ? training_rows(parts, config) : validation_rows(parts, config);
    source->start(from);
    std::vector<std::int32_t> tokens;
    for (std::int64_t n = from; n < 4; ++n) {
      const HostBatch b = source->next();
      tokens.insert(tokens.end(), b.tokens.begin(), b.tokens.end());
    }
    return tokens;
  };
  small_run(tmp, "a");
  const auto first = rows("seed=1", true, 0);
  EXPECT_EQ(first, rows("seed=1", true, 0));
  EXPECT_NE(first, rows("seed=2", true, 0));
  EXPECT_EQ(rows("seed=1", false, 0), rows("seed=2", false, 0));
  const auto later = rows("seed=1", true, 2);  // seeking gives what counting gives
  EXPECT_TRUE(std::equal(later.rbegin(), later.rend(), first.rbegin()));
}

// Rewrites a checkpoint's training state, so that the checkpoint still verifies.
void change_state(const fs::path& run, std::int64_t step, const std::function<void(Json&)>& change) {
  RunDir dir(run);
  const fs::path old = dir.checkpoint(step);
  dir.write_checkpoint(step, [&](const fs::path& to) {
    for (const std::string& name : files_in(old))
      if (name != "manifest.json") fs::copy_file(old / name, to / name);
    Json state = Json::parse(read_text(to / "trainer_state.json"));
    change(state);
    write_synced(to / "trainer_state.json", state.dump());
  });
}

TEST(TrainingState, OneOfBeforeAKeyCameGoesOnToTheSameBits) {
  const Folder tmp;
  for (const char* dir : {"a", "b"}) train(small_run(tmp, dir) + Words{"train.steps=8", "train.keep=1"});
  change_state(tmp.path / "b", 8, [](Json& s) { s["bhyt"]["mathematics"].erase("train.optimizer"); });
  for (const char* dir : {"a", "b"}) train(small_run(tmp, dir) + Words{"resume=must", "train.keep=1"});
  expect_same_runs(tmp.path / "a", tmp.path / "b");
}

TEST(TrainingState, AMissingTypeIsADifferenceAndNoCrash) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=4", "dtype=bf16"});
  change_state(tmp.path / "a", 4, [](Json& s) { s["bhyt"]["mathematics"].erase("run.dtype"); });
  const Words more = small_run(tmp, "a") + Words{"resume=must", "train.steps=5", "dtype=bf16"};
  says(error_of(more), "run.dtype was \"auto\", now is \"bf16\"");
  EXPECT_EQ(train(more, {.force = true}).step, 5);
}

TEST(TrainingState, WhatNoRunWroteIsRefusedInWords) {
  const Folder tmp;
  const auto hostile = [&](const std::function<void(Json&)>& change) {
    fs::remove_all(tmp.path / "a");
    fs::copy(tmp.path / "good", tmp.path / "a", fs::copy_options::recursive);
    change_state(tmp.path / "a", 4, change);
    return error_of(small_run(tmp, "a") + Words{"resume=must"}, {.force = true});
  };
  train(small_run(tmp, "good") + Words{"train.steps=4"});
  for (const Json& bad : {Json(3), Json::array(), Json(), Json("x")}) {
    says(hostile([&](Json& s) { s["bhyt"] = bad; }), "not a training state of this program");
    says(hostile([&](Json& s) { s["bhyt"]["mathematics"] = bad; }), "not a training state of this program");
    says(hostile([&](Json& s) { s["bhyt"]["progress"] = bad; }), "not a training state of this program");
  }
  for (const Json& bad : {Json(-1), Json(1e300), Json(2.5), Json("4"), Json(), Json(std::uint64_t{1} << 63)})
    for (const char* key : {"step", "updates", "skipped_in_row", "loss_count", "best_step"})
      says(hostile([&](Json& s) { s["bhyt"]["progress"][key] = bad; }), "not a training state of this program");
  says(hostile([](Json& s) { s["log_history"] = 3; }), "expected log_history to be a list, got 3");
  says(hostile([](Json& s) { s = Json::array(); }), "trainer_state.json is damaged");
}

TEST(TrainingState, AResolvedFileThatIsNoneDoesNotCrash) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=4"});
  for (const char* text : {"run: 3\ntrain: [1]\n", "run: {dtype: 5}\ntrain: {batch: 6, micro_batch: x}\n", "7\n", "run:\ntrain:\n"}) {
    write_synced(tmp.path / "a" / "resolved.yaml", text);
    EXPECT_EQ(train(small_run(tmp, "a") + Words{"resume=must", "train.steps=4"}).step, 4) << text;
  }
  write_synced(tmp.path / "a" / "resolved.yaml", "run: {dtype: fp17}\n");
  says(error_of(small_run(tmp, "a") + Words{"resume=must"}), "resolved.yaml: run.dtype must be fp32 or bf16, got fp17");
}

TEST(RunJson, SaysWhereARunIsMade) {
  const Folder tmp;
  const Words a = small_run(tmp, "a") + Words{"threads=2", "dtype=bf16"};
  train(a + Words{"train.steps=4"});
  const Json first = Json::parse(read_text(tmp.path / "a" / "run.json"));
  EXPECT_EQ(first["device"], "cpu");
  EXPECT_EQ(first["dtype"], "bf16");
  EXPECT_EQ(first["threads"], 2);
  EXPECT_EQ(first["optimizer"], "adamw");
  for (const char* key : {"version", "commit", "machine", "memory", "model", "norm", "started"})
    EXPECT_TRUE(first.contains(key) && first[key].is_string() && first[key] != "") << key;
  EXPECT_FALSE(first.contains("resumed"));
  Json earlier = first;
  earlier["started"] = "2020-01-01T00:00:00Z";
  write_synced(tmp.path / "a" / "run.json", earlier.dump());
  train(a + Words{"resume=must", "train.steps=5", "threads=1"});
  const Json second = Json::parse(read_text(tmp.path / "a" / "run.json"));
  EXPECT_EQ(second["started"], "2020-01-01T00:00:00Z");
  EXPECT_EQ(second["threads"], 1);
  EXPECT_TRUE(second.contains("resumed"));
}

// By what a report knows whether losses compare.
TEST(RunJson, NamesTokenizerAndValidationData) {
  const Folder tmp;
  const auto facts = [&](const std::string& dir, const Words& more) {
    train(small_run(tmp, dir) + Words{"train.steps=1"} + more);
    return Json::parse(read_text(tmp.path / dir / "run.json"));
  };
  const Json first = facts("a", {});
  EXPECT_EQ(first["validation_data"].get<std::string>().size(), 16u);
  EXPECT_FALSE(first.contains("tokenizer"));  // the files name none
  fs::copy_file(tmp.path / "valid.tok", tmp.path / "copy.tok");
  EXPECT_EQ(facts("b", {"data.valid=" + tmp / "copy.tok", "train.batch=5"})["validation_data"], first["validation_data"]);
  write_language(tmp / "valid.tok", 1500, 3);  // other tokens under the same name
  EXPECT_NE(facts("c", {})["validation_data"], first["validation_data"]);
  EXPECT_FALSE(facts("d", {"data.valid=null"}).contains("validation_data"));
  const auto bytes = make_byte_tokenizer();
  write_language(tmp / "bytes.tok", 2000, 4, meta_of(*bytes));
  const Json packed = facts("e", {"data.train=" + tmp / "bytes.tok", "data.valid=null"});
  EXPECT_EQ(packed["tokenizer"], fmt::format("{:016x}", bytes->fingerprint()));
}

}  // namespace
}  // namespace bhyt::train
