// bhyt sft as a user runs it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

class SftDryRun : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path / name, std::ios::binary) << text;
    return (folder_.path / name).string();
  }
  Outcome dry(const std::string& file, std::vector<std::string> more = {}) {
    std::vector<std::string> args{"sft", "--dry-run", "data.train=" + file, "data.tokenizer=bytes", "data.template=default"};
    args.insert(args.end(), more.begin(), more.end());
    return bhyt(args);
  }
  std::string path(const char* name) const { return (folder_.path / name).string(); }
  std::vector<Json> lines(const char* name) const {
    std::vector<Json> all;
    std::istringstream in(read_text(folder_.path / name));
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }
  TempFolder folder_;
};

constexpr const char* kThree =
    "{\"instruction\": \"hi\", \"output\": \"yes\"}\n"
    "{\"instruction\": \"hi\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u001b[31m\"}, {\"role\": \"assistant\", \"content\": \"ok\"}]}\n";

TEST_F(SftDryRun, DumpsOneLineForEachRecordThatIsKept) {
  const Outcome out = dry(write("three.jsonl", kThree), {"--dump", path("out.jsonl")});
  ASSERT_EQ(out.code, 0) << out.err;
  const auto all = lines("out.jsonl");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["index"], 0);
  EXPECT_EQ(all[1]["index"], 2);
  std::vector<int> ids, labels;
  for (const char c : std::string("Human: hi")) ids.push_back(c);
  ids.push_back(256);
  for (const char c : std::string("\nAssistant:")) ids.push_back(c);
  labels.assign(ids.size(), -100);
  for (const int id : std::initializer_list<int>{'y', 'e', 's', 256, '\n'}) {
    ids.push_back(id);
    labels.push_back(id);
  }
  EXPECT_EQ(all[0]["input_ids"], Json(ids));
  EXPECT_EQ(all[0]["labels"], Json(labels));
}

TEST_F(SftDryRun, ShowsCountsLengthsDropsAndWhatIsScored) {
  const Outcome out = dry(write("three.jsonl", kThree));
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_TRUE(has(out.out, "three.jsonl: 3 records, 2 examples")) << out.out;
  EXPECT_TRUE(has(out.out, "scored   9 of ")) << out.out;
  EXPECT_TRUE(has(out.out, "1  output is not a text (record 1)")) << out.out;
  EXPECT_TRUE(has(out.out, "█")) << out.out;
  EXPECT_TRUE(has(out.out, "Human: hi<|endoftext|>\nAssistant:⟦yes<|endoftext|>\n⟧")) << out.out;
  EXPECT_TRUE(has(out.out, "a\\x1b[31m")) << out.out;  // nothing in the data reaches the terminal as a command
  EXPECT_EQ(out.out.find('\x1b'), std::string::npos);  // no colour but on a terminal
  EXPECT_TRUE(has(out.err, "1 of 3 records dropped")) << out.err;
  EXPECT_TRUE(has(out.err, "record 1 (line 2): output is nothing")) << out.err;
}

TEST_F(SftDryRun, Json) {
  const std::string file = write("three.jsonl", kThree),
                    other = write("valid.jsonl", std::string(kThree).substr(0, std::string(kThree).find('\n')));
  const Outcome out = dry(file, {"data.valid=" + other, "data.seq_len=24", "--json"});
  ASSERT_EQ(out.code, 0) << out.err;
  const Json j = Json::parse(out.out);
  const Json& train = j["train"][0];
  EXPECT_EQ(train["records"], 3);
  EXPECT_EQ(train["examples"], 2);
  EXPECT_EQ(train["cut"], 2);
  EXPECT_EQ(train["tokens"], 48);
  EXPECT_EQ(train["longest"], 24);
  EXPECT_EQ(train["dropped"][0]["count"], 1);
  EXPECT_EQ(train["dropped"][0]["first"][0]["line"], 2);
  EXPECT_EQ(j["shared"], 1);
  EXPECT_TRUE(has(out.err, "1 examples of data.valid are examples of data.train, too")) << out.err;
}

TEST_F(SftDryRun, ConfigsAndTemplatesOfAUsersOwn) {
  const std::string file = write("three.jsonl", kThree);
  const std::string row = write("mine.yaml", "user: \"Q {c} A\"\nanswer: [\"{c}\", \"{eos}\"]\ntokens: \"<end>\"\n");
  const std::string config =
      write("sft.yaml", "data:\n  train: " + file + "\n  template: default\n  tokenizer: bytes\n  mask_prompt: false\n");
  const Outcome out =
      bhyt({"sft", "--dry-run", config, "data.template=" + row, "--dump", path("out.jsonl"), "--save-tokenizer", path("tuned")});
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(lines("out.jsonl")[0]["labels"], Json({'Q', ' ', 'h', 'i', ' ', 'A', 'y', 'e', 's', 257}));
  EXPECT_TRUE(has(out.err, "its vocabulary grows by <end> (257)")) << out.err;
  EXPECT_TRUE(has(out.out, "⟦Q hi Ayes<end>⟧")) << out.out;
  EXPECT_EQ(Json::parse(read_text(folder_.path / "tuned" / "tokenizer_config.json"))["eos_token"], "<end>");
}

