// The shell around the commands, and the commands forward, generate and bench, through the program itself.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "model/safetensors.h"
#include "tests/cli/process.h"
#include "train/config.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

TEST(Shell, HelpListsOnlyCommandsThatAnswer) {
  const Outcome help = bhyt({"--help"});
  ASSERT_EQ(help.code, 0);
  std::istringstream lines(help.out);
  std::set<std::string> commands;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ") || line[2] < 'a' || line[2] > 'z' || line.starts_with("  help")) continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    for (const auto& asked : {bhyt({name, "--help"}), bhyt({"help", name})}) {
      EXPECT_EQ(asked.code, 0) << name << asked.err;
      EXPECT_TRUE(has(asked.out, "bhyt " + name)) << asked.out;
    }
    EXPECT_TRUE(commands.insert(name).second) << name << " stands there twice";
  }
  EXPECT_GE(commands.size(), 9u);
}

TEST(Shell, VersionNamesWhatWasBuilt) {
  const Outcome v = bhyt({"--version"});
  EXPECT_EQ(v.code, 0);
  for (const char* part : {"bhyt 0.", "compiler", "backends  cpu (", "devices"}) EXPECT_TRUE(has(v.out, part)) << v.out;
}

TEST(Shell, WrongUsageIsTwoAndSaysWhereToTurn) {
  const Outcome none = bhyt({});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(none.out.empty());
  const Outcome typo = bhyt({"genrate"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_TRUE(has(typo.err, "did you mean generate?")) << typo.err;
  EXPECT_EQ(bhyt({"help", "nonsense"}).code, 2);
  EXPECT_EQ(bhyt({"forward", "--no-such-flag"}).code, 2);
  EXPECT_EQ(bhyt({"generate"}).code, 2);
  EXPECT_EQ(bhyt({"generate", "--model", "x", "--temperature", "warm"}).code, 2);
  EXPECT_EQ(bhyt({"forward", "--model", "x", "--tokens", "y", "--out", "z", "dtype=fp8"}).code, 2);
  EXPECT_EQ(bhyt({"forward", "--model", "x", "--tokens", "y", "--out", "z", "device=tpu"}).code, 2);
  EXPECT_EQ(bhyt({"forward", "--model", "x", "--tokens", "y", "--out", "z", "threads=0"}).code, 2);
}

TEST(Shell, AnUnknownFlagNamesTheNearestOne) {
  const auto said = [](const std::vector<std::string>& args) {
    const Outcome o = bhyt(args);
    EXPECT_EQ(o.code, 2) << o.err;
    return o.err;
  };
  EXPECT_EQ(said({"tokenizer", "train", "--vocab-size", "300", "--out", "t", "f.txt"}),
            "error: unknown flag --vocab-size (did you mean --vocab?); see bhyt tokenizer train --help\n");
  EXPECT_EQ(said({"data", "pack", "--tokeniser=bytes", "--out", "t", "f.txt"}),
            "error: unknown flag --tokeniser (did you mean --tokenizer?); see bhyt data pack --help\n");
  EXPECT_EQ(said({"generate", "--modle", "x"}), "error: unknown flag --modle (did you mean --model?); see bhyt generate --help\n");
  EXPECT_EQ(said({"forward", "--no-such-flag"}), "error: unknown flag --no-such-flag; see bhyt forward --help\n");
  EXPECT_EQ(said({"tokenizer", "tarin"}), "error: unexpected command tarin (did you mean train?); see bhyt tokenizer --help\n");
  EXPECT_EQ(said({"data", "info", "a", "b"}), "error: unexpected argument b; see bhyt data info --help\n");
  EXPECT_EQ(said({"data", "pack", "--out", "t", "f.txt"}), "error: --tokenizer is required (see bhyt data pack --help)\n");
  EXPECT_EQ(said({"generate", "--temp", "3"}), "error: unknown flag --temp (did you mean --temperature?); see bhyt generate --help\n");
  EXPECT_EQ(said({"info", "--hel", "x"}), "error: unknown flag --hel; see bhyt info --help\n");
  EXPECT_EQ(said({"forward", "--dtype=bf16"}), "error: unknown flag --dtype (keys have no dashes: dtype=bf16); see bhyt forward --help\n");
  EXPECT_EQ(said({"help", "tokenizer", "nonsense"}), "error: unexpected command nonsense; see bhyt tokenizer --help\n");
}

TEST(Shell, AWrongValueSaysWhatWasExpected) {
  const auto said = [](const std::vector<std::string>& args) {
    const Outcome o = bhyt(args);
    EXPECT_EQ(o.code, 2) << o.err;
    return o.err;
  };
  EXPECT_EQ(said({"generate", "--model", "x", "--temperature", "warm"}),
            "error: --temperature: expected a number, got warm (see bhyt generate --help)\n");
  EXPECT_EQ(said({"generate", "--model", "x", "--max-tokens", "3.5"}),
            "error: --max-tokens: expected a whole number, got 3.5 (see bhyt generate --help)\n");
  EXPECT_EQ(said({"data", "synth", "--out", "x", "--tokens", "1K", "--seed", "-1"}),
            "error: --seed: expected a whole number from 0, got -1 (see bhyt data synth --help)\n");
  EXPECT_EQ(said({"generate", "--model"}), "error: --model has no value (see bhyt generate --help)\n");
  EXPECT_EQ(said({"bench", "--reps", "0"}), "error: --reps: expected a whole number from 1 to 1000, got 0 (see bhyt bench --help)\n");
  EXPECT_EQ(said({"data", "pack", "--threads", "-1", "--tokenizer", "bytes", "--out", "t", "f.txt"}),
            "error: --threads: expected a whole number from 0 to 4096, got -1 (see bhyt data pack --help)\n");
  EXPECT_EQ(said({"tokenizer"}), "error: expected a command (see bhyt tokenizer --help)\n");
}

TEST(Shell, HelpOfACommandListsItsOptions) {
  for (const auto& asked : {bhyt({"help", "tokenizer", "train"}), bhyt({"tokenizer", "train", "--help"})}) {
    EXPECT_EQ(asked.code, 0);
    EXPECT_TRUE(has(asked.out, "--vocab INT REQUIRED")) << asked.out;
    EXPECT_FALSE(has(asked.out, "--no-special")) << asked.out;
  }
  const Outcome all = bhyt({"help", "tokenizer"});
  EXPECT_TRUE(has(all.out, "--vocab INT REQUIRED") && has(all.out, "--no-special")) << all.out;
}

TEST(Shell, FailedWorkIsOne) {
  const TempFolder empty;
  const Outcome o = bhyt({"forward", "--model", empty.path.string(), "--tokens", "t", "--out", "o"});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(has(o.err, "error: ")) << o.err;
  EXPECT_TRUE(o.out.empty());
}

// What the file system says reaches people as path and reason.
TEST(Shell, NoForeignExceptionIsShown) {
  const std::string name(300, 'a');
  const Outcome o = bhyt({"info", name});
  EXPECT_EQ(o.code, 1);
  EXPECT_EQ(o.err, "error: " + name + ": File name too long\n");
}

TEST(Shell, AFullDiskBehindStdoutIsNoSuccess) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Outcome full = bhyt({"--help"}, "", ">/dev/full"), closed = bhyt({"--help"}, "", ">&-");
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, "error: could not write to stdout\n");
  EXPECT_EQ(closed.code, 1);
  const Outcome lines =
      bhyt({"bench", "decode", "--reps", "1", "model.preset=tiny", "train.batch=1", "data.seq_len=8", "device=cpu", "norm.method=rmsnorm"},
           "", ">/dev/full");
  EXPECT_EQ(lines.code, 1);  // though what is flushed last may be nothing
  EXPECT_TRUE(has(lines.err, "could not write to stdout")) << lines.err;
}

