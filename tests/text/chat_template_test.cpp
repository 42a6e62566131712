// Conversations as text and tokens, against what LLaMA-Factory and transformers make of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/input.h"
#include "tests/text/fuzz_strings.h"
#include "tests/text/small_tokenizer.h"
#include "text/chat_jinja.h"
#include "text/chat_template.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Messages = std::vector<ChatMessage>;

// Byte tokens with the special tokens of Llama-3 and ChatML, which puts its begin-of-text before every text.
Json chat_json() {
  Json j = test::small_json();
  int id = 265;
  for (const char* text : {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|im_start|>", "<|im_end|>"})
    j["added_tokens"].push_back(test::added_token(id++, text));
  const Json bos{{"id", "<|begin_of_text|>"}, {"ids", {263}}, {"tokens", {"<|begin_of_text|>"}}};
  j["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|begin_of_text|>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens", {{"<|begin_of_text|>", bos}}}};
  return j;
}

std::vector<TokenId> joined(const std::vector<ChatFormat::Turn>& turns) {
  std::vector<TokenId> all;
  for (const auto& t : turns) {
    all.insert(all.end(), t.source.begin(), t.source.end());
    all.insert(all.end(), t.target.begin(), t.target.end());
  }
  return all;
}

Messages two_turns() {
  return {{ChatRole::system, "be kind"}, {ChatRole::user, "hi"}, {ChatRole::assistant, "hello"}, {ChatRole::user, "well?"}};
}

TEST(ChatTemplate, RowsAsText) {
  const auto t = parse_tokenizer_json(chat_json().dump());
  const auto text = [&](const char* name, const Messages& messages) { return ChatFormat(find_chat_template(name), *t).text(messages); };
  EXPECT_EQ(
      text("default", two_turns()),
      "System: be kind<|end_of_text|>\nHuman: hi<|end_of_text|>\nAssistant:hello<|end_of_text|>\nHuman: well?<|end_of_text|>\nAssistant:");
  EXPECT_EQ(text("llama3", {{ChatRole::user, "hi"}, {ChatRole::assistant, "hello"}}),
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            "hello<|eot_id|>");
  EXPECT_EQ(text("plain", two_turns()), "<|begin_of_text|>be kind\nhi\nhello<|end_of_text|>\nwell?\n");
  EXPECT_EQ(text("alpaca", {{ChatRole::system, ""}, {ChatRole::user, "hi"}}), "### Instruction:\nhi\n\n### Response:\n");
  ChatTemplate trims = find_chat_template("plain");
  trims.trims = true;
  EXPECT_EQ(ChatFormat(trims, *t).text(Messages{{ChatRole::user, " \n\u00a0a b\u2003 "}}), "<|begin_of_text|>a b\n");
  EXPECT_THROW(text("plain", {{ChatRole::user, "hi"}, {ChatRole::system, "late"}}), Error);
}

TEST(ChatTemplate, ATokenOfTheTokenizerAndNothingAdded) {
  const auto t = parse_tokenizer_json(chat_json().dump());
  const ChatFormat format(find_chat_template("chatml"), *t);
  EXPECT_EQ(format.prompt(Messages{{ChatRole::user, "ab"}}), (std::vector<TokenId>{269, 'u', 's', 'e', 'r', '\n', 'a', 'b', 270, '\n', 269,
                                                                                   'a', 's', 's', 'i', 's', 't',  'a', 'n', 't', '\n'}));
  EXPECT_TRUE(format.missing().empty());
  for (const TokenId id : {264, 270}) EXPECT_EQ(std::ranges::count(format.stops(), id), 1) << id;
}

// "x\n\n" + "y" is cut before its last line break as a whole, and behind it in two slots.
TEST(ChatTemplate, APromptIsOneTextAndASlotIsByItself) {
  Json j = chat_json();
  j["model"]["vocab"][bytes_to_chars("\n\n")] = 271;
  j["model"]["merges"].push_back({bytes_to_chars("\n"), bytes_to_chars("\n")});
  const auto t = parse_tokenizer_json(j.dump());
  const ChatFormat format(find_chat_template("alpaca"), *t);
  const Messages messages{{ChatRole::system, "x\n\n"}, {ChatRole::user, "y"}};
  EXPECT_EQ(std::ranges::count(format.prompt(messages), 271), 0);
  EXPECT_EQ(std::ranges::count(format.turns(messages).at(0).source, 271), 1);
}

TEST(ChatTemplate, TurnsTellGivenFromAnswered) {
  const auto t = parse_tokenizer_json(chat_json().dump());
  for (const ChatTemplate& row : chat_templates()) {
    const ChatFormat format(row, *t);
    const auto turns = format.turns(two_turns());
    ASSERT_EQ(turns.size(), 2u) << row.name;
    EXPECT_EQ(t->decode(joined(turns), true), format.text(two_turns())) << row.name;
    EXPECT_TRUE(turns[1].target.empty()) << row.name;
    const std::string target = t->decode(turns[0].target, true);
    EXPECT_TRUE(target.starts_with("hello<|e") || target.starts_with("hello<|im_end|>")) << row.name << ": " << target;
  }
}

TEST(ChatTemplate, TokensThatTheVocabularyLacksComeAfterIt) {
  const auto bytes = make_byte_tokenizer();
  const ChatFormat format(find_chat_template("chatml"), *bytes);
  ASSERT_EQ(format.missing().size(), 2u);
  EXPECT_EQ(format.missing()[0].text, "<|im_end|>");
  const std::vector<TokenId> ids = format.prompt(Messages{{ChatRole::user, "a<|im_end|>b<|endoftext|>"}});
  const std::vector<TokenId> middle(ids.begin() + 6, ids.begin() + 12);
  EXPECT_EQ(ids.front(), 258);
  EXPECT_EQ(std::ranges::count(format.stops(), 257), 1);
  EXPECT_EQ(middle, (std::vector<TokenId>{'a', 257, 'b', 256, 257, '\n'}));
}

TEST(ChatTemplate, AnUnknownNameIsToldAllNames) {
  try {
    find_chat_template("lama3");
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_STREQ(e.what(), "unknown chat template lama3; expected one of default, alpaca, llama3, chatml, plain");
  }
}

TEST(ChatTemplate, EveryRowIsRecognisedByItsJinja) {
  const auto t = parse_tokenizer_json(chat_json().dump());
  for (const ChatTemplate& row : chat_templates()) {
    const auto found = recognise_chat_template(chat_jinja(row, *t), *t);
    ASSERT_TRUE(found) << row.name;
    EXPECT_EQ(found->name, row.name);
  }
}

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

TEST(ChatTemplate, SpellingDoesNotMatterButMeaningDoes) {
  const auto t = make_byte_tokenizer();
  const auto is_chatml = [&](const std::string& jinja) { return recognise_chat_template(jinja, *t).has_value(); };
  EXPECT_TRUE(is_chatml(kChatMl));
  EXPECT_TRUE(is_chatml(R"({%- for message in messages -%}
      {{- "<|im_start|>" + message["role"] + "\n" + message["content"] + "<|im_end|>" + "\n" -}}
    {%- endfor -%}
    {%- if add_generation_prompt -%}
      {{- "<|im_start|>assistant\n" -}}
    {%- endif -%})"));
  EXPECT_TRUE(is_chatml(
      std::string("{% if not add_generation_prompt is defined %}\n{% set add_generation_prompt = false %}\n  {% endif %}\n") + kChatMl));
  std::string cut = kChatMl;
  cut.replace(cut.find(" %}{{"), 5, " -%}\n  {{");
  EXPECT_TRUE(is_chatml(cut)) << cut;
  std::string other = kChatMl;
  EXPECT_TRUE(is_chatml(other + "\n"));                                // a line break after a block is not rendered
  EXPECT_FALSE(is_chatml(other + " \n"));                              // but this is
  EXPECT_FALSE(is_chatml(other.replace(other.find("{{'"), 0, "  ")));  // blanks before every message
  EXPECT_FALSE(is_chatml(std::string(kChatMl).replace(0, 2, "{")));
  for (const char* broken : {"", "{", "{{", "{% 'x", "{{ 'a\\", "text"}) EXPECT_FALSE(is_chatml(broken)) << broken;
}

TEST(ChatTemplate, ADefaultSystemMessageIsTakenOver) {
  const auto t = make_byte_tokenizer();
  const std::string jinja =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
      "helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  const auto row = recognise_chat_template(jinja, *t);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->name, "chatml");
  EXPECT_EQ(row->default_system, "You are a helpful assistant.");
}

TEST(ChatTemplate, FilesBesideATokenizer) {
  const fs::path dir = fs::path(::testing::TempDir()) / "bhyt_chat_template";
  fs::remove_all(dir);
  fs::create_directories(dir);
  const auto t = make_byte_tokenizer();
  const auto write = [&](const char* name, const std::string& text) { std::ofstream(dir / name) << text; };
  const auto name = [&](const fs::path& where) {
    const auto row = own_chat_template(where, *t);
    return row ? row->name : "none";
  };
  EXPECT_EQ(name(dir), "none");
  write("tokenizer_config.json", R"({"chat_template": null})");
  EXPECT_EQ(name(dir), "none");
  write("tokenizer_config.json", Json{{"chat_template", kChatMl}}.dump());
  EXPECT_EQ(name(dir), "chatml");
  EXPECT_EQ(name(dir / "tokenizer.json"), "chatml");
  // A run directory: that of the checkpoint whose tokenizer is taken.
  fs::create_directories(dir / "run" / "checkpoint-2");
  fs::create_directories(dir / "run" / "checkpoint-10");
  t->save(dir / "run" / "checkpoint-2");
  std::ofstream(dir / "run" / "checkpoint-2" / "tokenizer_config.json") << Json{{"chat_template", kChatMl}}.dump();
  EXPECT_EQ(name(dir / "run"), "chatml");
  const Json tools{{"name", "tool_use"}, {"template", "{{ tools }}"}}, plain{{"name", "default"}, {"template", kChatMl}};
  write("tokenizer_config.json", Json{{"chat_template", {tools, plain}}}.dump());
  EXPECT_EQ(name(dir), "chatml");
  write("chat_template.jinja", chat_jinja(find_chat_template("default"), *t));
  EXPECT_EQ(name(dir), "default");
  write("chat_template.jinja", "{{ something else }}");
  try {
    name(dir);
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_EQ(e.what(), "the chat template of " + (dir / "chat_template.jinja").string() +
                            " is not one that is known; --template NAME chooses one of default, alpaca, llama3, chatml, plain");
  }
  fs::remove(dir / "chat_template.jinja");
  for (const char* wrong : {R"({"chat_template": 7})", R"({"chat_template": [{"name": "rag"}]})"}) {
    write("tokenizer_config.json", wrong);
    EXPECT_THROW(name(dir), UsageError) << wrong;
  }
  write("tokenizer_config.json", "{");
  EXPECT_THROW(name(dir), Error);
  EXPECT_EQ(own_chat_template("bytes", *t).has_value(), false);
}

// What follows needs GPT-2's and Llama-3's vocabularies and what the reference gave with them.
class ChatGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::data_dir().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
    tokenize_ = fs::path(test::data_dir()).parent_path() / "fixtures" / "sft" / "tokenize";
  }
  static const Tokenizer& tokenizer(const std::string& name) {
    static std::map<std::string, std::unique_ptr<Tokenizer>> all;
    if (!all[name]) all[name] = load_tokenizer(test::data_dir() + "/tokenizers/" + name);
    return *all[name];
  }
  static std::vector<Json> lines(const fs::path& file) {
    const auto stream = open_input(find_inputs({file.string()}).at(0));
    std::string all;
    char buffer[1 << 16];
    for (std::size_t n = 0; (n = stream->read(buffer, sizeof buffer)) > 0;) all.append(buffer, n);
    std::vector<Json> out;
    std::istringstream in(all);
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }
  static Messages messages_of(const Json& record, std::size_t most = 99) {
    const std::map<std::string, ChatRole> roles{{"system", ChatRole::system}, {"user", ChatRole::user}, {"assistant", ChatRole::assistant}};
    Messages all;
    for (const Json& m : record["messages"])
      if (all.size() < most) all.push_back({roles.at(m["role"]), m["content"]});
    return all;
  }
  fs::path tokenize_;
};

