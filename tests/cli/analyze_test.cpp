// bhyt analyze as a user runs it, on small models over bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "tests/cli/process.h"
#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

class AnalyzeCommand : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::string text;
    for (int i = 0; i < 60; ++i) text += "mary had " + std::to_string(i * 37 % 101) + " little lambs\n";
    write("text.txt", text);
    setenv("BHYT_CACHE", at("cache").c_str(), 1);
    for (const char* method : {"bhyt", "rmsnorm"}) {
      const Outcome trained =
          bhyt({"pretrain", "model.d=16", "model.layers=3", "model.heads=2", "model.mlp=16", "model.max_positions=64", "data.seq_len=32",
                "train.batch=2", "train.steps=4", "train.save_every=2", "threads=1", "device=cpu", std::string("norm.method=") + method,
                "analysis.every=3", "data.train=" + at("text.txt"), "run.dir=" + at(method), "--quiet"});
      ASSERT_EQ(trained.code, 0) << trained.err;
    }
    unsetenv("BHYT_CACHE");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

 protected:
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static Outcome run(const Words& more) { return bhyt(Words{"analyze", "device=cpu", "threads=1"} + more); }
  static Words of(const std::string& model) { return {"--model", at(model), "--data", at("text.txt")}; }
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

 private:
  static inline TempFolder* folder_ = nullptr;
};

TEST_F(AnalyzeCommand, JsonHasWhatTheManualSays) {
  const Json j = json(of("bhyt") + Words{"--tokens", "256", "--points", "20"});
  ASSERT_EQ(j["models"].size(), 1u);
  const Json& m = j["models"][0];
  EXPECT_EQ(m["model"], at("bhyt"));
  EXPECT_EQ(m["step"], 4);
  EXPECT_EQ(m["method"], "bhyt");
  EXPECT_EQ(m["tokens"], 256);
  EXPECT_EQ(m["seq_len"], 32);  // as it was trained
  EXPECT_NEAR(m["loss"].get<double>(), std::log(257.0), 1);
  for (const char* key : {"norm", "abs", "variance", "kurtosis"}) EXPECT_GT(m["embedding"][key], 0) << key;
  ASSERT_EQ(m["layers"].size(), 3u);
  const Json& l = m["layers"][2];
  EXPECT_EQ(l["layer"], 3);
  for (const char* key : {"norm", "abs", "variance", "kurtosis", "cosine", "gradient_norm", "left_out_loss", "entropy", "entropy_relative"})
    EXPECT_GT(l[key], 0) << key;
  EXPECT_TRUE(l["largest"]["feature"].is_number() && l["outlier_features"].is_array());
  for (const char* site : {"attention", "mlp"})
    for (const char* key : {"lambda", "output", "gain", "linear_gain", "chebyshev"}) EXPECT_GT(l[site][key], 0) << site << key;
  EXPECT_NEAR(l["mlp"]["chebyshev"].get<double>(), 0.01, 1e-6);
  EXPECT_GT(l["attention"]["gamma"]["rms"], 0);
  EXPECT_EQ(l["approximation"]["points"].size(), 20u);
  EXPECT_GT(l["approximation"]["r"], 0.5);
  const double squares = std::pow(m["gradient_norm"]["embedding"].get<double>(), 2) + std::pow(m["gradient_norm"]["end"].get<double>(), 2) +
                         std::pow(m["layers"][0]["gradient_norm"].get<double>(), 2) +
                         std::pow(m["layers"][1]["gradient_norm"].get<double>(), 2) + std::pow(l["gradient_norm"].get<double>(), 2);
  EXPECT_NEAR(m["gradient_norm"]["all"].get<double>(), std::sqrt(squares), 1e-9);
}

TEST_F(AnalyzeCommand, SeveralModelsAndCheckpoints) {
  const Json both = json(of("bhyt") + Words{"--model", at("rmsnorm"), "--layers", "1,2..3", "--seq-len", "16"});
  ASSERT_EQ(both["models"].size(), 2u);
  EXPECT_EQ(both["models"][1]["method"], "rmsnorm");
  EXPECT_TRUE(both["models"][1]["layers"][0]["approximation"].is_null());
  EXPECT_TRUE(both["models"][1]["layers"][0]["attention"]["saturated"].is_null());
  EXPECT_EQ(both["models"][1]["layers"].size(), 3u);
  EXPECT_EQ(both["models"][0]["seq_len"], 16);
  const Json run = json({"--checkpoints", at("bhyt"), "--data", at("text.txt"), "--layers", "2"});
  ASSERT_EQ(run["models"].size(), 2u);
  EXPECT_EQ(run["models"][0]["step"], 2);
  EXPECT_EQ(run["models"][1]["step"], 4);
  EXPECT_EQ(run["models"][1]["layers"].size(), 1u);
  EXPECT_NE(run["models"][0]["loss"], run["models"][1]["loss"]);
  fs::create_directory_symlink("checkpoint-2", at("bhyt/best"));
  EXPECT_EQ(json(of("bhyt") + Words{"--layers", "2"})["models"][0]["step"], 2);
  EXPECT_EQ(json(of("bhyt/checkpoint-4/") + Words{"--layers", "2"})["models"][0]["step"], 4);
  fs::remove(at("bhyt/best"));
}