// Messages that cannot be written are lost, and nothing else.
TEST(Shell, NobodyNeedsToReadTheMessages) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* nowhere : {"2>/dev/full", "2>&-"}) {
    EXPECT_EQ(bhyt({}, "", nowhere).code, 2) << nowhere;
    EXPECT_EQ(bhyt({"info", "--nonsense"}, "", nowhere).code, 2) << nowhere;
    EXPECT_EQ(bhyt({"info", "no/such/thing"}, "", nowhere).code, 1) << nowhere;
  }
}

TEST(Configs, AllOfThemAreValid) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(BHYT_TEST_DIR).parent_path() / "configs")) {
    const bool tunes = entry.path().stem().string().starts_with("sft-");
    train::Json tree = train::config_tree(entry.path().string(), {});
    if (tunes) {  // what it starts from is still to be trained
      EXPECT_TRUE(tree["model"].erase("init")) << entry.path();
    }
    const train::RunConfig c = train::read_run_config(tree, Verify::yes, tunes ? train::Work::fine_tuning : train::Work::pretraining);
    EXPECT_NO_THROW(plan_norms(c.model.config.norm, c.model.config.layers, c.model.config.d, c.model.config.eps)) << entry.path();
    const std::string name = entry.path().stem().string();
    EXPECT_EQ(c.run.dir, "runs/" + (name.starts_with("demo-") ? "demo/" + name.substr(5) : name));
    ++count;
  }
  EXPECT_GE(count, 20);
}

