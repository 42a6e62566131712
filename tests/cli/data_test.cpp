// `bhyt data` as a user meets it: files, exit codes, messages, JSON.
#include <nlohmann/json.hpp>

#include "program.h"

namespace bhyt::test {
namespace {

using nlohmann::json;

TEST(Data, SynthInfoAndBack) {
  const TempFolder dir;
  const std::string out = (dir.path / "s").string();
  const Outcome made = bhyt({"data", "synth", "--out", out, "--tokens", "5K", "--vocab", "0.3k", "--seed", "3", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const json info = json::parse(read_text(dir.path / "s/info.json")), said = json::parse(made.out);
  EXPECT_EQ(said["entropy_rate"], info["entropy_rate"]);
  EXPECT_EQ(info["seed"], 3);
  EXPECT_EQ(info["vocab"], 300);
  const Outcome look = bhyt({"data", "info", out + "/train.tok", "--verify", "--json", "--head", "0.002K"});
  ASSERT_EQ(look.code, 0) << look.err;
  const json j = json::parse(look.out);
  EXPECT_EQ(j["tokens"], info["tokens"]);
  EXPECT_GE(j["tokens"], 5000);
  EXPECT_EQ(j["vocab"], info["vocab"]);
  EXPECT_EQ(j["entropy_rate"], info["entropy_rate"]);
  EXPECT_EQ(j["verified"], true);
  EXPECT_EQ(j["head"].size(), 2u);
  ASSERT_EQ(bhyt({"data", "synth", "--out", out + "d", "--tokens", "5000", "--documents"}).code, 0);
  const Outcome packed = bhyt({"data", "pack", "--out", out + "d.tok", "--tokenizer", "bytes", "--json", out + "d"});
  ASSERT_EQ(packed.code, 0) << packed.err;
  EXPECT_GT(json::parse(packed.out)["documents"], 10);
}

TEST(Data, InfoSaysWhereTheTokenizerIs) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  setenv("BHYT_CACHE", at("cache").c_str(), 1);
  std::ofstream(at("a.txt")) << "low lower lowest";
  ASSERT_EQ(bhyt({"tokenizer", "train", "--vocab", "265", "--out", at("t"), at("a.txt")}).code, 0);
  const Outcome packed = bhyt({"data", "pack", "--out", at("d/a.tok"), "--tokenizer", at("t"), "--json", at("a.txt")});
  ASSERT_EQ(packed.code, 0) << packed.err;
  const std::string name = "tokenizer-" + json::parse(packed.out)["fingerprint"].get<std::string>();
  const auto where = [&](const std::string& file) { return json::parse(bhyt({"data", "info", "--json", file}).out)["tokenizer_at"]; };
  EXPECT_EQ(json::parse(packed.out)["tokenizer_at"], (dir.path / "d" / name).string());
  EXPECT_EQ(where(at("d/a.tok")), (dir.path / "d" / name).string());
  fs::rename(at("d/a.tok"), at("a.tok"));
  EXPECT_EQ(where(at("a.tok")), (dir.path / "cache" / name).string());
  fs::remove_all(at("cache"));
  EXPECT_EQ(where(at("a.tok")), nullptr);
  const Outcome lost = bhyt({"info", at("a.tok")});
  EXPECT_EQ(lost.code, 0);
  EXPECT_NE(lost.err.find("its tokenizer is not at hand: looked for " + name), std::string::npos) << lost.err;
  ASSERT_EQ(bhyt({"data", "pack", "--out", at("b.tok"), "--tokenizer", "bytes", at("a.txt")}).code, 0);
  EXPECT_EQ(where(at("b.tok")), "built in");
  EXPECT_FALSE(fs::exists(at("cache/") + name));
  unsetenv("BHYT_CACHE");
}

TEST(Data, WhereItGoesIsCheckedBeforeTheWork) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("a.txt")) << "low lower lowest";
  fs::create_directories(at("s/valid.tok"));
  const Outcome synth = bhyt({"data", "synth", "--out", at("s"), "--tokens", "5K"});
  EXPECT_EQ(synth.code, 1);
  EXPECT_EQ(synth.err, "error: cannot write " + at("s/valid.tok") + ": it is a directory\n");
  EXPECT_FALSE(fs::exists(at("s/train.tok")));
  EXPECT_EQ(bhyt({"data", "synth", "--out", at("a.txt"), "--tokens", "5K"}).err,
            "error: cannot write " + at("a.txt/train.tok") + ": " + at("a.txt") + " is not a folder\n");
  EXPECT_EQ(bhyt({"data", "pack", "--out", at("a.txt/x.tok"), "--tokenizer", "bytes", at("a.txt")}).err,
            "error: cannot write " + at("a.txt/x.tok") + ": " + at("a.txt") + " is not a folder\n");
}

TEST(Data, WhatIsThereIsReplacedOnlyByForce) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("a.txt")) << "low lower lowest";
  std::ofstream(at("a.tok")) << "mine";
  fs::create_directories(at("s"));
  std::ofstream(at("s/info.json")) << "mine";
  for (const auto& [command, file] : {std::pair<std::vector<std::string>, std::string>{
                                          {"data", "pack", "--out", at("a.tok"), "--tokenizer", "bytes", at("a.txt")}, at("a.tok")},
                                      {{"data", "synth", "--out", at("s"), "--tokens", "3K"}, at("s/info.json")}}) {
    const Outcome refused = bhyt(command);
    EXPECT_EQ(refused.code, 2);
    EXPECT_EQ(refused.err, "error: " + file + " already exists; --force replaces it, another --out keeps it\n");
    EXPECT_EQ(read_text(file), "mine");
    EXPECT_FALSE(fs::exists(at("s/train.tok")));
    std::vector<std::string> forced = command;
    forced.emplace_back("--force");
    const Outcome done = bhyt(forced);
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_NE(read_text(file), "mine");
  }
}

