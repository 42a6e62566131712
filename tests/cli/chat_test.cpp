// bhyt chat with scripted sessions, on a model that knows two answers by heart and on one that never ends.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tests/cli/process.h"

namespace bhyt::test {
namespace {

using Json = nlohmann::json;

class Chat : public ::testing::Test {
 public:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    setenv("BHYT_CACHE", at("cache").c_str(), 1);
    // Documents end with the end-of-text token: in a row they are turns of the template `default`.
    std::ofstream turns(at("turns.jsonl"));
    for (int i = 0; i < 400; ++i) {
      const bool first = i * 7 % 5 < 3;
      turns << Json{{"text", first ? "\nHuman: hi" : "\nHuman: who"}} << "\n";
      turns << Json{{"text", first ? "\nAssistant: hello there" : "\nAssistant: a lamb"}} << "\n";
    }
    turns.close();
    train("turns", "turns.jsonl", "train.steps=500");
    std::ofstream song(at("song.txt"));
    for (int i = 0; i < 10000; ++i) song << "a\n";
    song.close();
    train("song", "song.txt", "train.steps=200");
    unsetenv("BHYT_CACHE");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

 protected:
  static std::string at(const std::string& name) { return (folder_->path / name).string(); }
  static Words words(const std::string& model, const Words& more = {}) {
    return Words{"chat", "--model", at(model), "device=cpu", "threads=1"} + more;
  }
  static Outcome chat(const std::string& input, const Words& more = {}, const std::string& model = "turns/checkpoint-500") {
    return bhyt(words(model, more), input);
  }
  // A checkpoint whose tokenizer has a chat template.
  static std::string with_template(const std::string& name, const std::string& jinja) {
    fs::copy(at("turns/checkpoint-500"), at(name));
    fs::remove(at(name + "/manifest.json"));  // the change is meant
    Json config = Json::parse(read_text(at(name + "/tokenizer_config.json")));
    config["chat_template"] = jinja;
    std::ofstream(at(name + "/tokenizer_config.json")) << config.dump();
    return name;
  }

