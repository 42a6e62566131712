// bhyt tokenizer train | encode | decode | convert | info, as a user runs them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

using nlohmann::json;

TEST(TokenizerCli, EncodeAndDecodeAreInverse) {
  const std::string text = "Grüße <|endoftext|>\n\xFF\xFE tail \r\n\n";
  const Outcome ids = bhyt({"tokenizer", "encode", "--tokenizer", "bytes", "--no-special"}, text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(json::parse(ids.out).size(), text.size());
  EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", "bytes"}, ids.out).out, text);
  const Outcome special = bhyt({"tokenizer", "encode", "--tokenizer", "bytes"}, "a<|endoftext|>b");
  EXPECT_EQ(json::parse(special.out), (json{97, 256, 98}));
  EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", "bytes"}, "[97, 256, 98]").out, "ab");
  EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", "bytes", "--special"}, "[97, 256, 98]").out, "a<|endoftext|>b");
}

TEST(TokenizerCli, LinesAndEmptyTexts) {
  EXPECT_EQ(bhyt({"tokenizer", "encode", "--tokenizer", "bytes", "--lines"}, "a\n\nbc\n").out, "[97]\n[]\n[98,99]\n");
  EXPECT_EQ(bhyt({"tokenizer", "encode", "--tokenizer", "bytes", "--lines"}, "a\nb").out, "[97]\n[98]\n");
  EXPECT_EQ(bhyt({"tokenizer", "encode", "--tokenizer", "bytes"}, "").out, "[]\n");
  EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", "bytes", "--lines"}, "[97]\n[] [98 ,\n99]").out, "a\n\nbc\n");
  EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", "bytes"}, "").out, "");
}

TEST(TokenizerCli, TrainConvertInfo) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("a.jsonl")) << "{\"text\": \"low lower lowest\"}\n\n{\"id\": 1, \"text\": \"new newer newest\"}\n";
  std::ofstream(at("b.txt")) << "wide wider widest\nlow";
  const Outcome made = bhyt({"tokenizer", "train", "--vocab", "280", "--threads", "2", "--out", at("t"), at("a.jsonl"), at("b.txt")});
  ASSERT_EQ(made.code, 0) << made.err;
  const json info = json::parse(bhyt({"tokenizer", "info", "--json", at("t")}).out);
  EXPECT_EQ(info["kind"], "bpe");
  EXPECT_EQ(info["vocab_size"], 280);
  EXPECT_EQ(info["special_tokens"]["<|eot_id|>"], 4);
  EXPECT_TRUE(info["merges"].is_number()) << info;
  EXPECT_EQ(info["adds_before"], json({0}));
  const Outcome again = bhyt({"tokenizer", "train", "--vocab", "280", "--threads", "1", "--out", at("u"), at("b.txt"), at("a.jsonl")});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_text(dir.path / "t/tokenizer.json"), read_text(dir.path / "u/tokenizer.json"));
  const Outcome ids = bhyt({"tokenizer", "encode", "--tokenizer", at("t")}, "lowest<|eot_id|>");
  const json list = json::parse(ids.out);
  EXPECT_EQ(list.front(), 0);
  EXPECT_EQ(list.back(), 4);
  ASSERT_EQ(bhyt({"tokenizer", "convert", "--tokenizer", at("t"), "--out", at("v")}).code, 0);
  EXPECT_EQ(json::parse(bhyt({"tokenizer", "info", "--json", "--tokenizer", at("v")}).out)["fingerprint"], info["fingerprint"]);
  EXPECT_NE(bhyt({"tokenizer", "info", at("t")}).out.find("vocab_size     280"), std::string::npos);
}

TEST(TokenizerCli, ATokenizerThatIsThereIsReplacedOnlyByForce) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("a.txt")) << "low lower lowest";
  std::ofstream(at("b.txt")) << "new newer newest";
  const auto train = [&](const char* text, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args{"tokenizer", "train", "--vocab", "265", "--out", at("t"), at(text)};
    args.insert(args.end(), more.begin(), more.end());
    return bhyt(args);
  };
  ASSERT_EQ(train("a.txt").code, 0);
  const std::string before = read_text(dir.path / "t/tokenizer.json");
  for (const Outcome& again : {train("b.txt"), bhyt({"tokenizer", "convert", "--tokenizer", "bytes", "--out", at("t")})}) {
    EXPECT_EQ(again.code, 2);
    EXPECT_EQ(again.err,
              "error: " + at("t") + " already holds tokenizer.json; --force replaces the tokenizer there, another --out keeps it\n");
    EXPECT_EQ(read_text(dir.path / "t/tokenizer.json"), before);
  }
  std::ofstream(at("t/chat_template.jinja")) << "of the old one";
  std::ofstream(at("t/notes.md")) << "mine";
  ASSERT_EQ(train("b.txt", {"--force"}).code, 0);
  EXPECT_NE(read_text(dir.path / "t/tokenizer.json"), before);
  EXPECT_FALSE(fs::exists(at("t/chat_template.jinja")));
  EXPECT_TRUE(fs::exists(at("t/notes.md")));
  EXPECT_EQ(bhyt({"tokenizer", "convert", "--tokenizer", "bytes", "--out", at("t"), "--force"}).code, 0);
  EXPECT_EQ(json::parse(bhyt({"tokenizer", "info", "--json", at("t")}).out)["vocab_size"], 257);
}

