// Tokenizer files: what is written reads back the same, and what is damaged or unknown is refused by name.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "core/error.h"
#include "tests/text/fuzz_strings.h"
#include "tests/text/small_tokenizer.h"
#include "text/parse.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;
using Json = nlohmann::json;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("bhyt_files_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  void put(const std::string& name, const std::string& text) const { std::ofstream(dir_ / name, std::ios::binary) << text; }
  fs::path dir_;
};

void expect_same(const Tokenizer& a, const Tokenizer& b) {
  EXPECT_EQ(a.kind(), b.kind());
  EXPECT_EQ(a.vocab_size(), b.vocab_size());
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(a.bos(), b.bos());
  EXPECT_EQ(a.end_of_text(), b.end_of_text());
  EXPECT_EQ(a.stops(), b.stops());
  const test::FuzzStrings strings;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::string text = strings(i);
    ASSERT_EQ(a.encode(text), b.encode(text)) << text;
    ASSERT_EQ(a.encode(text, false), b.encode(text, false)) << text;
    ASSERT_EQ(a.decode(a.encode(text)), b.decode(b.encode(text))) << text;
  }
  for (TokenId id = 0; id < a.vocab_size(); ++id) ASSERT_EQ(a.piece(id, true), b.piece(id, true)) << id;
}

TEST_F(Files, WhatIsSavedLoadsTheSame) {
  std::vector<std::string> sources{"bytes"};
  if (const std::string data = test::data_dir(); !data.empty())
    for (const char* path : {"/tokenizers/llama3", "/tokenizers/gpt2", "/checkpoints/aidreams260K_tokenizer.bin"})
      sources.push_back(data + path);
  for (const std::string& source : sources) {
    const auto tokenizer = load_tokenizer(source);
    tokenizer->save(dir_);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"})
      EXPECT_TRUE(fs::exists(dir_ / name)) << source << " " << name;
    expect_same(*tokenizer, *load_tokenizer(dir_.string()));
  }
}

