// bhyt convert and bhyt info, as a user meets them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

const fs::path kGolden = fs::path(BHYT_TEST_DIR) / "golden" / "models";

Json info_of(const fs::path& path, int code = 0) {
  const Outcome o = bhyt({"info", path.string(), "--json"});
  EXPECT_EQ(o.code, code) << o.err;
  return Json::parse(o.out);
}

TEST(Info, DescribesCheckpointsOfEveryLayout) {
  const Json j = info_of(kGolden / "bhyt_everything");
  EXPECT_EQ(j["kind"], "checkpoint");
  EXPECT_EQ(j["model"]["d"], 24);
  EXPECT_EQ(j["norm"]["kappa"], 3.0);
  EXPECT_EQ(j["norm"]["layers"], Json({1, 2}));
  EXPECT_EQ(j["parameters"]["attention"], 3 * (24 * 24 * 2 + 2 * 24 * 12));
  EXPECT_EQ(j["integrity"], "ok");
  EXPECT_EQ(info_of(kGolden / "ref_bhytline")["layout"], "the reference's");
  const Json plain = info_of(kGolden / "rmsnorm");
  EXPECT_EQ(plain["layout"], "Hugging Face Llama");
  EXPECT_EQ(plain["plain_llama"], true);
  EXPECT_EQ(plain["tokenizer"], nullptr);
  const Outcome text = bhyt({"info", (kGolden / "bhyt").string(), "--verify"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("seq_len"), std::string::npos);
  EXPECT_EQ(text.out.find("aux_every"), std::string::npos);  // defaults are left out for people
}

TEST(Info, NamesWhatDoesNotFit) {
  const TempFolder dir;
  fs::copy(kGolden / "lns", dir.path / "bad");
  Json config = Json::parse(read_text(dir.path / "bad" / "config.json"));
  config["intermediate_size"] = 19;
  std::ofstream(dir.path / "bad" / "config.json") << config;
  const Json j = info_of(dir.path / "bad", 1);
  EXPECT_EQ(j["integrity"].size(), 9u);
  EXPECT_EQ(bhyt({"info", (dir.path / "none").string()}).code, 1);
  const Outcome nothing = bhyt({"info", dir.path.string()});
  EXPECT_EQ(nothing.code, 1);
  EXPECT_NE(nothing.err.find("looked for a checkpoint"), std::string::npos);
  EXPECT_EQ(bhyt({"info"}).code, 2);
}

TEST(Info, DescribesFiles) {
  EXPECT_EQ(info_of(kGolden / "bhyt" / "io.safetensors")["tensors"]["tokens"], "I64 [2, 17]");
  const TempFolder dir;
  std::ofstream(dir.path / "metrics.jsonl") << R"({"step": 10, "loss": 3.5})"
                                            << "\n"
                                            << R"({"step": 20, "loss": 3.25})"
                                            << "\n";
  fs::create_directory(dir.path / "checkpoint-20");
  const Json run = info_of(dir.path);
  EXPECT_EQ(run["kind"], "run");
  EXPECT_EQ(run["step"], 20);
  EXPECT_EQ(run["loss"], 3.25);
  EXPECT_EQ(run["loss_step"], 20);
  EXPECT_EQ(run["checkpoints"], Json({"checkpoint-20"}));
  // An interrupt saves between two lines of metrics: what the newest checkpoint holds is further.
  fs::create_directory(dir.path / "checkpoint-26");
  std::ofstream(dir.path / "checkpoint-26" / "trainer_state.json")
      << R"({"log_history": [], "bhyt": {"progress": {"step": 26, "updates": 26, "skipped_in_row": 0, "loss_sum": 18, "loss_count": 6,)"
      << R"("best_metric": null, "best_step": 0}}})";
  const Json interrupted = info_of(dir.path);
  EXPECT_EQ(interrupted["step"], 26);
  EXPECT_EQ(interrupted["loss"], 3);
  EXPECT_EQ(interrupted["loss_step"], 26);
  std::ofstream(dir.path / "checkpoint-26" / "trainer_state.json") << "{}";
  EXPECT_EQ(info_of(dir.path)["step"], 20);
}

TEST(Info, AStepThatIsNone) {
  const TempFolder dir;
  std::ofstream(dir.path / "metrics.jsonl") << R"({"step": 1e29, "loss": 3.5})"
                                            << "\n";
  EXPECT_EQ(info_of(dir.path)["step"], 1e29);
}

TEST(Info, MistakesInAConfigAreCalledAsTheyStandThere) {
  const TempFolder dir;
  fs::copy(kGolden / "rmsnorm", dir.path / "bad");
  Json config = Json::parse(read_text(dir.path / "bad" / "config.json"));
  config["num_hidden_layers"] = 0;
  std::ofstream(dir.path / "bad" / "config.json") << config;
  const Outcome o = bhyt({"info", (dir.path / "bad").string()});
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("config.json: num_hidden_layers must be between 1 and 16384, got 0"), std::string::npos) << o.err;
}

