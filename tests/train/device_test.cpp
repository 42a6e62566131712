// What a GPU adds to the trainer: tuning.json, one run on two devices, messages. Runs on every device are in trainer_test.cpp.
#include "core/memory.h"
#include "tests/train/helpers.h"
#include "train/tuning.h"

namespace bhyt::train {
namespace {

const Tuning kTuning{.device = "NVIDIA H200", .library = "cuBLASLt 130002", .algorithms = {{"2x3x4 f32>f32", "00ff"}, {"5x6x7", "12"}}};

TEST(Tuning, SurvivesWritingAndReading) {
  const Folder tmp;
  EXPECT_EQ(parse_tuning(tuning_text(kTuning)), kTuning);
  write_synced(tmp / "tuning.json", tuning_text(kTuning));
  EXPECT_EQ(read_tuning(tmp / "tuning.json", kTuning.device, kTuning.library), kTuning);
  EXPECT_EQ(parse_tuning(tuning_text({})), Tuning{});
}

TEST(Tuning, OfAnotherGpuOrLibraryOrDamagedIsNotUsed) {
  const Folder tmp;
  log::set_quiet(true);
  const fs::path file = tmp / "tuning.json";
  const auto algorithms = [&](const std::string& device, const std::string& library) {
    const Tuning t = read_tuning(file, device, library);
    EXPECT_EQ(t.device, device);
    EXPECT_EQ(t.library, library);
    return t.algorithms.size();
  };
  EXPECT_EQ(algorithms(kTuning.device, kTuning.library), 0u);  // not there yet
  const std::string good = tuning_text(kTuning);
  write_synced(file, good);
  EXPECT_EQ(algorithms(kTuning.device, kTuning.library), 2u);
  EXPECT_EQ(algorithms("NVIDIA A100", kTuning.library), 0u);
  EXPECT_EQ(algorithms(kTuning.device, "cuBLASLt 120000"), 0u);
  for (std::size_t n = 0; n + 1 < good.size(); ++n) {  // cut anywhere
    write_synced(file, good.substr(0, n));
    EXPECT_EQ(algorithms(kTuning.device, kTuning.library), 0u) << n;
  }
  for (const char* text : {"[]", "{\"version\": 2}", "{\"version\": 1, \"device\": 5, \"library\": \"\", \"algorithms\": {}}",
                           "{\"version\": 1, \"device\": \"NVIDIA H200\", \"library\": \"cuBLASLt 130002\", \"algorithms\": {\"a\": 1}}"}) {
    write_synced(file, text);
    EXPECT_EQ(algorithms(kTuning.device, kTuning.library), 0u) << text;
  }
}

TEST(Tuning, ACpuRunLeavesItAlone) {
  const Folder tmp;
  const Words a = small_run(tmp, "a") + Words{"train.steps=1"};
  train(a);
  EXPECT_FALSE(fs::exists(tmp.path / "a" / "tuning.json"));
  write_synced(tmp.path / "a" / "tuning.json", "anything");
  train(a + Words{"train.steps=2", "resume=auto"});
  EXPECT_EQ(read_text(tmp.path / "a" / "tuning.json"), "anything");
}

TEST(Tuning, IsKeptInTheRunDirectory) {
  BHYT_SKIP_WITHOUT_GPU();
  const Folder tmp;
  const Words gpu = on(Device::cuda(0)), a = small_run(tmp, "a") + gpu;
  train(a);
  const fs::path file = tmp.path / "a" / "tuning.json";
  const Tuning first = parse_tuning(read_text(file));
  EXPECT_EQ(first.device, cuda::describe(0));
  EXPECT_GT(first.algorithms.size(), 5u);
  // Given to a new run, it is the one that is used; damaged, it is replaced by a good one.
  fs::create_directories(tmp.path / "b");
  fs::copy_file(file, tmp.path / "b" / "tuning.json");
  train(small_run(tmp, "b") + gpu);
  expect_same_runs(tmp.path / "a", tmp.path / "b");
  EXPECT_EQ(parse_tuning(read_text(tmp.path / "b" / "tuning.json")).algorithms, first.algorithms);
  Tuning wrong = first;
  for (auto& [shape, algorithm] : wrong.algorithms) algorithm.back() = 'x';
  for (const std::string& text : {std::string("{"), tuning_text(wrong)}) {
    const fs::path c = tmp.path / (text.size() == 1 ? "c" : "d");
    fs::create_directories(c);
    write_synced(c / "tuning.json", text);
    EXPECT_EQ(train(small_run(tmp, c.filename().string()) + gpu).step, 12);
    EXPECT_EQ(parse_tuning(read_text(c / "tuning.json")).device, first.device);
  }
}

TEST(Devices, RecomputeChangesNoBit) {
  for (const Device device : test::devices())
    for (const char* type : {"dtype=fp32", "dtype=bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(device), type));
      const Folder tmp;
      const Words words = on(device) + Words{type, "train.steps=6"};
      train(small_run(tmp, "none") + words);
      for (const std::string how : {"norm", "swiglu", "block"}) {
        train(small_run(tmp, how) + words + Words{"train.recompute=" + how});
        expect_same_runs(tmp.path / "none", tmp.path / how);
      }
    }
}

// The lines of training of a run, by step.
std::map<std::int64_t, double> losses_of(const fs::path& run) {
  std::map<std::int64_t, double> out;
  for (const auto& line : metrics_of(run))
    if (line.contains("loss")) out[line["step"]] = line["loss"];
  return out;
}

TEST(Devices, TwoHundredStepsGiveTheSameCurve) {
  BHYT_SKIP_WITHOUT_GPU();
  for (const char* method : {"norm.method=bhyt", "norm.method=rmsnorm"}) {
    const Folder tmp;
    const Words words{method, "train.steps=200", "train.log_every=1", "train.lr=2e-3", "train.eval_every=0", "train.save_every=0"};
    train(small_run(tmp, "cpu") + on(Device::cpu()) + words);
    train(small_run(tmp, "cuda") + on(Device::cuda(0)) + words);
    const auto cpu = losses_of(tmp.path / "cpu"), gpu = losses_of(tmp.path / "cuda");
    ASSERT_EQ(cpu.size(), 200u);
    double most = 0;
    for (const auto& [step, loss] : cpu) most = std::max(most, std::fabs(loss - gpu.at(step)));
    EXPECT_LT(most, 1e-3) << method;
    EXPECT_LT(cpu.at(200), cpu.at(1) - 1);
  }
}

TEST(Devices, ARunMovesFromOneToTheOther) {
  BHYT_SKIP_WITHOUT_GPU();
  for (const char* type : {"dtype=fp32", "dtype=bf16"}) {
    SCOPED_TRACE(type);
    const Folder tmp;
    const Words words = {"norm.correction=eta", "train.log_every=1", type};
    train(small_run(tmp, "cpu") + words);
    const Words moved = small_run(tmp, "moved") + words + Words{"resume=auto"};
    const Words gpu = {"device=cuda"};
    EXPECT_THROW(train(moved + gpu, crash_before(5)), Killed);
    EXPECT_THROW(train(moved, crash_before(9)), Killed);
    EXPECT_EQ(train(moved + gpu).step, 12);
    const auto expected = losses_of(tmp.path / "cpu"), got = losses_of(tmp.path / "moved");
    ASSERT_EQ(got.size(), 12u);
    for (const auto& [step, loss] : expected) EXPECT_NEAR(got.at(step), loss, type[8] == '3' ? 1e-4 : 2e-2) << step;
  }
}

TEST(Devices, OutOfMemorySaysWhatHelps) {
  BHYT_SKIP_WITHOUT_GPU();
  const Folder tmp;
  const std::string message = error_of(small_run(tmp, "a") + on(Device::cuda(0)) + Words{"train.batch=10000000"} +
                                       Words{"train.micro_batch=10000000", "data.seq_len=512"});
  for (const char* part : {"needs", "free", "train.micro_batch", "train.recompute"}) says(message, part);
  EXPECT_EQ(train(small_run(tmp, "b") + on(Device::cuda(0))).step, 12);  // nothing is left behind
}

}  // namespace
}  // namespace bhyt::train