TEST_F(Files, EveryStepOfTokenizerJsonSurvivesSaving) {
  const std::vector<std::function<void(Json&)>> changes{
      [](Json&) {},
      [](Json& j) {
        j["normalizer"] = {{"type", "NFC"}};
      },
      [](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
      [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; },
      [](Json& j) { j["model"]["ignore_merges"] = true; },
      [](Json& j) {
        j["model"]["unk_token"] = "a";
        j["model"]["fuse_unk"] = true;
        j["model"]["vocab"].erase("z");
      },
      [](Json& j) {
        j["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, j["pre_tokenizer"]}}};
      },
      [](Json& j) {
        Json t = test::added_token(300, " wide ", false);  // ids with a gap
        t["lstrip"] = t["normalized"] = true;
        j["added_tokens"].push_back(t);
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Json j = test::small_json();
    changes[i](j);
    const auto tokenizer = parse_tokenizer_json(j.dump());
    tokenizer->save(dir_);
    SCOPED_TRACE(i);
    expect_same(*tokenizer, *load_tokenizer((dir_ / "tokenizer.json").string()));
  }
}

TEST_F(Files, MergesAsPairsOrStrings) {
  Json j = test::small_json();
  const auto pairs = parse_tokenizer_json(j.dump());
  for (Json& m : j["model"]["merges"]) m = m[0].get<std::string>() + " " + m[1].get<std::string>();
  expect_same(*pairs, *parse_tokenizer_json(j.dump()));
}

TEST_F(Files, CompanionsNameTheRolesAndAreKept) {
  Json j = test::small_json();
  j["added_tokens"].push_back(test::added_token(265, "<|turn|>"));
  put("tokenizer.json", j.dump());
  put("tokenizer_config.json", R"({"bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|turn|>", "chat_template": "{{x}}"})");
  put("generation_config.json", R"({"eos_token_id": [260, 265], "temperature": 0.6})");
  const auto t = load_tokenizer(dir_.string());
  EXPECT_EQ(t->bos(), 263);
  EXPECT_EQ(t->end_of_text(), 264);
  EXPECT_EQ(t->stops(), (Ids{264, 265, 260}));
  const fs::path copy = dir_ / "copy";
  t->save(copy);
  for (const char* name : {"tokenizer_config.json", "generation_config.json"})
    EXPECT_EQ(test::read_file((copy / name).string()), test::read_file((dir_ / name).string()));
}

// Llama-2 as transformers writes it: spaces as U+2581, characters without a token as bytes, a space before the text.
Json sentencepiece_json() {
  Json vocab{{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  char name[8];
  for (int b = 0; b < 256; ++b) {
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
    vocab[name] = 3 + b;
  }
  int next = 259;
  for (const char* piece : {"▁", "a", "b", "ab", "▁ab", "é"}) vocab[piece] = next++;
  return {{"added_tokens", {test::added_token(0, "<unk>"), test::added_token(1, "<s>"), test::added_token(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}}, {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}}}}}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", {"a b", "▁ ab"}}}}};
}

TEST_F(Files, SentencePieceStyle) {
  const auto t = parse_tokenizer_json(sentencepiece_json().dump());
  EXPECT_EQ(t->kind(), "sentencepiece");
  EXPECT_EQ(t->encode("ab"), (Ids{1, 263}));
  EXPECT_EQ(t->encode(" ab"), (Ids{1, 259, 263}));
  EXPECT_EQ(t->encode("ab</s>ab"), (Ids{1, 263, 2, 263}));
  EXPECT_EQ(t->encode("a日"), (Ids{1, 259, 260, 3 + 0xE6, 3 + 0x97, 3 + 0xA5}));
  EXPECT_EQ(t->encode("ab", false), (Ids{262}));  // nothing added, so that decoding gives the text back
  EXPECT_EQ(t->decode(t->encode("ab é日")), "ab é日");
  EXPECT_EQ(t->decode(t->encode(" ab", false)), " ab");
  t->save(dir_);
  expect_same(*t, *load_tokenizer(dir_.string()));

  Json first = sentencepiece_json();
  first["normalizer"] = nullptr;
  first["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  const auto f = parse_tokenizer_json(first.dump());
  EXPECT_EQ(f->encode("ab</s>ab"), (Ids{1, 263, 2, 262}));
  EXPECT_EQ(f->encode(" ab"), (Ids{1, 263}));
  f->save(dir_);
  expect_same(*f, *load_tokenizer(dir_.string()));
}

void expect_refused(const std::string& json, const std::string& words) {
  try {
    parse_tokenizer_json(json);
    ADD_FAILURE() << "accepted: " << words;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

TEST(Hostile, TokenizerJson) {
  expect_refused("", "not JSON");
  expect_refused("[]", "file");
  expect_refused("{", "not JSON");
  expect_refused("{}", "model");
  expect_refused("\"\xFF\"", "not JSON");
  expect_refused(std::string(100000, '['), "nested");
  expect_refused("{\"model\":" + std::string(100000, '[') + std::string(100000, ']') + "}", "nested");
  expect_refused(test::small_json().dump() + std::string(1, '\0') + "more", "zero byte");
  const auto refused = [](const char* words, const std::function<void(Json&)>& change) {
    Json j = test::small_json();
    change(j);
    expect_refused(j.dump(), words);
  };
  const Json one = 1;
  refused("model.type", [](Json& j) { j["model"]["type"] = "Unigram"; });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"] = Json::array(); });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"] = Json::object(); });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"]["new"] = 7; });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"]["new"] = -1; });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"]["new"] = 4000000000u; });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"]["new"] = 1000000; });  // a table of a million for a few tokens
  refused("added_tokens", [](Json& j) { j["added_tokens"][0]["id"] = 1000000; });
  refused("model.vocab", [](Json& j) { j["model"]["vocab"]["new"] = "7"; });
  refused("merge 7", [](Json& j) { j["model"]["merges"].push_back({"q", "nowhere"}); });
  refused("merge 7", [](Json& j) { j["model"]["merges"].push_back({"q", "q"}); });
  refused("merge 7", [](Json& j) { j["model"]["merges"].push_back("a b c"); });
  refused("model.merges", [](Json& j) { j["model"]["merges"].push_back({"a", "b", "c"}); });
  refused("model.merges", [](Json& j) { j["model"]["merges"] = 3; });
  refused("model.dropout", [](Json& j) { j["model"]["dropout"] = 0.1; });
  refused("model.end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  refused("model.unk_token", [](Json& j) { j["model"]["unk_token"] = "nowhere"; });
  refused("byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = true; });
  refused("normalizer", [](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; });
  refused("normalizer", [](Json& j) { j["normalizer"] = 3; });
  refused("pre_tokenizer", [](Json& j) { j["pre_tokenizer"] = nullptr; });
  refused("pre_tokenizer", [](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; });
  refused("pattern of Llama-3", [](Json& j) {
    j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}, {"invert", false}};
  });
  refused("added_tokens", [](Json& j) { j["added_tokens"][0]["single_word"] = true; });
  refused("another token's", [](Json& j) { j["added_tokens"][0]["id"] = 5; });
  refused("added_tokens", [](Json& j) { j["added_tokens"][0]["id"] = nullptr; });
  refused("that the vocabulary gives it", [](Json& j) { j["added_tokens"][0]["content"] = "hello"; });
  refused("not empty", [](Json& j) { j["added_tokens"][0]["content"] = ""; });
  refused("decoder", [](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; });
  refused("post_processor", [](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; });
  refused("one Sequence", [](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}}; });
  refused("ids of", [](Json& j) {
    j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", {{"id", "x"}}}}}}};
  });
}