TEST(Convert, ChangesTypeAndShards) {
  const TempFolder dir;
  const std::string out = (dir.path / "out").string();
  const Outcome o = bhyt({"convert", (kGolden / "peri").string(), "--out", out, "--dtype", "fp16", "--max-shard", "5KB"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "");
  const Json j = info_of(out);
  EXPECT_EQ(j["dtype"].size(), 1u);
  EXPECT_TRUE(j["dtype"].contains("F16"));
  EXPECT_GT(j["files"].size(), 3u);
  EXPECT_EQ(Json::parse(read_text(dir.path / "out" / "config.json"))["torch_dtype"], "float16");
  EXPECT_EQ(bhyt({"convert", (kGolden / "peri").string(), "--out", out}).code, 2);  // exists already
  EXPECT_EQ(bhyt({"convert", (kGolden / "peri").string(), "--out", out + "2", "--dtype", "int8"}).code, 2);
  EXPECT_EQ(bhyt({"convert", (kGolden / "peri").string()}).code, 2);
  EXPECT_EQ(bhyt({"convert", (kGolden / "peri").string(), "--out", out + "2", "--max-shard", "-1"}).code, 2);
  EXPECT_EQ(bhyt({"convert", (dir.path / "none").string(), "--out", out + "2"}).code, 1);
}

TEST(Convert, TokenFilesGoToLlmcAndBack) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  ASSERT_EQ(bhyt({"data", "synth", "--out", at("data"), "--tokens", "3000"}).code, 0);
  const Outcome there = bhyt({"convert", at("data/train.tok"), "--out", at("a.bin")});
  ASSERT_EQ(there.code, 0) << there.err;
  const Outcome back = bhyt({"convert", at("a.bin"), "--out", at("b.tok")});
  ASSERT_EQ(back.code, 0) << back.err;
  const Json first = info_of(at("data/train.tok")), shard = info_of(at("a.bin")), again = info_of(at("b.tok"));
  EXPECT_EQ(shard["format"], "llm.c gpt2");
  EXPECT_EQ(again["tokens"], first["tokens"]);
  EXPECT_EQ(again["checksum"], first["checksum"]);
}

TEST(Convert, WhatIsThereIsReplacedOnlyByForce) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  ASSERT_EQ(bhyt({"data", "synth", "--out", at("data"), "--tokens", "3000"}).code, 0);
  for (const char* name : {"a.bin", "s_000001.bin"}) std::ofstream(at(name)) << "mine";
  const auto convert = [&](const char* out, const std::vector<std::string>& more) {
    std::vector<std::string> words{"convert", at("data/train.tok"), "--out", at(out)};
    words.insert(words.end(), more.begin(), more.end());
    return bhyt(words);
  };
  for (const auto& [refused, file] :
       {std::pair{convert("a.bin", {}), "a.bin"}, {convert("s.bin", {"--max-shard", "4KB"}), "s_000001.bin"}}) {
    EXPECT_EQ(refused.code, 2);
    EXPECT_EQ(refused.err, "error: " + at(file) + " already exists; --force replaces it, another --out keeps it\n");
    EXPECT_EQ(read_text(at(file)), "mine");
  }
  EXPECT_FALSE(fs::exists(at("s_000000.bin")));
  EXPECT_EQ(convert("a.bin", {"--force"}).code, 0);
  EXPECT_EQ(info_of(at("a.bin"))["format"], "llm.c gpt2");
  EXPECT_EQ(bhyt({"convert", (kGolden / "peri").string(), "--out", at("data"), "--force"}).code, 2);  // never a folder
}

// What cannot be written is called what the user called it.
TEST(Convert, WhereItGoesIsCheckedBeforeTheWork) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("a.txt")) << "low lower lowest";
  ASSERT_EQ(bhyt({"tokenizer", "train", "--vocab", "265", "--out", at("t"), at("a.txt")}).code, 0);
  ASSERT_EQ(bhyt({"data", "pack", "--out", at("a.tok"), "--tokenizer", at("t"), at("a.txt")}).code, 0);
  EXPECT_EQ(bhyt({"convert", at("a.tok"), "--out", at("a.txt/x")}).err,
            "error: cannot write " + at("a.txt/x") + ": " + at("a.txt") + " is not a folder\n");
  EXPECT_EQ(bhyt({"convert", (kGolden / "peri").string(), "--out", at("a.txt/x")}).err,
            "error: cannot write to " + at("a.txt/x") + ": " + at("a.txt") + " is not a folder\n");
}

TEST(Convert, Llama2cBringsItsTokenizer) {
  if (data_folder().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const TempFolder dir;
  const std::string out = (dir.path / "dreams").string(), from = (data_folder() / "checkpoints" / "aidreams260K.bin").string();
  ASSERT_EQ(bhyt({"convert", from, "--out", out}).code, 0);
  EXPECT_EQ(info_of(out)["tokenizer"]["vocab_size"], 512);
  EXPECT_EQ(info_of(from)["kind"], "llama2.c checkpoint");
  const Json expected = Json::parse(read_text(data_folder() / "checkpoints" / "greedy.json"))["aidreams260K"];
  const Outcome ids = bhyt({"generate", "--model", out, "--ids", "--prompt", "1", "--max-tokens", "100"});
  Json all = Json::parse(ids.out);
  all.insert(all.begin(), 1);
  EXPECT_EQ(all, expected["greedy_from_bos"]);
}

}  // namespace
}  // namespace bhyt::test
