// Ids equal to those of `tokenizers`, `tiktoken` and llama2.c, as tests/golden/tokenizer/golden.json keeps them.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <sstream>

#include "data/input.h"
#include "data/json_text.h"
#include "tests/text/fuzz_strings.h"
#include "text/normalize.h"

namespace bhyt {
namespace {

using test::Checksum;
using Json = nlohmann::json;

const Json& golden() {
  static const Json j = test::golden_json("golden.json");
  return j;
}

const test::FuzzStrings& fuzz() {
  static const test::FuzzStrings strings;
  return strings;
}

std::string read_input(const std::string& path) {
  const auto stream = open_input(find_inputs({path}).at(0));
  std::string all;
  char buffer[1 << 16];
  for (std::size_t n = 0; (n = stream->read(buffer, sizeof buffer)) > 0;) all.append(buffer, n);
  return all;
}

// The texts of JSONL, or the whole of a text file.
std::vector<std::string> documents(const std::string& path) {
  const std::string all = read_input(path);
  if (path.find(".jsonl") == path.npos) return {all};
  std::vector<std::string> texts;
  JsonText json("text");
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view text;
    if (end > 0) {
      EXPECT_TRUE(json.scan(rest.substr(0, end), text)) << json.error();
      texts.emplace_back(text);
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return texts;
}

// GPT-2's vocabulary behind other steps, as scripts/tokenizer_oracles.py builds them.
Json gpt2_json() {
  static const Json j = [] {
    const auto dir = std::filesystem::path(::testing::TempDir()) / "bhyt_gpt2";
    load_tokenizer(test::data_dir() + "/tokenizers/gpt2")->save(dir);
    return Json::parse(test::read_file(dir / "tokenizer.json"));
  }();
  return j;
}

Json added(int id, const char* text, bool special, bool lstrip, bool rstrip) {
  return {{"id", id},         {"content", text},        {"single_word", false}, {"lstrip", lstrip},
          {"rstrip", rstrip}, {"normalized", !special}, {"special", special}};
}

std::unique_ptr<Tokenizer> build(const std::string& name) {
  const std::string data = test::data_dir() + "/tokenizers/";
  if (name == "llama3" || name == "gpt2") return load_tokenizer(data + name);
  Json j = gpt2_json();
  const Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  if (name == "gpt2_qwen2_nfc") {
    const char* regex = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    j["normalizer"] = {{"type", "NFC"}};
    const Json split{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
    j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  } else if (name == "gpt2_digits") {
    Json regex = bytes;
    regex["use_regex"] = true;
    j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, regex}}};
  } else {
    j["pre_tokenizer"] = bytes;
    j["pre_tokenizer"]["use_regex"] = j["pre_tokenizer"]["add_prefix_space"] = true;
    j["added_tokens"].push_back(added(50257, "<|im_start|>", true, true, false));
    j["added_tokens"].push_back(added(50258, "<|im_end|>", true, false, true));
    j["added_tokens"].push_back(added(31373, "hello", false, false, false));
    j["added_tokens"].push_back(added(50259, "hello world", false, false, false));
  }
  return parse_tokenizer_json(j.dump());
}

// Each is built once: loading takes longer than most of what is done with it.
const Tokenizer& shared(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> built;
  auto& t = built[name];
  if (!t) t = build(name);
  return *t;
}

// The sanitizers look at the same code with a tenth of the strings. Theirs is a program that holds this function.
extern "C" void __asan_init() __attribute__((weak));
const std::uint64_t kEvery = __asan_init ? 10 : 1;

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
    tokenizer_ = &shared(GetParam());
    wanted_ = &golden()["tokenizers"][GetParam()];
    // Ours puts nothing before a text when no special tokens are asked for, so that decoding gives the text back.
    compare_plain_ = std::string(GetParam()) != "gpt2_prefix_added";
  }
  const Tokenizer* tokenizer_ = nullptr;
  const Json* wanted_ = nullptr;
  bool compare_plain_ = true;
};

TEST_P(Golden, Texts) {
  for (const Json& c : (*wanted_)["texts"]) {
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text), c["ids"].get<std::vector<TokenId>>()) << text;
    if (compare_plain_) {
      EXPECT_EQ(tokenizer_->encode(text, false), c["plain"].get<std::vector<TokenId>>()) << text;
    }
  }
}