std::vector<float> values(const SafeTensor& t) {
  std::vector<float> v(static_cast<std::size_t>(t.size()));
  SafeTensors::to_float(t, 0, t.size(), v.data());
  return v;
}

// A reference's gradients may be so ill-conditioned that fp32 itself, in any program, is further off than the usual bound.
double tolerance(const fs::path& fixture) { return fixture.filename() == "seednorm" ? 2e-3 : 5e-5; }

void compare_with_fixture(const fs::path& fixture) {
  const TempFolder folder;
  const std::string out = (folder.path / "out.safetensors").string(), io = (fixture / "io.safetensors").string();
  const Outcome run = bhyt({"forward", "--model", fixture.string(), "--tokens", io, "--out", out, "--grads"});
  ASSERT_EQ(run.code, 0) << run.err;
  const SafeTensors ours(out), theirs(io);
  for (const auto& [name, expected] : theirs.tensors()) {
    if (name == "tokens" || name == "greedy") continue;
    const SafeTensor* got = ours.find(name);
    ASSERT_TRUE(got) << fixture << " " << name;
    ASSERT_EQ(got->shape, expected.shape) << name;
    const std::vector<float> a = values(*got), b = values(expected);
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(b[i])));
      error = std::max(error, std::fabs(static_cast<double>(a[i]) - b[i]));
    }
    EXPECT_LE(error, tolerance(fixture) * largest) << fixture << " " << name;
  }
}

