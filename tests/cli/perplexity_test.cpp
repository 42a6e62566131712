// bhyt perplexity as a user runs it, on a small model over bytes.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "tests/cli/mpi.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

class PerplexityCommand : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::ofstream(folder_->path / "texts.jsonl") << "{\"text\": \"mary had a little lamb\"}\n{\"text\": \"its fleece was white\"}\n";
    std::ofstream(folder_->path / "one.txt") << "and everywhere that mary went";
    setenv("BHYT_CACHE", at("cache").c_str(), 1);
    const Outcome trained = bhyt({"pretrain", "model.d=16", "model.layers=1", "model.heads=2", "model.mlp=16", "model.max_positions=32",
                                  "data.seq_len=16", "train.batch=2", "train.steps=1", "threads=1", "device=cpu",
                                  "data.train=" + at("texts.jsonl"), "run.dir=" + at("run"), "--quiet"});
    unsetenv("BHYT_CACHE");
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

 protected:
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static Words words(const Words& more) { return Words{"perplexity", "--model", at("run"), "device=cpu", "threads=1"} + more; }
  static Outcome run(const Words& more) { return bhyt(words(more)); }
  static Json json(const Words& more) {
    const Outcome out = run(Words{"--json"} + more);
    EXPECT_EQ(out.code, 0) << out.err;
    return Json::parse(out.out, nullptr, false);
  }
  static void expect_error(int code, const Words& more, const std::string& message) {
    const Outcome out = run(more);
    EXPECT_EQ(out.code, code) << out.err;
    EXPECT_EQ(out.out, "");
    EXPECT_NE(out.err.find(message), std::string::npos) << out.err;
  }
  static std::string write(const std::string& name, const std::string& text) {
    std::ofstream(at(name), std::ios::binary) << text;
    return at(name);
  }
  static std::vector<Json> lines(const std::string& file) {
    std::vector<Json> all;
    std::istringstream in(read_text(file));
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }

  static inline TempFolder* folder_ = nullptr;
};

TEST_F(PerplexityCommand, WindowsAreAsLongAsTheModelReads) {
  const Json j = json({at("texts.jsonl"), at("one.txt")});
  EXPECT_EQ(j["documents"], 3);
  EXPECT_EQ(j["tokens"], 22 + 20 + 29);
  EXPECT_EQ(j["scored"], 21 + 19 + 28);
  EXPECT_EQ(j["windows"], 3);
  EXPECT_EQ(j["bytes"], j["scored"]);
  EXPECT_EQ(j["window"], 32);
  EXPECT_EQ(j["stride"], 32);
  const double nll = j["nll"], ppl = j["ppl"];
  EXPECT_NEAR(ppl, std::exp(nll), 1e-9 * ppl);
  EXPECT_NEAR(j["bits_per_byte"].get<double>(), nll / std::log(2.0), 1e-9 * nll);  // a byte is a token
  EXPECT_NEAR(j["ppl_stderr"].get<double>(), ppl * j["nll_stderr"].get<double>(), 1e-9 * ppl);
  EXPECT_EQ(json({"--max-length", "16", at("one.txt")})["window"], 16);
  EXPECT_EQ(json({"--window", "8", at("one.txt")})["scored"], 29 - 4);
  EXPECT_EQ(json({"--window", "8", "--stride", "2", at("one.txt")})["scored"], 28);
  EXPECT_EQ(json({"--limit", "1", at("texts.jsonl")})["documents"], 1);
  EXPECT_EQ(json({"--key", "page", write("pages.jsonl", "{\"page\": \"mary\"}")})["tokens"], 4);
  EXPECT_EQ(j["bos"], true);
  EXPECT_EQ(json({"--no-bos", at("one.txt")})["bos"], false);
  EXPECT_NEAR(json({"--weights", "int8", at("texts.jsonl"), at("one.txt")})["nll"].get<double>(), nll, 0.05);
  EXPECT_EQ(json({write("mary=lamb.txt", "mary")})["tokens"], 4);
}