// A disk that is full (here: files may not grow) leaves the old one as it was.
TEST(TokenizerCli, WhatCannotBeWrittenReplacesNothing) {
  const TempFolder dir;
  const std::string at = (dir.path / "t").string();
  ASSERT_EQ(bhyt({"tokenizer", "convert", "--tokenizer", "bytes", "--out", at}).code, 0);
  const std::string before = read_text(dir.path / "t/tokenizer.json");
  const std::string command = quoted(BHYT_PROGRAM) + " tokenizer convert --force --tokenizer bytes --out " + quoted(at);
  EXPECT_NE(std::system(("ulimit -f 4; " + command + " 2>" + quoted((dir.path / "err").string())).c_str()), 0);
  EXPECT_TRUE(has(read_text(dir.path / "err"), "/tokenizer.json: File too large")) << read_text(dir.path / "err");
  EXPECT_EQ(read_text(dir.path / "t/tokenizer.json"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(at), {}), 4);  // and no remains
}

TEST(TokenizerCli, WhereItGoesIsCheckedBeforeTheWork) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("a.txt")) << "low lower lowest";
  for (const char* out : {"a.txt", "a.txt/x/y"}) {
    const Outcome made = bhyt({"tokenizer", "train", "--vocab", "265", "--out", at(out), at("a.txt")});
    EXPECT_EQ(made.code, 1);
    EXPECT_EQ(made.err, "error: cannot write to " + at(out) + ": " + at("a.txt") + " is not a folder\n");
    EXPECT_EQ(bhyt({"tokenizer", "convert", "--tokenizer", "bytes", "--out", at(out)}).err, made.err);
  }
}

TEST(TokenizerCli, TextsThatAreNoneAreSaid) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("e.txt")) << " \n";
  std::ofstream(at("n.txt")) << "abc" << std::string(9, '\0');
  const Outcome empty = bhyt({"tokenizer", "train", "--vocab", "265", "--out", at("t"), at("e.txt")});
  EXPECT_EQ(empty.code, 1);
  EXPECT_NE(empty.err.find("nothing to learn from: no document has any text in " + at("e.txt")), std::string::npos) << empty.err;
  EXPECT_FALSE(fs::exists(at("t")));
  const Outcome odd = bhyt({"tokenizer", "train", "--vocab", "262", "--out", at("t"), at("n.txt")});
  EXPECT_EQ(odd.code, 0) << odd.err;
  EXPECT_NE(odd.err.find("n.txt: 75.0 % of its bytes are NUL or not UTF-8"), std::string::npos) << odd.err;
}

TEST(TokenizerCli, WrongUseAndFailedWork) {
  const TempFolder dir;
  const auto at = [&](const char* name) { return (dir.path / name).string(); };
  std::ofstream(at("bad.jsonl")) << "{\"text\": \"fine\"}\n{\"text\": oops}\n";
  EXPECT_EQ(bhyt({"tokenizer"}).code, 2);
  EXPECT_EQ(bhyt({"tokenizer", "--help"}).code, 0);
  EXPECT_EQ(bhyt({"tokenizer", "encode"}).code, 2);
  EXPECT_EQ(bhyt({"tokenizer", "train", "--vocab", "10", "--out", at("t"), at("bad.jsonl")}).code, 2);
  EXPECT_EQ(bhyt({"tokenizer", "train", "--vocab", "300", "--threads", "4097", "--out", at("t"), at("bad.jsonl")}).code, 2);
  EXPECT_EQ(bhyt({"tokenizer", "train", "--vocab", "0.3K", "--out", at("t"), at("bad.jsonl")}).code, 1);
  EXPECT_EQ(bhyt({"tokenizer", "train", "--vocab", "300", "--out", at("t"), at("none.jsonl")}).code, 1);
  EXPECT_EQ(bhyt({"tokenizer", "encode", "--tokenizer", at("none")}).code, 1);
  for (const char* ids : {"[1", "1", "[1,]", "[1 2]", "[a]", "[257]", "[-1]", "[99999999999]"})
    EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", "bytes"}, ids).code, 1) << ids;
}

TEST(TokenizerCli, Llama3) {
  const char* data = std::getenv("BHYT_DATA");
  if (!data) GTEST_SKIP() << "BHYT_DATA is not set";
  const std::string path = std::string(data) + "/tokenizers/llama3/tokenizer.model";
  const Outcome ids = bhyt({"tokenizer", "encode", "--tokenizer", path}, "Hello, world!<|eot_id|>");
  EXPECT_EQ(ids.out, "[128000,9906,11,1917,0,128009]\n");
  EXPECT_EQ(bhyt({"tokenizer", "decode", "--tokenizer", path}, ids.out).out, "Hello, world!");
}

}  // namespace
}  // namespace bhyt::test