void compare_greedy(const fs::path& fixture) {
  const SafeTensors io(fixture / "io.safetensors");
  const SafeTensor& greedy = io.at("greedy");  // int64 [1,32]: 16 of prompt, 16 new
  std::vector<std::int64_t> ids(static_cast<std::size_t>(greedy.size()));
  std::copy_n(static_cast<const char*>(greedy.data), 8 * ids.size(), reinterpret_cast<char*>(ids.data()));
  std::string prompt;
  for (std::size_t i = 0; i < 16; ++i) prompt += std::to_string(ids[i]) + (i % 2 ? "," : " ");
  const Outcome run = bhyt({"generate", "--model", fixture.string(), "--ids", "--prompt", prompt, "--max-tokens", "16"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(Json::parse(run.out).get<std::vector<std::int64_t>>(), std::vector<std::int64_t>(ids.begin() + 16, ids.end())) << fixture;
}

TEST(Forward, AgreesWithEveryFixture) {
  if (data_folder().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  int count = 0;
  for (const char* family : {"reference", "methods"})
    for (const auto& entry : fs::directory_iterator(data_folder().parent_path() / "fixtures" / family)) {
      compare_with_fixture(entry.path());
      compare_greedy(entry.path());
      ++count;
    }
  EXPECT_GE(count, 6);
}

// One small trained run that the tests below share.
class SmallRun : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    const Outcome made = bhyt({"data", "synth", "--out", at("data"), "--tokens", "20000", "--vocab", "200"});
    ASSERT_EQ(made.code, 0) << made.err;
    const Outcome trained =
        bhyt({"pretrain", "model.d=16", "model.layers=2", "model.heads=2", "model.mlp=24", "data.train=" + at("data/train.tok"),
              "data.valid=" + at("data/valid.tok"), "data.seq_len=32", "train.steps=3", "train.batch=4", "run.dir=" + at("run")});
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_TRUE(trained.out.empty()) << trained.out;
  }
  static void TearDownTestSuite() { delete folder_; }

 protected:
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static std::string checkpoint() { return at("run/checkpoint-3"); }
  static std::vector<int> new_ids(std::vector<std::string> more) {
    std::vector<std::string> args{"generate", "--model", checkpoint(), "--ids", "--prompt", "[1, 2, 3]", "--max-tokens", "12"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome run = bhyt(args);
    EXPECT_EQ(run.code, 0) << run.err;
    return Json::parse(run.out).get<std::vector<int>>();
  }

 private:
  static inline TempFolder* folder_ = nullptr;
};

TEST_F(SmallRun, GeneratesTheSameWithTheSameSeed) {
  const auto seeded = [](const char* seed) { return new_ids({"--temperature", "1", "--top-k", "150", "--seed", seed}); };
  EXPECT_EQ(new_ids({}).size(), 12u);
  EXPECT_EQ(new_ids({}), new_ids({"--top-k", "1", "--temperature", "2"}));
  EXPECT_EQ(seeded("1"), seeded("1"));
  EXPECT_NE(seeded("1"), seeded("2"));
  EXPECT_EQ(new_ids({"threads=1"}), new_ids({"threads=2"}));
}

TEST_F(SmallRun, GenerateReadsItsPromptFromAFileOrStdin) {
  std::ofstream(at("prompt.txt")) << "1,2,3\n";
  const std::vector<std::string> common{"generate", "--model", checkpoint(), "--ids", "--max-tokens", "5"};
  auto from_file = common, both = common;
  from_file.insert(from_file.end(), {"--prompt-file", at("prompt.txt")});
  both.insert(both.end(), {"--prompt-file", at("prompt.txt"), "--prompt", "1"});
  EXPECT_EQ(bhyt(from_file).out, bhyt(common, "1 2 3").out);
  EXPECT_EQ(bhyt(both).code, 2);
  EXPECT_EQ(bhyt(common, "").code, 2);
  EXPECT_EQ(bhyt(common, "1 two").code, 2);
  EXPECT_EQ(bhyt(common, "100000").code, 2);
  EXPECT_EQ(bhyt(common, "-1").code, 2);
  EXPECT_EQ(bhyt({"generate", "--model", checkpoint(), "--ids", "--prompt-file", at("none.txt")}).code, 1);
}

TEST_F(SmallRun, ForwardRefusesTokensThatDoNotFit) {
  const auto with = [&](std::int64_t id, std::vector<std::int64_t> shape, const std::string& dtype = "I64") {
    std::vector<std::int64_t> ids(8, id);
    write_safetensors(at("tokens.safetensors"), {{"tokens", dtype, shape, [&](const auto& put) { put(ids.data(), 64); }}});
    return bhyt({"forward", "--model", checkpoint(), "--tokens", at("tokens.safetensors"), "--out", at("out.safetensors")}).code;
  };
  EXPECT_EQ(with(1, {2, 4}), 0);
  EXPECT_FALSE(SafeTensors(at("out.safetensors")).find("grad.model.norm.weight"));
  fs::remove(at("out.safetensors"));
  EXPECT_EQ(with(200, {2, 4}), 1);
  EXPECT_EQ(with(-1, {2, 4}), 1);
  EXPECT_EQ(with(1, {8, 1}), 1);
  EXPECT_EQ(with(1, {8}), 1);
  EXPECT_EQ(with(1, {2, 4}, "F64"), 1);
  EXPECT_FALSE(fs::exists(at("out.safetensors")));
}

TEST_F(SmallRun, MoreTokensThanMemoryAreNamed) {
  const Outcome o = bhyt({"generate", "--model", checkpoint(), "--ids", "--prompt", "1", "--max-tokens", "1000B", "device=cpu"});
  EXPECT_EQ(o.code, 2);
  EXPECT_TRUE(has(o.err, "a prompt of 1 tokens and 1000000000000 new ones are too long: the memory for keys and values holds ")) << o.err;
}

TEST(Bench, WhatDoesNotFitIsRefusedBeforeAnyWork) {
  for (const char* test : {"train", "gemm", "attention", "prompt", "decode"}) {
    const Outcome o = bhyt({"bench", "norm", test, "train.batch=100M", "data.seq_len=1B", "device=cpu", "model.preset=tiny", "dtype=fp32"});
    EXPECT_EQ(o.code, 2) << o.err;
    EXPECT_TRUE(has(o.err, std::string("bench ") + test + " needs ")) << o.err;
    EXPECT_TRUE(has(o.err, "iB free; lower train.batch or data.seq_len (now 100000000 and 1000000000), or take a smaller model")) << o.err;
    EXPECT_EQ(o.out, "");  // nor was the norm measured
  }
}

TEST(Bench, SeveralBatchesAreSeveralMeasurements) {
  const Outcome run = bhyt({"bench", "decode", "prompt", "--json", "--reps", "1", "model.preset=tiny", "train.batch=1,3", "data.seq_len=40",
                            "device=cpu", "dtype=fp32", "norm.method=rmsnorm"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<std::string> tests;
  for (const Json& r : Json::parse(run.out)) tests.push_back(r.at("test"));
  EXPECT_EQ(tests, (std::vector<std::string>{"decode tiny 1 after 40 rmsnorm", "decode tiny 3 after 40 rmsnorm", "prompt tiny 1×40 rmsnorm",
                                             "prompt tiny 3×40 rmsnorm"}));
  EXPECT_EQ(bhyt({"bench", "decode", "train.batch=1,", "device=cpu", "model.preset=tiny"}).code, 2);
}

TEST(Bench, GenerationThroughTheEngine) {
  const Outcome run =
      bhyt({"bench",           "generation", "requests",         "--json",    "--reps",     "2", "--warmup",          "1",
            "--timed",         "1",          "--new-tokens",     "5,3,5",     "--requests", "9", "model.preset=tiny", "train.batch=2",
            "data.seq_len=40", "dtype=fp32", "norm.method=bhyt", "device=cpu"});
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<std::string> tests;
  std::vector<double> ms;
  for (const Json& r : Json::parse(run.out)) {
    tests.push_back(r.at("test"));
    ms.push_back(r.at("ms"));
    EXPECT_GT(r.at("tok_s").get<double>(), 0);
    EXPECT_GT(r.at("fraction").get<double>(), 0);
  }
  EXPECT_LT(ms.at(0), ms.at(1));  // shorter answers are the beginning of the longer ones, and take less
  EXPECT_EQ(tests, (std::vector<std::string>{"generation tiny 2×40+3 bhyt", "generation tiny 2×40+5 bhyt",
                                             "requests tiny 9 of up to 40+20 bhyt"}));
  EXPECT_FALSE(has(run.err, "may be worse")) << run.err;
}

// The cells of the table's first line, and of the others.
std::vector<std::vector<std::string>> table_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| ")) continue;
    std::istringstream cells(line.substr(1));
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '|');) {
      const auto first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
      rows.back().push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    }
  }
  return rows;
}