TEST_F(PerplexityCommand, WithoutJsonThreeLines) {
  const Outcome out = run({"--mode", "packed", "--window", "22", at("texts.jsonl")});
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_TRUE(out.out.starts_with("2 texts, 44 tokens, of which 42 are scored in 2 blocks of 22\nppl  ")) << out.out;
  EXPECT_EQ(std::count(out.out.begin(), out.out.end(), '\n'), 3) << out.out;
  EXPECT_NE(out.out.find(" nats per token, "), std::string::npos) << out.out;
  EXPECT_NE(out.out.find(" bits per byte\n"), std::string::npos) << out.out;
}

TEST_F(PerplexityCommand, SamplesHaveALineForEachTextOrBlock) {
  const Json all = json({"--window", "8", "--stride", "4", "--samples", at("samples.jsonl"), at("texts.jsonl"), write("x.txt", "x")});
  const std::vector<Json> texts = lines(at("samples.jsonl"));
  ASSERT_EQ(texts.size(), 3u);
  double sum = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i]["doc_id"], i);
    EXPECT_EQ(texts[i]["file"], at("texts.jsonl"));
    EXPECT_EQ(texts[i]["line"], i + 1);
    sum += texts[i]["nll"].get<double>() * texts[i]["scored"].get<double>();
  }
  EXPECT_NEAR(sum, all["nll"].get<double>() * all["scored"].get<double>(), 1e-6 * sum);
  EXPECT_EQ(texts[2]["scored"], 0);
  for (const char* key : {"nll", "ppl", "nll_stderr", "ppl_stderr", "bits_per_byte"}) EXPECT_TRUE(texts[2][key].is_null()) << key;

  expect_error(2, {"--samples", at("samples.jsonl"), at("texts.jsonl")}, at("samples.jsonl"));
  EXPECT_EQ(lines(at("samples.jsonl")).size(), 3u);
  json({"--mode", "packed", "--window", "20", "--samples", at("samples.jsonl"), "--force", at("texts.jsonl")});
  const std::vector<Json> blocks = lines(at("samples.jsonl"));
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[1]["block"], 1);
  EXPECT_EQ(blocks[1]["tokens"], 20);
  expect_error(2, {"--samples", at("texts.jsonl"), "--force", at("texts.jsonl")}, "is an input: writing to it would destroy it");
}

TEST_F(PerplexityCommand, BadUsageSaysWhatIsMeant) {
  const std::string texts = at("texts.jsonl");
  expect_error(2, {}, "expected files with texts");
  expect_error(2, {"--mode", "rolling", texts}, "--mode takes windows or packed, got rolling");
  expect_error(2, {"--window", "1", texts}, "a window must hold at least 2 tokens");
  expect_error(2, {"--stride", "0", texts}, "the stride must be from 1 to the window, 32, got 0");
  expect_error(2, {"--window", "8", "--stride", "9", texts}, "the stride must be from 1 to the window, 8, got 9");
  expect_error(2, {"--mode", "packed", "--window", "8", "--stride", "4", texts}, "packed blocks do not overlap");
  expect_error(2, {"--window", "33", texts}, "--window 33 is more than the 32 tokens that the model reads at most; --max-length N lets it");
  expect_error(2, {"--window", "17", "--max-length", "16", texts}, "--window 17 is more than the 16 tokens that --max-length allows");
  expect_error(2, {"--limit", "0", texts}, "--limit: expected a whole number from 1, got 0");
  expect_error(2, {"--weights", "int4", texts}, "--weights takes int8 or fp8, got int4");
  expect_error(2, {texts, "devise=cpu"}, "unknown key devise; expected device, dtype or threads");
  expect_error(2, {"--dtype=bf16", texts}, "keys have no dashes: dtype=bf16");
}

