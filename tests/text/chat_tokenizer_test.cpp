// Templates from YAML, and the tokenizer that a tuned model is saved with.
#include "text/chat_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/text/fuzz_strings.h"
#include "tests/text/small_tokenizer.h"
#include "text/chat_jinja.h"
#include "text/chat_template_yaml.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Messages = std::vector<ChatMessage>;

std::string quoted_list(const std::vector<std::string>& texts) { return Json(texts).dump(); }

// JSON is YAML.
std::string as_yaml(const ChatTemplate& t) {
  std::string y = "name: " + t.name + "\n";
  for (const auto& [key, texts] : {std::pair("prefix", &t.prefix),
                                   {"system", &t.system},
                                   {"user", &t.user},
                                   {"answer", &t.answer},
                                   {"tokens", &t.tokens},
                                   {"stops", &t.stops}})
    y += std::string(key) + ": " + quoted_list(*texts) + "\n";
  if (t.default_system) y += "default_system: " + Json(*t.default_system).dump() + "\n";
  return y + "trims: " + (t.trims ? "true" : "false") + "\n";
}

std::string refusal(const std::string& yaml) {
  try {
    parse_chat_template(yaml, "dir/mine.yaml");
  } catch (const UsageError& e) {
    return e.what();
  }
  return "taken";
}

TEST(ChatTemplateYaml, SaysTheSameAsTheTable) {
  for (ChatTemplate row : chat_templates()) {
    EXPECT_EQ(parse_chat_template(as_yaml(row), "x.yaml"), row) << row.name;
    row.trims = true;
    EXPECT_EQ(parse_chat_template(as_yaml(row), "x.yaml"), row) << row.name;
  }
}

TEST(ChatTemplateYaml, FewFieldsAreEnough) {
  const ChatTemplate row = parse_chat_template("user: \"{c}\\n\"\nanswer: [\"{c}\", \"{eos}\"]\n", "dir/mine.yaml");
  EXPECT_EQ(row, (ChatTemplate{.name = "mine", .user = {"{c}\n"}, .answer = {"{c}", "{eos}"}}));
}

TEST(ChatTemplateYaml, MistakesAreNamed) {
  const std::string good = "user: \"{c}\"\nanswer: \"{c}\"\n", from = "chat template dir/mine.yaml: ";
  EXPECT_EQ(refusal(good), "taken");
  EXPECT_TRUE(refusal(good + "sytem: \"{c}\"\n").starts_with(from + "unknown key sytem (did you mean system?)"))
      << refusal(good + "sytem: \"{c}\"\n");
  EXPECT_EQ(refusal("user: \"{c}\"\n"), from + "answer is missing: a list of slots, one of them with {c} for the message");
  EXPECT_EQ(refusal("user: \"x\"\nanswer: \"{c}\"\n"), from + "user must have {c} where the message stands");
  for (const char* wrong : {"user: {c}\nanswer: \"{c}\"\n", "user: [{c}]\nanswer: \"{c}\"\n", "user: 7\nanswer: \"{c}\"\n"})
    EXPECT_TRUE(refusal(wrong).starts_with(from + "user must be a text in quotes (\"{c}\")")) << refusal(wrong);
  EXPECT_TRUE(refusal(good + "trims: maybe\n").starts_with(from + "trims must be true or false")) << refusal(good + "trims: maybe\n");
  EXPECT_TRUE(refusal(good + "default_system: [a]\n").starts_with(from + "default_system must be"))
      << refusal(good + "default_system: [a]\n");
  EXPECT_TRUE(refusal(good + "default_system: a\n").starts_with(from + "default_system needs slots under system"));
  EXPECT_EQ(refusal(good + "prefix: \"{c}\"\n"), from + "prefix cannot hold a message ({c})");
  EXPECT_TRUE(refusal("user: \"{bos}{c}\"\nanswer: \"{c}\"\n").starts_with(from + "{bos} must be a slot of its own"));
  EXPECT_EQ(refusal(good + "tokens: \"\"\n"), from + "tokens cannot hold an empty text");
  EXPECT_NE(refusal("[1, 2]\n").find("a map of keys"), std::string::npos) << refusal("[1, 2]\n");
  EXPECT_NE(refusal("a: [\n").find("mine.yaml"), std::string::npos);
}

class ChatTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  // The tokenizer as a model's user finds it.
  std::unique_ptr<Tokenizer> saved(const ChatFormat& format) {
    chat_tokenizer(format)->save(dir_ / "out");
    return load_tokenizer((dir_ / "out").string());
  }
  Json file(const char* name) const { return Json::parse(test::read_file(dir_ / "out" / name)); }
  const fs::path dir_ = fs::path(::testing::TempDir()) / "bhyt_chat_tokenizer";
};

Messages talk() {
  return {{ChatRole::system, "be kind"},
          {ChatRole::user, "h\xC3\xA9llo <|im_end|><|eot_id|>"},
          {ChatRole::assistant, " \nhello<|end_of_text|>"},
          {ChatRole::user, "well?"}};
}

// Whatever the tokenizer and the template: the saved one gives the ids that were trained on, knows where an answer ends, and names the
// template.
void expect_same(const ChatFormat& format, const Tokenizer& loaded, const fs::path& at) {
  const ChatTemplate& row = format.row();
  const auto own = own_chat_template(at, loaded);
  ASSERT_TRUE(own) << row.name;
  EXPECT_EQ(own->name, row.name);
  const ChatFormat after(*own, loaded);
  EXPECT_TRUE(after.missing().empty()) << row.name;
  EXPECT_EQ(after.prompt(talk()), format.prompt(talk())) << row.name;
  EXPECT_EQ(after.end(), format.end()) << row.name;
  EXPECT_EQ(loaded.eos(), format.end()) << row.name;
  EXPECT_EQ(std::ranges::count(loaded.stops(), *format.end()), 1) << row.name;
  EXPECT_EQ(loaded.vocab_size(), format.tokenizer().vocab_size() + std::ssize(format.missing())) << row.name;
  for (const SpecialToken& t : format.missing()) EXPECT_EQ(loaded.piece(t.id, true), t.text);
  const auto a = format.turns(talk()), b = after.turns(talk());
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].source, b[i].source) << row.name;
    EXPECT_EQ(a[i].target, b[i].target) << row.name;
  }
}

TEST_F(ChatTokenizer, SavedAndLoadedAgain) {
  const auto small = parse_tokenizer_json(test::small_json().dump()), bytes = make_byte_tokenizer();
  for (const Tokenizer* tokenizer : {small.get(), bytes.get()})
    for (const ChatTemplate& row : chat_templates()) {
      const ChatFormat format(row, *tokenizer);
      const auto loaded = saved(format);
      expect_same(format, *loaded, dir_ / "out");
      const Json config = file("tokenizer_config.json"), map = file("special_tokens_map.json"), generation = file("generation_config.json");
      const std::string end = loaded->piece(*loaded->eos(), true);
      EXPECT_EQ(config["eos_token"], end);
      EXPECT_EQ(config["pad_token"], end);
      EXPECT_EQ(map["eos_token"], end);
      EXPECT_EQ(map["pad_token"], end);
      EXPECT_EQ(config["chat_template"], chat_jinja(row, *tokenizer));
      EXPECT_EQ(generation["pad_token_id"], *loaded->eos());
      EXPECT_EQ(generation["eos_token_id"], Json(loaded->stops()));
      if (format.missing().empty()) {
        EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint()) << row.name;
      }
      EXPECT_EQ(loaded->bos(), tokenizer->bos()) << row.name;
      EXPECT_EQ(loaded->end_of_text(), tokenizer->end_of_text()) << row.name;
    }
}