TEST(Bench, ATableLikeLlamaBenchs) {
  const Words asked{"bench",           "decode",     "prompt",   "--markdown", "--reps", "2", "model.preset=tiny",
                    "data.seq_len=40", "device=cpu", "threads=2"};
  const Outcome run = bhyt(asked + Words{"train.batch=1", "dtype=bf16", "norm.method=lns"});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto rows = table_of(run.out);
  ASSERT_EQ(rows.size(), 4u) << run.out;
  EXPECT_EQ(rows[0], (Words{"model", "size", "params", "backend", "threads", "batch", "type", "norm", "test", "t/s"}));
  EXPECT_EQ(rows[1][1], "---------:");
  EXPECT_EQ(Words(rows[2].begin() + 3, rows[2].end() - 1), (Words{"CPU", "2", "1", "bf16", "lns", "tg1 @ d40"}));
  EXPECT_EQ(rows[3][8], "pp40");
  EXPECT_TRUE(has(rows[3][9], " ± ")) << rows[3][9];
  // What is as it always is has no column.
  const Outcome plain = bhyt(asked);
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_EQ(table_of(plain.out)[0], (Words{"model", "size", "params", "backend", "threads", "type", "test", "t/s"}));
}

// Products in int8; the embedding stays in bf16, and a head that is one with it becomes a matrix of its own.
TEST(Bench, TheTableCountsTheBytesThatAreHeld) {
  const Words asked{"bench",          "prompt",        "--json",           "--reps",       "1",
                    "dtype=bf16",     "train.batch=1", "data.seq_len=8",   "device=cpu",   "model.d=64",
                    "model.layers=2", "model.heads=2", "model.kv_heads=2", "model.mlp=96", "model.vocab=128"};
  const auto held = [&](const Words& more) {
    const Outcome run = bhyt(asked + more);
    EXPECT_EQ(run.code, 0) << run.err;
    return Json::parse(run.out).at(0).at("held_bytes").get<std::int64_t>();
  };
  const std::int64_t d = 64, vocab = 128, mlp = 96, norms = 4 * d * 5;
  const std::int64_t layers = 2 * (4 * d * d + 3 * mlp * d), embedding = vocab * d;
  const Words rms{"norm.method=rmsnorm"};
  EXPECT_EQ(held(rms + Words{"model.tied=true"}), 2 * (layers + embedding) + norms);
  EXPECT_EQ(held(rms + Words{"model.tied=false"}), 2 * (layers + 2 * embedding) + norms);
  // A row in int8 has its scale and sum behind it, and begins where vectors do.
  const std::int64_t rows = 2 * (5 * d + 2 * mlp) + vocab;
  const std::int64_t rounded = held(rms + Words{"model.tied=true", "--weights", "int8"});
  EXPECT_EQ(held(rms + Words{"model.tied=false", "--weights", "int8"}), rounded);
  const std::int64_t least = layers + embedding + 2 * embedding + norms + 8 * rows;
  EXPECT_GE(rounded, least);
  EXPECT_LE(rounded, least + 64 * rows);
}