TEST(Data, WrongUseAndFailedWork) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("bad.jsonl")) << "{\"text\": \"fine\"}\n{\"text\": oops}\n";
  EXPECT_EQ(bhyt({"data"}).code, 2);
  EXPECT_EQ(bhyt({"data", "pack", "--tokenizer", "bytes", at("bad.jsonl")}).code, 2);
  EXPECT_EQ(bhyt({"data", "synth", "--out", at("s"), "--tokens", "lots"}).code, 2);
  EXPECT_EQ(bhyt({"data", "synth", "--out", at("s"), "--tokens", "0"}).code, 2);
  const Outcome part = bhyt({"data", "synth", "--out", at("s"), "--tokens", "1.2345K"});
  EXPECT_EQ(part.code, 2);
  EXPECT_NE(part.err.find("--tokens: expected a whole number, got 1.2345K"), std::string::npos) << part.err;
  EXPECT_EQ(bhyt({"data", "info", at("bad.jsonl")}).code, 1);
  const Outcome many = bhyt({"data", "pack", "--out", at("x.tok"), "--tokenizer", "bytes", "--threads", "4097", at("bad.jsonl")});
  EXPECT_EQ(many.code, 2);
  EXPECT_NE(many.err.find("--threads: expected a whole number from 0 to 4096, got 4097"), std::string::npos) << many.err;
  EXPECT_EQ(bhyt({"data", "pack", "--help"}).code, 0);
  const Outcome bad = bhyt({"data", "pack", "--out", at("x.tok"), "--tokenizer", "bytes", at("bad.jsonl")});
  EXPECT_EQ(bad.code, 1);
  EXPECT_NE(bad.err.find("bad.jsonl:2: bad JSON at column 10"), std::string::npos) << bad.err;
  EXPECT_FALSE(fs::exists(at("x.tok")));
  const Outcome skipped = bhyt({"data", "pack", "--out", at("x.tok"), "--tokenizer", "bytes", "--skip-bad", at("bad.jsonl")});
  EXPECT_EQ(skipped.code, 0);
  EXPECT_NE(skipped.err.find("1 bad line"), std::string::npos) << skipped.err;
}

}  // namespace
}  // namespace bhyt::test