std::string base64(int byte) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
}

TEST(Hostile, Tiktoken) {
  for (const char* text :
       {"", "IQ== 0\n", "IQ==\n", "IQ== x\n", "IQ== 1\n", "I!== 0\n", "IQ= 0\n", " 0\n", "IQ== 0 \n", "IQ== 99999999999999999999\n"})
    EXPECT_THROW(parse_tiktoken(text), Error) << text;
  std::string bytes;  // all but one byte: some text would have no ids
  for (int b = 0; b < 255; ++b) bytes += fmt::format("{} {}\n", base64(b), b);
  EXPECT_THROW(read_tiktoken(bytes, 255), Error);
  bytes += fmt::format("{} 255\n", base64(255));
  EXPECT_EQ(finish_tokenizer(read_tiktoken(bytes, 256))->encode("a\xFF", false), (Ids{'a', 255}));
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  std::string model = test::read_file(test::data_dir() + "/tokenizers/llama3/tokenizer.model");
  EXPECT_THROW(parse_tiktoken(std::string_view(model).substr(0, model.size() / 2)), Error);
  model.replace(model.find("Ig== 1"), 6, "IQ== 1");
  EXPECT_THROW(parse_tiktoken(model), Error);  // the same token twice
}

TEST(Hostile, Llama2c) {
  EXPECT_THROW(parse_llama2c(""), Error);
  EXPECT_THROW(parse_llama2c(std::string(4, '\0')), Error);
  EXPECT_THROW(parse_llama2c(std::string(400, '\xFF')), Error);
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const std::string file = test::read_file(test::data_dir() + "/checkpoints/aidreams260K_tokenizer.bin");
  std::size_t accepted = 0;
  for (std::size_t n = 3000; n < file.size(); ++n) {  // cut anywhere: refused, or whole pieces less
    try {
      accepted += parse_llama2c(std::string_view(file).substr(0, n)) != nullptr;
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(accepted, 512u - 259u);
  for (std::size_t i = 0; i < file.size(); i += 41) {  // flip bits: refused or read, never worse
    std::string bad = file;
    bad[i] = static_cast<char>(bad[i] ^ 0x5A);
    try {
      EXPECT_EQ(parse_llama2c(bad)->decode({1, 300}), parse_llama2c(bad)->piece(300, false));
    } catch (const Error&) {
    }
  }
}

TEST(Hostile, VocabMerges) {
  EXPECT_THROW(parse_vocab_merges("{}", ""), Error);
  EXPECT_THROW(parse_vocab_merges("nonsense", ""), Error);
  EXPECT_THROW(parse_vocab_merges(R"({"a":0,"b":1})", "a b\n"), Error);
  EXPECT_THROW(parse_vocab_merges(R"({"a":0,"b":1,"ab":2})", "ab\n"), Error);
  EXPECT_EQ(parse_vocab_merges(R"({"a":0,"b":1,"ab":2})", "#version: 0.2\r\na b\r\n")->encode("abba"), (Ids{2, 1, 0}));
}

TEST_F(Files, WhatIsNotThereIsSaid) {
  const auto message = [](const std::string& what) -> std::string {
    try {
      load_tokenizer(what);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message((dir_ / "nothing").string()).find("nothing"), std::string::npos);
  EXPECT_NE(message(dir_.string()).find("tokenizer.json"), std::string::npos);
  put("vocab.json", "{}");
  EXPECT_NE(message(dir_.string()).find("merges.txt"), std::string::npos);
  put("tokenizer.model", "\x0A\x05<unk>");
  EXPECT_NE(message(dir_.string()).find("sentencepiece"), std::string::npos);
  put("tokenizer.json", "{}");
  EXPECT_NE(message(dir_.string()).find((dir_ / "tokenizer.json").string()), std::string::npos);
  put("notes.txt", "hello");
  EXPECT_NE(message((dir_ / "notes.txt").string()).find("expected tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace bhyt