TEST(Bench, FlagsThatNoTestReadsAreRefused) {
  for (const std::vector<std::string>& flag : std::vector<std::vector<std::string>>{{"--weights", "int8"},
                                                                                    {"--no-fold"},
                                                                                    {"--timed", "3"},
                                                                                    {"--warmup", "3"},
                                                                                    {"--new-tokens", "3"},
                                                                                    {"--requests", "3"},
                                                                                    {"--markdown"}}) {
    std::vector<std::string> words{"bench", "gemm", "model.preset=tiny", "device=cpu"};
    words.insert(words.end(), flag.begin(), flag.end());
    const Outcome o = bhyt(words);
    EXPECT_EQ(o.code, 2) << flag[0];
    EXPECT_TRUE(has(o.err, flag[0] + " is for the test")) << o.err;
  }
}

// By name, each once; reading is a limit of single tokens, and of what has something to read.
void expect_parts_of_generation(const Json& r) {
  const std::vector<std::string> reading{"qkv", "attention", "o", "gate/up", "down", "head"},
      others{"embedding", "norm 1", "rope+cache", "norm 2", "swiglu", "last norm"};
  const bool tokens = r.at("test").get<std::string>().starts_with("decode");
  const Json& ms = r.at("breakdown_ms");
  for (const std::string& name : reading) {
    EXPECT_GT(ms.at(name).get<double>(), 0) << name;
    EXPECT_EQ(r.contains("breakdown_bandwidth") && r["breakdown_bandwidth"].contains(name), tokens) << name;
  }
  for (const std::string& name : others) {
    EXPECT_GT(ms.at(name).get<double>(), 0) << name;
    EXPECT_FALSE(r.contains("breakdown_bandwidth") && r["breakdown_bandwidth"].contains(name)) << name;
  }
}

TEST(Bench, EveryTestGivesItsFigures) {
  const Outcome run = bhyt({"bench", "train", "gemm", "attention", "prompt", "decode", "--json", "--reps", "1", "model.preset=tiny",
                            "train.batch=2", "data.seq_len=32"});
  ASSERT_EQ(run.code, 0) << run.err;
  int trained = 0;
  for (const Json& r : Json::parse(run.out)) {
    const std::string test = r.at("test");
    const bool whole = test.starts_with("train") || test.starts_with("prompt") || test.starts_with("decode");
    EXPECT_GT(r.at(whole ? "tok_s" : "tflops").get<double>(), 0) << test;
    EXPECT_GT(r.at("ms").get<double>(), 0) << test;
    EXPECT_GT(r.at("fraction").get<double>(), 0) << test;
    EXPECT_EQ(r.at("device"), "cpu");
    EXPECT_TRUE(r.at("dtype") == "fp32" || r.at("dtype") == "bf16");
    if (test.starts_with("prompt") || test.starts_with("decode")) expect_parts_of_generation(r);
    if (!test.starts_with("train")) continue;
    ++trained;
    EXPECT_GT(r.at("breakdown_ms").at("matrix products").get<double>(), 0);
    EXPECT_GT(r.at("breakdown_ms").at("norm").get<double>(), 0);
  }
  EXPECT_EQ(trained, 2);
  EXPECT_EQ(bhyt({"bench", "nonsense"}).code, 2);
  EXPECT_EQ(bhyt({"bench", "train", "norm.metod=bhyt"}).code, 2);
}

}  // namespace
}  // namespace bhyt::test