 private:
  static void train(const std::string& run, const std::string& text, const std::string& steps) {
    const Outcome trained =
        bhyt({"pretrain", "model.d=32", "model.layers=2", "model.heads=2", "model.mlp=64", "data.seq_len=128", "train.batch=8", steps,
              "train.lr=6e-3", "train.save_every=0", "threads=1", "device=cpu", "data.train=" + at(text), "run.dir=" + at(run), "--quiet"});
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  static inline TempFolder* folder_ = nullptr;
};

void says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected \"" << part << "\" in \"" << text << "\"";
}

TEST_F(Chat, AScriptedSession) {
  const Outcome out = chat("hi\r\n\nwho\n/save " + at("talk.json") + "\nhi", {"--max-tokens", "20"});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(out.out, " hello there\n a lamb\n hello there\n");
  EXPECT_EQ(out.err,
            "template default: the tokenizer names none, --template NAME chooses one of default, alpaca, llama3, chatml, plain\n"
            "4 messages in " +
                at("talk.json") + "\n");
  EXPECT_EQ(read_text(at("talk.json")), R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":" hello there"},)"
                                        R"({"role":"user","content":"who"},{"role":"assistant","content":" a lamb"}]})"
                                        "\n");
}

TEST_F(Chat, Commands) {
  const Outcome out = chat("/foo bar\nhi\n/reset\n/system be kind\n/save " + at("kind.json") + "\n/system\n/help\n/save\n/save " +
                               at("none/such.json") + "\n/quit\nhi\n",
                           {"--template", "default", "--system", "be short", "--max-tokens", "20"});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_EQ(std::count(out.out.begin(), out.out.end(), '\n'), 1) << out.out;
  says(out.err, "warning: unknown command /foo; /help lists them, and a space before it sends the line as a message\n");
  says(out.err, "the conversation begins again\n");
  says(out.err, "  /save FILE     write the conversation as JSON messages\n");
  says(out.err, "warning: expected /save FILE\n");
  says(out.err, at("none/such.json"));
  EXPECT_EQ(Json::parse(read_text(at("kind.json")))["messages"], (Json{{{"role", "system"}, {"content", "be kind"}}}));
}

TEST_F(Chat, SavesToWhatANameStandsFor) {
  std::ofstream(at("target.json")) << "old";
  fs::create_symlink("target.json", at("link.json"));
  std::ofstream(at("target.json.tmp")) << "mine";
  const Outcome out = chat("hi\n/save " + at("link.json") + "\n/save /dev/stdout\n/save " + at("") + "\n", {"--max-tokens", "20"});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_TRUE(fs::is_symlink(at("link.json")));
  EXPECT_EQ(Json::parse(read_text(at("target.json")))["messages"].size(), 2u);
  EXPECT_EQ(read_text(at("target.json.tmp")), "mine");
  says(out.err, "2 messages in " + at("link.json") + "\n");
  EXPECT_EQ(std::count(out.err.begin(), out.err.end(), '\n'), 4) << out.err;  // the folder is refused
}

// A message may hold the text of a token that the template knows and the tokenizer does not.
TEST_F(Chat, AMissingTokenIsPlainText) {
  const std::string file = at("tokens.yaml");
  std::ofstream(file) << "user: [\"Human: {c}\", \"{eos}\", \"\\nAssistant:\"]\nanswer: [\"{c}\", \"{eos}\", \"\\n\"]\n"
                         "tokens: [\"<|endoftext|>\", \"<|more|>\"]\n";
  const Outcome out = chat("hi <|more|>\n/reset\nhi\n", {"--template", file, "--max-tokens", "20"});
  EXPECT_EQ(out.code, 0) << out.err;
  EXPECT_TRUE(out.out.ends_with(" hello there\n")) << out.out;
}

TEST_F(Chat, ATemplateWithoutAPlaceForASystemMessageSaysSo) {
  const std::string file = at("bare.yaml");
  std::ofstream(file) << "user: [\"Human: {c}\", \"{eos}\", \"\\nAssistant:\"]\nanswer: [\"{c}\", \"{eos}\", \"\\n\"]\n";
  const Outcome out = chat("/system be kind\nhi\n", {"--template", file, "--max-tokens", "20"});
  EXPECT_EQ(out.out, " hello there\n");
  says(out.err, "warning: template bare has no place for a system message\n");
  const Outcome refused = chat("hi\n", {"--template", file, "--system", "be kind"});
  EXPECT_EQ(refused.code, 2);
  says(refused.err, "error: template bare has no place for a system message\n");
}

TEST_F(Chat, AFullContextDropsTheOldestTurnsAndSaysSo) {
  const Outcome out = chat("hi\nwho\n" + std::string(90, 'x') + "\n/save " + at("full.json") + "\n",
                           {"--context", "64", "--max-tokens", "20", "--system", "s"});
  EXPECT_EQ(out.code, 0) << out.err;
  says(out.err, "the context is full: the model no longer sees the 1 oldest turn\n");
  says(out.err, "warning: the message is too long: 120 tokens with what stands around it, of 64 that question and answer have together\n");
  EXPECT_EQ(Json::parse(read_text(at("full.json")))["messages"].size(), 5u);
}

TEST_F(Chat, AnAnswerThatIsCutIsSaidToBe) {
  const Outcome out = chat("hi\n", {"--max-tokens", "4"});
  EXPECT_EQ(out.out, " hel\n");
  says(out.err, "the answer was cut after 4 tokens\n");
}

TEST_F(Chat, DrawsDifferFromAnswerToAnswerAndRepeatWithTheirSeed) {
  const Words hot{"--temperature", "3", "--max-tokens", "30", "--seed", "5"};
  const std::string lines = "hi\n/reset\nhi\n";
  const Outcome a = chat(lines, hot), b = chat(lines, hot);
  EXPECT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.out, chat(lines, hot + Words{"--top-k", "1"}).out);
  EXPECT_EQ(chat(lines, hot + Words{"--top-k", "1"}).out, " hello there\n hello there\n");
  const Outcome once = chat("hi\n", hot);
  EXPECT_NE(a.out, once.out + once.out);
}

TEST_F(Chat, TheTokenizersOwnTemplate) {
  const std::string jinja =
      "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}"
      "{% else %}{% set loop_messages = messages %}{% endif %}{% if system_message is defined %}{{ 'System: ' + system_message + "
      "'<|endoftext|>' + '\n' }}{% endif %}{% for message in loop_messages %}{% set content = message['content'] %}{% if message['role'] "
      "== "
      "'user' %}{{ 'Human: ' + content + '<|endoftext|>' + '\nAssistant:' }}{% elif message['role'] == 'assistant' %}{{ content + "
      "'<|endoftext|>' + '\n' }}{% endif %}{% endfor %}";
  const Outcome known = chat("hi\n", {}, with_template("known", jinja));
  EXPECT_EQ(known.out, " hello there\n");
  EXPECT_EQ(known.err, "template default, the tokenizer's own\n");
  const std::string other = with_template("other", jinja + "!");
  const Outcome unknown = chat("hi\n", {}, other);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.err, "error: the chat template of " + at("other/tokenizer_config.json") +
                             " is not one that is known; --template NAME chooses one of default, alpaca, llama3, chatml, plain\n");
  const Outcome chosen = chat("hi\n", {"--template", "default"}, other);
  EXPECT_EQ(chosen.out, " hello there\n");
  EXPECT_EQ(chosen.err, "");
}