TEST_F(ChatGolden, JinjaIsLlamaFactorys) {
  const Json all = Json::parse(test::read_file(tokenize_ / "chat_templates.json"));
  int seen = 0;
  for (const auto& [name, templates] : all.items())
    for (const auto& [row, jinja] : templates.items()) {
      const Tokenizer& t = tokenizer(name);
      const auto found = recognise_chat_template(jinja.get<std::string>(), t);
      ASSERT_TRUE(found) << name << " " << row;
      const bool meta = row == "llama3_meta";
      EXPECT_EQ(found->name, meta ? "llama3" : row) << name;
      EXPECT_EQ(found->trims, meta);
      if (!meta) {
        EXPECT_EQ(chat_jinja(*found, t), jinja.get<std::string>()) << name << " " << row;
      }
      ++seen;
    }
  EXPECT_GE(seen, 9);
}

TEST_F(ChatGolden, PromptsAreThoseOfTransformers) {
  const Json templates = Json::parse(test::read_file(tokenize_ / "chat_templates.json"));
  const auto records = lines(tokenize_ / "records" / "messages.jsonl");
  int seen = 0;
  for (const Json& c : lines(tokenize_ / "chat.jsonl")) {
    const Tokenizer& t = tokenizer(c["tokenizer"]);
    const std::string jinja = templates[c["tokenizer"].get<std::string>()][c["template"].get<std::string>()];
    const ChatFormat format(recognise_chat_template(jinja, t).value(), t);
    const Messages messages = messages_of(records.at(c["index"]), c["messages"]);
    EXPECT_EQ(format.text(messages), c["text"].get<std::string>()) << c.dump();
    EXPECT_EQ(Json(format.prompt(messages)), c["input_ids"]) << c.dump();
    ++seen;
  }
  EXPECT_GE(seen, 63);
}