TEST_F(SftDryRun, MistakesAreNamed) {
  const std::string file = write("three.jsonl", kThree);
  const auto refused = [&](const Outcome& out, int code, const std::string& part) {
    EXPECT_EQ(out.code, code) << out.err;
    EXPECT_TRUE(has(out.err, part)) << out.err;
  };
  refused(dry(file, {"data.template=lama3"}), 2, "unknown chat template lama3; expected one of default, alpaca");
  refused(dry(file, {"data.templat=llama3"}), 2, "data.templat");
  refused(dry(file, {"data.seq_len=0"}), 2, "data.seq_len");
  refused(dry(file, {"data.mask_prompt=7"}), 2, "data.mask_prompt must be true or false");
  refused(dry(path("none.json")), 2, "none.json does not exist");
  refused(dry(write("rows.safetensors", "x")), 2, "holds rows of tokens already");
  refused(dry(write("text.txt", "x")), 2, "expected conversations in .json or .jsonl");
  refused(dry(write("empty.jsonl", "")), 2, "holds no records");
  refused(dry(write("none.jsonl", "{}\n")), 2, "all of its 1 records are dropped");
  refused(dry(file, {"data.seq_len=1"}), 2, "none of the 2 tokens of its 2 examples is scored");
  refused(bhyt({"sft", "--dry-run", "data.tokenizer=bytes"}), 2, "data.train must name");
  refused(bhyt({"sft", "--dry-run", "data.train=" + file}), 2, "data.tokenizer must be");
  refused(bhyt({"sft", "--dry-run", "data.train=" + file, "data.tokenizer=nothere"}), 2, "data.tokenizer must be auto, ");
  refused(bhyt({"sft", "data.train=" + file, "--seeds", "0,1,00"}), 2, "--seeds has 0 twice");
  refused(bhyt({"sft", "data.train=" + file, "--seeds", "0,-1"}), 2, "--seeds expects whole numbers, got -1");
  refused(dry(file, {"lora.alpha=16"}), 2, "lora.rank is 0: there are no adapters for the other keys of lora");
  refused(dry(file, {"lora.rank=2", "lora.init=nothere"}), 2, "lora.init: nothere is neither an adapter folder");
  refused(bhyt({"sft", "data.train=" + file, "--dump", path("x")}), 2, "--dump and --save-tokenizer go with --dry-run");
  refused(dry(write("bad.jsonl", std::string(kThree) + "{\"a\"\n"), {"--dump", path("out.jsonl")}), 1,
          "bad.jsonl, record 3, line 4: bad JSON");
  EXPECT_FALSE(fs::exists(folder_.path / "out.jsonl"));  // nor anything else that was begun
  for (const auto& entry : fs::directory_iterator(folder_.path))
    EXPECT_FALSE(has(entry.path().filename().string(), "out.jsonl")) << entry.path();
}

TEST_F(SftDryRun, WhatIsThereIsReplacedOnlyByForceAndWhatIsReadNever) {
  const std::string file = write("three.jsonl", kThree), mine = write("mine.jsonl", "mine");
  ASSERT_EQ(dry(file, {"--save-tokenizer", path("saved")}).code, 0);
  const Outcome input = dry(file, {"--dump", path("../") + folder_.path.filename().string() + "/three.jsonl", "--force"});
  EXPECT_EQ(input.code, 2);
  EXPECT_TRUE(has(input.err, "three.jsonl is an input: writing to it would destroy it")) << input.err;
  EXPECT_EQ(read_text(file), kThree);
  fs::create_directory(path("own"));
  const std::string spec = write("own/tokenizer.json", read_text(path("saved/tokenizer.json")));
  const Outcome own =
      bhyt({"sft", "--dry-run", "data.train=" + file, "data.tokenizer=" + path("own"), "data.template=plain", "--dump", spec, "--force"});
  EXPECT_EQ(own.code, 2);
  EXPECT_TRUE(has(own.err, "own/tokenizer.json is an input")) << own.err;
  const Outcome there = dry(file, {"--dump", mine});
  EXPECT_EQ(there.code, 2);
  EXPECT_EQ(there.err, "error: " + mine + " already exists; --force replaces it, another --dump keeps it\n");
  EXPECT_EQ(read_text(mine), "mine");
  EXPECT_EQ(dry(file, {"--dump", mine, "--force"}).code, 0);
  EXPECT_EQ(lines("mine.jsonl").size(), 2u);

  fs::create_directory(path("model"));
  write("model/tokenizer.json", "mine");
  const Outcome tokenizer = dry(file, {"--save-tokenizer", path("model")});
  EXPECT_EQ(tokenizer.code, 2);
  EXPECT_TRUE(has(tokenizer.err, "already holds tokenizer.json; --force replaces the tokenizer there, another --save-tokenizer keeps it"))
      << tokenizer.err;
  EXPECT_EQ(read_text(path("model/tokenizer.json")), "mine");
  EXPECT_EQ(dry(file, {"--save-tokenizer", path("model"), "--force"}).code, 0);
  EXPECT_NE(read_text(path("model/tokenizer.json")), "mine");
}

// A companion of a tokenizer that is nested without end is as good as none.
TEST_F(SftDryRun, ATokenizersNestingHasAnEnd) {
  const std::string file = write("three.jsonl", kThree);
  ASSERT_EQ(dry(file, {"--save-tokenizer", path("model")}).code, 0);
  write("model/tokenizer_config.json", "{\"x\":" + std::string(100000, '[') + std::string(100000, ']') + ",\"y\":1,\"z\":2}");
  const Outcome out = bhyt({"sft", "--dry-run", "data.train=" + file, "data.tokenizer=" + path("model"), "data.template=plain",
                            "--save-tokenizer", path("tuned")});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_TRUE(fs::exists(path("tuned/tokenizer.json")));
}

TEST_F(SftDryRun, RowsOfTheReferenceByBytes) {
  if (data_folder().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const fs::path rows = data_folder().parent_path() / "fixtures" / "sft" / "train" / "rows.jsonl";
  const Outcome out = dry(rows.string(), {"data.seq_len=96", "--dump", path("out.jsonl"), "--quiet"});
  ASSERT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(lines("out.jsonl").size(), 8u);
}

}  // namespace
}  // namespace bhyt::test