TEST_F(AnalyzeCommand, PrintsTablesAndWritesFigures) {
  const Outcome out = run(of("bhyt") + Words{"--svg", at("figures"), "--html", at("page.html"), "--save"});
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_TRUE(has(out.out, "bhyt, 3 layers of 16")) << out.out;
  EXPECT_TRUE(has(out.out, "Pearson r")) << out.out;
  EXPECT_TRUE(has(read_text(at("figures/scatter-0-3.svg")), "<circle"));
  EXPECT_TRUE(has(read_text(at("page.html")), "id=\"analysis-variance\""));
  EXPECT_EQ(Json::parse(read_text(at("bhyt/analysis.json")))["models"].size(), 1u);
  const Outcome report = bhyt({"report", at("bhyt")});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_TRUE(has(read_text(at("bhyt/report.html")), "id=\"analysis-variance\""));
  // A page of ours is replaced, another file is not.
  EXPECT_EQ(run(of("bhyt") + Words{"--html", at("page.html"), "--json"}).code, 0);
  expect_error(2, of("bhyt") + Words{"--html", at("text.txt")}, at("text.txt"));
}

TEST_F(AnalyzeCommand, BadUsageSaysWhatIsMeant) {
  expect_error(2, {"--data", at("text.txt")}, "expected --model DIR, or --checkpoints RUN");
  expect_error(2, {"--model", at("bhyt")}, "expected --data FILE");
  expect_error(2, of("bhyt") + Words{"--layers", "4"}, "no layer 4: the model has layers 1 to 3");
  expect_error(2, of("bhyt") + Words{"--layers", "3..1"}, "3..1 runs backwards");
  for (const char* bad : {"0", "1,", "1-3", "a"}) expect_error(2, of("bhyt") + Words{"--layers", bad}, "--layers takes numbers from 1");
  expect_error(2, of("bhyt") + Words{"--tokens", "31"}, "--tokens 31 is less than one row of 32");
  expect_error(2, of("bhyt") + Words{"--seq-len", "65"}, "--seq-len 65 is more than the 64 tokens that the model reads at most");
  expect_error(2, {"--checkpoints", at("figures"), "--data", at("text.txt")}, "no checkpoint-N folder there");
  expect_error(1, {"--model", at("bhyt"), "--data", at("nowhere.txt")}, at("nowhere.txt"));
  expect_error(1, {"--model", at("bhyt"), "--data", write("short.txt", "mary had a little lamb")},
               "expected text for at least one row of 32 tokens and the one behind it, got 23 tokens");
}

TEST_F(AnalyzeCommand, TokenFilesMustBeOfTheModelsTokenizer) {
  ASSERT_EQ(bhyt({"data", "pack", "--tokenizer", "bytes", "--out", at("bytes.tok"), at("text.txt")}).code, 0);
  const Words with = {"--model", at("bhyt"), "--tokens", "128", "--layers", "1", "--data"};
  EXPECT_EQ(json(with + Words{at("bytes.tok")})["models"][0]["loss"], json(with + Words{at("text.txt")})["models"][0]["loss"]);
  ASSERT_EQ(bhyt({"tokenizer", "train", "--vocab", "300", "--out", at("bpe"), at("text.txt")}).code, 0);
  ASSERT_EQ(bhyt({"data", "pack", "--tokenizer", at("bpe"), "--out", at("bpe.tok"), at("text.txt")}).code, 0);
  expect_error(1, with + Words{at("bpe.tok")}, "was packed with another tokenizer (bpe) than the model's (bytes)");
  EXPECT_NE(run(with + Words{at("text.txt"), "--tokenizer", at("bpe")}).code, 0);  // the model has no rows for its ids
}

TEST_F(AnalyzeCommand, AModelThatGivesNoNumbersIsRefusedWithItsLayer) {
  fs::copy(at("bhyt/checkpoint-4"), at("damaged"));
  fs::remove(at("damaged/manifest.json"));
  const std::string file = at("damaged/model.safetensors");
  {
    const SafeTensors weights(file);
    std::uint64_t data = 0;
    for (const auto& [name, tensor] : weights.tensors()) data = std::max(data, tensor.end);
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(
        static_cast<std::streamoff>(weights.file_bytes() - data + weights.at("model.layers.1.post_attention_layernorm.weight").begin));
    const float nan = std::nanf("");
    out.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  }
  expect_error(1, of("damaged"), "the output of block 2 is not finite");
}

}  // namespace
}  // namespace bhyt::test