TEST_F(PerplexityCommand, BadTextsAreNamed) {
  expect_error(1, {at("nowhere.txt")}, "cannot read " + at("nowhere.txt"));
  expect_error(1, {write("a.csv", "a,b")}, "cannot read " + at("a.csv") + ": expected .jsonl");
  fs::create_directory(at("folder"));
  expect_error(1, {at("folder")}, "nothing to read in " + at("folder") + ": expected .jsonl");
  expect_error(1, {write("bad.jsonl", "{\"text\": \"mary\"}\n\n{\"text\": \"had\n")}, at("bad.jsonl") + ":3: bad JSON at column");
  expect_error(1, {write("none.jsonl", "{\"txt\": \"mary\"}\n")}, at("none.jsonl") + ":1: no string under \"text\"");
  expect_error(1, {write("empty.txt", "")}, "no token can be scored: 1 texts with 0 tokens");
  expect_error(1, {"--mode", "packed", at("texts.jsonl"), "--window", "32", "--limit", "1"},
               "with 23 tokens in all do not fill a block of 32");
}

// Not scored as −∞, and no file of samples is left behind.
TEST_F(PerplexityCommand, AModelThatGivesNoNumbersIsRefused) {
  fs::copy(at("run/checkpoint-1"), at("damaged"));
  fs::remove(at("damaged/manifest.json"));
  const std::string file = at("damaged/model.safetensors");
  {
    const SafeTensors weights(file);
    std::uint64_t data = 0;
    for (const auto& [name, tensor] : weights.tensors()) data = std::max(data, tensor.end);
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(weights.file_bytes() - data + weights.at("model.norm.weight").begin));
    const float nan = std::nanf("");
    out.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  }
  const Outcome out =
      bhyt({"perplexity", "--model", at("damaged"), "--samples", at("nan.jsonl"), "device=cpu", "threads=1", at("one.txt")});
  EXPECT_EQ(out.code, 1);
  EXPECT_EQ(out.out, "");
  EXPECT_NE(out.err.find("the model gives no numbers"), std::string::npos) << out.err;
  EXPECT_FALSE(fs::exists(at("nan.jsonl")));
}

TEST_F(PerplexityCommand, InterruptedItPrintsNoResult) {
  write("long.txt", std::string(1 << 18, 'm'));
  Process process(words({"--json", "--window", "32", "--stride", "1", at("long.txt")}));
  ASSERT_TRUE(process.wait_until_caught(SIGINT));
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_NE(process.messages().find("no result is printed or written"), std::string::npos) << process.messages();
  EXPECT_EQ(process.messages().find("\"ppl\""), std::string::npos) << process.messages();
}

TEST_F(PerplexityCommand, RanksGiveTheBytesOfOneProcess) {
  NEEDS_MPI;
  const Words cases[] = {{"--window", "8"}, {"--window", "8", "--stride", "3"}, {"--mode", "packed", "--window", "5"}, {"--limit", "1"}};
  for (const Words& how : cases) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(how, " ")));
    const auto all = [&](const std::string& file) {
      return words(how + Words{at("texts.jsonl"), at("one.txt"), "--json", "--samples", at(file), "--force"});
    };
    const Outcome one = bhyt(all("alone.jsonl"));
    ASSERT_EQ(one.code, 0) << one.err;
    for (const int n : {2, 3}) {
      const Outcome several = ranks(*folder_, n, all("ranks.jsonl"));
      ASSERT_EQ(several.code, 0) << several.err;
      EXPECT_EQ(several.out, one.out);
      EXPECT_EQ(read_text(at("ranks.jsonl")), read_text(at("alone.jsonl")));
    }
  }
  const std::string broken = write("broken.jsonl", "{\"text\": \"mary\"}\n{\"text\": 3}\n");
  const Outcome out = ranks(*folder_, 2, words({broken}));
  EXPECT_EQ(out.code, 1);
  EXPECT_TRUE(has(out.err, "broken.jsonl:2: no string under")) << out.err;
  EXPECT_EQ(times(out.err, "error: "), 1) << out.err;
}

}  // namespace
}  // namespace bhyt::test