TEST_P(Golden, FuzzedStrings) {
  const auto group = golden()["fuzz_group"].get<std::uint64_t>();
  const auto special = (*wanted_)["fuzz"]["special"].get<std::vector<std::uint32_t>>();
  const auto plain = (*wanted_)["fuzz"]["plain"].get<std::vector<std::uint32_t>>();
  const bool exact = std::string(GetParam()) != "gpt2_qwen2_nfc";  // NFC changes the text
  std::vector<TokenId> ids;
  for (std::uint64_t g = 0; g < special.size(); g += kEvery) {
    Checksum with, without;
    for (std::uint64_t i = g * group; i < (g + 1) * group; ++i) {
      const std::string text = fuzz()(i);
      ids.clear();
      tokenizer_->encode(text, ids, {.special = true});
      with.add(ids);
      ids.clear();
      tokenizer_->encode(text, ids, {.special = false});
      without.add(ids);
      if (exact) {
        ASSERT_EQ(tokenizer_->decode(ids), text) << "string " << i;
      }
    }
    ASSERT_EQ(with.value(), special[g]) << "strings from " << g * group << ", with special tokens";
    if (compare_plain_) {
      ASSERT_EQ(without.value(), plain[g]) << "strings from " << g * group << ", without special tokens";
    }
  }
}

TEST_P(Golden, Corpora) {
  if (!wanted_->contains("corpora")) GTEST_SKIP() << "covered by the fuzzed strings";
  const std::map<std::string, const char*> paths{{"wikipedia_valid", "/text/wikipedia_valid.jsonl.zst"},
                                                 {"c4_validation_1k", "/text/c4_validation_1k.jsonl.gz"},
                                                 {"wikitext2", "/text/wikitext2_raw_test.txt"}};
  for (const auto& [name, want] : (*wanted_)["corpora"].items()) {
    const std::vector<std::string> texts = documents(test::data_dir() + paths.at(name));
    EXPECT_EQ(texts.size(), want["texts"].get<std::size_t>()) << name;
    Threads threads;
    const auto all = encode_all(threads, *tokenizer_, {texts.begin(), texts.end()}, {.special = false});
    Checksum sum;
    std::size_t count = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      sum.add(all[i]);
      count += all[i].size();
      ASSERT_EQ(tokenizer_->decode(all[i]), texts[i]) << name << " " << i;
    }
    EXPECT_EQ(count, want["ids"].get<std::size_t>()) << name;
    EXPECT_EQ(sum.value(), want["crc"].get<std::uint32_t>()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden, ::testing::Values("llama3", "gpt2", "gpt2_qwen2_nfc", "gpt2_digits", "gpt2_prefix_added"),
                         [](const auto& p) { return std::string(p.param); });

TEST(Llama3, CasesOfLlamaCpp) {
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const std::string dir = test::data_dir() + "/tokenizers/llama3";
  const Tokenizer* const tokenizer = &shared("llama3");
  const std::string in = test::read_file(dir + "/cases.inp"), out = test::read_file(dir + "/cases.out");
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(out);
  int cases = 0;
  for (std::size_t at = 0; at < in.size(); ++cases) {
    const std::size_t end = std::min(in.find(separator, at), in.size());
    const std::string text = in.substr(at, end - at);
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream numbers(line);
    const std::vector<TokenId> ids{std::istream_iterator<TokenId>(numbers), {}};
    EXPECT_EQ(tokenizer->encode(text, false), ids) << text;
    EXPECT_EQ(tokenizer->decode(ids), text);
    at = end + separator.size();
  }
  EXPECT_GT(cases, 40);
}

TEST(Llama2c, EncodesAsLlama2cDoes) {
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const auto tokenizer = load_tokenizer(test::data_dir() + "/checkpoints/aidreams260K_tokenizer.bin");
  for (const Json& c : golden()["llama2c"]) {
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), c["ids"].get<std::vector<TokenId>>()) << text;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false)), text);
  }
}

TEST(Llama2c, DecodesTheGreedyText) {
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const auto tokenizer = load_tokenizer(test::data_dir() + "/checkpoints/aidreams260K_tokenizer.bin");
  const Json greedy = Json::parse(test::read_file(test::data_dir() + "/checkpoints/greedy.json"))["aidreams260K"];
  auto ids = greedy["greedy_from_bos"].get<std::vector<TokenId>>();
  ids.erase(ids.begin());
  EXPECT_EQ(tokenizer->decode(ids), greedy["text"].get<std::string>());
}

TEST(Nfc, EqualsTheOracle) {
  for (const Json& pair : golden()["nfc"]) EXPECT_EQ(unicode::nfc(pair[0].get<std::string>()), pair[1].get<std::string>());
}

}  // namespace
}  // namespace bhyt