TEST_F(Chat, WhatCannotBeIsSaid) {
  const auto refused = [&](const Words& more, const std::string& message) {
    const Outcome out = chat("hi\n", more);
    EXPECT_EQ(out.code, 2);
    EXPECT_EQ(out.out, "");
    says(out.err, message);
  };
  refused({"--template", "lama"}, "error: unknown chat template lama; expected one of default, alpaca, llama3, chatml, plain\n");
  refused({"--template", "chatml"}, "error: template chatml ends answers with <|im_end|>, which the tokenizer does not have");
  refused({"--temperature", "-1"}, "error: temperature must be at least 0, got -1\n");
  refused({"--max-tokens", "0"}, "error: max-tokens must be at least 1, got 0\n");
  refused({"--context", "0"}, "error: context must be at least 1, got 0\n");
}

// Stdin stays open behind it: what comes next is read when the test has seen what came before.
struct Input {
  std::array<int, 2> ends{};
  Input() { EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0); }
  ~Input() {
    for (const int end : ends) close(end);
  }
  // In the program that reads. Where this one has no stdin, the pipe may lie in its place already, to be closed by exec: so a copy of it.
  void become_stdin() const { dup2(dup(ends[0]), STDIN_FILENO); }
  void write_line(const std::string& line) const {
    const std::string text = line + "\n";
    EXPECT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
};

TEST_F(Chat, CtrlCStopsTheAnswerThenTheProgram) {
  const Input input;
  Process process(words("song", {"--template", "plain", "--max-tokens", "20K", "--context", "100K"}), [&] { input.become_stdin(); });
  input.write_line("a");
  ASSERT_TRUE(process.read_until("a\na\na\na\n")) << process.messages();
  process.send(SIGINT);
  ASSERT_TRUE(process.read_until("stopped; the conversation goes on\n")) << process.messages();
  input.write_line("/save " + at("stopped.json"));
  ASSERT_TRUE(process.read_until("2 messages in ")) << process.messages();
  const Json messages = Json::parse(read_text(at("stopped.json")))["messages"];
  EXPECT_TRUE(messages[1]["content"].get<std::string>().starts_with("a\na\na\na\n")) << messages;
  process.send(SIGINT);
  EXPECT_EQ(process.wait(), 130);
}

TEST_F(Chat, ATerminationEndsItInsideAnAnswer) {
  const Input input;
  Process process(words("song", {"--template", "plain", "--max-tokens", "20K", "--context", "100K"}), [&] { input.become_stdin(); });
  input.write_line("a");
  ASSERT_TRUE(process.read_until("a\na\na\na\n")) << process.messages();
  process.send(SIGTERM);
  EXPECT_EQ(process.wait(), 143);
}

}  // namespace
}  // namespace bhyt::test