TEST_F(ChatTokenizer, FilesBesideItKeepWhatElseTheySay) {
  Json json = test::small_json();
  std::ofstream(dir_ / "tokenizer.json") << json.dump();
  std::ofstream(dir_ / "tokenizer_config.json")
      << R"({"model_max_length": 77, "eos_token": {"content": "<|end_of_text|>"}, "added_tokens_decoder": {}})";
  std::ofstream(dir_ / "generation_config.json") << R"({"temperature": 0.5, "eos_token_id": 264})";
  std::ofstream(dir_ / "chat_template.jinja") << "{{ another }}";
  const auto tokenizer = load_tokenizer(dir_.string());
  const ChatFormat format(find_chat_template("chatml"), *tokenizer);
  const auto loaded = saved(format);
  expect_same(format, *loaded, dir_ / "out");
  EXPECT_EQ(file("tokenizer_config.json")["model_max_length"], 77);
  EXPECT_EQ(file("tokenizer_config.json")["added_tokens_decoder"]["265"]["content"], "<|im_end|>");
  EXPECT_EQ(file("generation_config.json")["temperature"], 0.5);
  EXPECT_EQ(file("generation_config.json")["eos_token_id"], Json({264, 265}));
  EXPECT_FALSE(fs::exists(dir_ / "out" / "chat_template.jinja"));
  loaded->save(dir_ / "again");  // as a run does that starts from it
  expect_same(format, *load_tokenizer((dir_ / "again").string()), dir_ / "again");
}

TEST_F(ChatTokenizer, BytesKeepTheirTemplate) {
  const auto bytes = make_byte_tokenizer();
  const auto loaded = saved(ChatFormat(find_chat_template("default"), *bytes));
  EXPECT_EQ(loaded->kind(), "bytes");
  loaded->save(dir_ / "again");
  EXPECT_EQ(own_chat_template(dir_ / "again", *loaded)->name, "default");
}

TEST_F(ChatTokenizer, TemplatesOfAUsersOwn) {
  ChatTemplate mine{.name = "mine",
                    .prefix = {"{bos}", "it's\\n\n"},
                    .system = {"<sys>{c}", "{eos}"},
                    .user = {"<|u|>{c}", "{eos}", "<|a|>"},
                    .answer = {"{c}", "{eos}", "\n"},
                    .default_system = "don't",
                    .tokens = {"<|end|>", "<|u|>"}};
  const auto small = parse_tokenizer_json(test::small_json().dump());
  for (const bool trims : {false, true}) {
    mine.trims = trims;
    const ChatFormat format(mine, *small);
    EXPECT_EQ(format.end(), 265);
    const auto loaded = saved(format);
    const auto own = own_chat_template(dir_ / "out", *loaded);
    ASSERT_TRUE(own);
    EXPECT_EQ(own->name, "own");
    const ChatFormat after(*own, *loaded);
    EXPECT_EQ(after.text(talk()), format.text(talk()));
    EXPECT_EQ(after.prompt(talk()), format.prompt(talk()));
    const Messages without{{ChatRole::user, "hi"}};
    EXPECT_EQ(after.text(without), format.text(without));
    EXPECT_EQ(std::ranges::count(after.stops(), 265), 1);
  }
  const ChatTemplate bare{.name = "bare", .user = {"{c}"}, .answer = {"{c}", "{eos}"}};
  const ChatFormat format(bare, *small);
  const auto loaded = saved(format);
  EXPECT_EQ(ChatFormat(own_chat_template(dir_ / "out", *loaded).value(), *loaded).text(talk()), format.text(talk()));
}

TEST_F(ChatTokenizer, GoldenVocabulariesGrowAsTheReferencesDo) {
  if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const Json jinja = Json::parse(test::read_file(fs::path(test::data_dir()).parent_path() / "fixtures/sft/tokenize/chat_templates.json"));
  for (const auto& [name, first] : {std::pair("gpt2", 50257), {"llama3", 128256}}) {
    const auto tokenizer = load_tokenizer(test::data_dir() + "/tokenizers/" + name);
    for (const char* row : {"default", "llama3", "chatml"}) {
      const ChatFormat format(find_chat_template(row), *tokenizer);
      const auto loaded = saved(format);
      expect_same(format, *loaded, dir_ / "out");
      EXPECT_EQ(file("tokenizer_config.json")["chat_template"], jinja[name][row]);
      if (std::string(row) == "chatml") {
        EXPECT_EQ(loaded->eos(), first);
        EXPECT_EQ(loaded->piece(first + 1, true), "<|im_start|>");
      }
    }
  }
}

}  // namespace
}  // namespace bhyt