// An empty system message is none there, and a record whose last word has no answer is dropped: that is for whoever reads records.
TEST_F(ChatGolden, TurnsAreThoseThatTheReferenceTrainsOn) {
  const auto records = lines(tokenize_ / "records" / "messages.jsonl");
  int seen = 0;
  for (const char* name : {"gpt2", "llama3"})
    for (const Json& c : lines(tokenize_ / "expected" / (std::string(name) + ".jsonl.gz"))) {
      if (c["file"] != "messages.jsonl" || c["seq_len"] != 1024 || !c["mask_prompt"] || c.contains("dropped")) continue;
      const ChatFormat format(find_chat_template(c["template"].get<std::string>()), tokenizer(name));
      Messages messages = messages_of(records.at(c["index"]));
      if (messages[0].role == ChatRole::system && messages[0].content.empty()) messages.erase(messages.begin());
      std::vector<TokenId> labels;
      const auto turns = format.turns(messages);
      for (const auto& turn : turns) {
        labels.insert(labels.end(), turn.source.size(), -100);
        labels.insert(labels.end(), turn.target.begin(), turn.target.end());
      }
      EXPECT_EQ(Json(joined(turns)), c["input_ids"]) << c.dump();
      EXPECT_EQ(Json(labels), c["labels"]) << c.dump();
      ++seen;
    }
  EXPECT_GE(seen, 40);
}

}  // namespace
}  // namespace bhyt
