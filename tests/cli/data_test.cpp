// `bhyt data` as a user meets it: files, exit codes, messages, JSON.
#include <nlohmann/json.hpp>

#include "program.h"

namespace bhyt::test {
namespace {

using nlohmann::json;

TEST(Data, SynthInfoAndBack) {
  const TempFolder dir;
  const std::string out = (dir.path / "s").string();
  const Outcome made = bhyt({"data", "synth", "--out", out, "--tokens", "5K", "--seed", "3", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const json info = json::parse(read_text(dir.path / "s/info.json")), said = json::parse(made.out);
  EXPECT_EQ(said["entropy_rate"], info["entropy_rate"]);
  EXPECT_EQ(info["seed"], 3);
  const Outcome look = bhyt({"data", "info", out + "/train.tok", "--verify", "--json", "--head", "2"});
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

TEST(Data, WrongUseAndFailedWork) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("bad.jsonl")) << "{\"text\": \"fine\"}\n{\"text\": oops}\n";
  EXPECT_EQ(bhyt({"data"}).code, 2);
  EXPECT_EQ(bhyt({"data", "pack", "--tokenizer", "bytes", at("bad.jsonl")}).code, 2);
  EXPECT_EQ(bhyt({"data", "synth", "--out", at("s"), "--tokens", "lots"}).code, 2);
  EXPECT_EQ(bhyt({"data", "synth", "--out", at("s"), "--tokens", "0"}).code, 2);
  EXPECT_EQ(bhyt({"data", "info", at("bad.jsonl")}).code, 1);
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
