// A conversation without a model: what becomes of history, of a full context, and of answers that end in different ways.
#include "generate/conversation.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "generate/stop_texts.h"
#include "text/chat_template.h"

namespace bhyt {
namespace {

// Answers with a given text, byte by byte, and keeps what it was asked.
struct Parrot {
  std::string answer;
  bool ends = true;  // with an end token
  std::vector<std::vector<TokenId>> prompts;
  std::int64_t most = 0;

  Talk::Continue talker() {
    return [this](const std::vector<TokenId>& prompt, std::int64_t max_tokens, const std::function<bool(TokenId)>& emit) {
      prompts.push_back(prompt);
      most = max_tokens;
      std::int64_t count = 0;
      for (const char c : answer)
        if (++count > max_tokens || !emit(static_cast<unsigned char>(c))) return false;
      return ends;
    };
  }
};

class Conversation : public ::testing::Test {
 protected:
  std::string asked(std::size_t n) const { return tokenizer_->decode(parrot_.prompts.at(n), true); }
  static std::string written(const std::vector<ChatMessage>& messages) {
    std::string all;
    for (const ChatMessage& m : messages) all += std::string(chat_role_name(m.role)) + "=" + m.content + ";";
    return all;
  }
  static bool listen(std::string_view) { return true; }

  std::unique_ptr<Tokenizer> tokenizer_ = make_byte_tokenizer();
  ChatFormat format_{find_chat_template("default"), *tokenizer_};
  Parrot parrot_{.answer = "yes"};
};

TEST_F(Conversation, HistoryIsThePrompt) {
  Talk talk(format_, {.context = 1000, .max_tokens = 50}, parrot_.talker());
  talk.set_system("be kind");
  std::string shown;
  const Talk::Answer first = talk.say("one", [&](std::string_view text) { return shown += text, true; });
  EXPECT_EQ(first.text, "yes");
  EXPECT_EQ(shown, "yes");
  EXPECT_EQ(first.end, Talk::End::stop);
  EXPECT_EQ(first.tokens, 3);
  parrot_.answer = "no";
  talk.say("two", listen);
  EXPECT_EQ(asked(0), "System: be kind<|endoftext|>\nHuman: one<|endoftext|>\nAssistant:");
  EXPECT_EQ(asked(1), asked(0) + "yes<|endoftext|>\nHuman: two<|endoftext|>\nAssistant:");
  EXPECT_EQ(written(talk.messages()), "system=be kind;user=one;assistant=yes;user=two;assistant=no;");
  talk.reset();
  EXPECT_EQ(written(talk.messages()), "system=be kind;");
  talk.set_system(std::nullopt);
  talk.say("three", listen);
  EXPECT_EQ(asked(2), "Human: three<|endoftext|>\nAssistant:");
}

// A turn of "x" with its answer is 25 tokens, "x" alone 20, the system message 11.
TEST_F(Conversation, AFullContextDropsTheOldestTurnsAndNeverTheSystemMessage) {
  Talk talk(format_, {.context = 96, .max_tokens = 10}, parrot_.talker());
  talk.set_system("s");
  std::vector<std::int64_t> dropped;
  for (const char* message : {"a", "b", "c", "d", "e"}) dropped.push_back(talk.say(message, listen).dropped);
  EXPECT_EQ(dropped, (std::vector<std::int64_t>{0, 0, 0, 1, 1}));
  const std::string before = "System: s<|endoftext|>\nHuman: ", between = "<|endoftext|>\nAssistant:yes<|endoftext|>\nHuman: ";
  EXPECT_EQ(asked(2), before + "a" + between + "b" + between + "c<|endoftext|>\nAssistant:");
  EXPECT_EQ(asked(4), before + "c" + between + "d" + between + "e<|endoftext|>\nAssistant:");
  EXPECT_EQ(written(talk.messages()),
            "system=s;user=a;assistant=yes;user=b;assistant=yes;user=c;assistant=yes;user=d;assistant=yes;user=e;assistant=yes;");
}

TEST_F(Conversation, AMessageMayFillTheContextButForAToken) {
  Talk talk(format_, {.context = 60, .max_tokens = 500}, parrot_.talker());
  talk.say("a", listen);
  EXPECT_EQ(parrot_.most, 40);  // what is left of the context
  EXPECT_THROW(talk.say(std::string(41, 'x'), listen), Talk::TooLong);
  EXPECT_EQ(written(talk.messages()), "user=a;assistant=yes;");
  EXPECT_EQ(talk.say("b", listen).dropped, 1);  // the message that was refused dropped nothing: room for an answer is half a context
  const Talk::Answer answer = talk.say(std::string(40, 'x'), listen);
  EXPECT_EQ(parrot_.most, 1);
  EXPECT_EQ(answer.text, "y");
  EXPECT_EQ(answer.end, Talk::End::length);
}

TEST_F(Conversation, AnAnswerThatIsStoppedStaysAsFarAsItCame) {
  Talk talk(format_, {.context = 1000, .max_tokens = 50}, parrot_.talker());
  std::string shown;
  const Talk::Answer answer = talk.say("one", [&](std::string_view text) { return shown += text, shown.size() < 2; });
  EXPECT_EQ(answer.end, Talk::End::interrupted);
  EXPECT_EQ(written(talk.messages()), "user=one;assistant=ye;");
  parrot_.answer = "\xE2\x82\xAC";  // stopped inside of its first character, which comes out as it is
  EXPECT_EQ(talk.say("two", [](std::string_view) { return false; }).text, "\xE2");
  talk.reset();
  parrot_.answer = "\n";  // may begin a stop
  talk.say("three", [](std::string_view) { return false; });
  parrot_.answer = "";
  parrot_.ends = false;
  EXPECT_EQ(talk.say("four", listen).end, Talk::End::length);
  EXPECT_EQ(written(talk.messages()), "user=three;assistant=\n;user=four;assistant=;");
}

TEST_F(Conversation, ATurnThatWasStoppedBeforeAWordDidNotHappen) {
  Talk talk(format_, {.context = 1000, .max_tokens = 50},
            [](const auto&, std::int64_t, const std::function<bool(TokenId)>& emit) { return emit(256), false; });  // no text
  EXPECT_EQ(talk.say("one", [](std::string_view) { return false; }).end, Talk::End::interrupted);
  EXPECT_TRUE(talk.messages().empty());
}

TEST_F(Conversation, CharactersAreShownWhole) {
  parrot_.answer = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82";
  Talk talk(format_, {.context = 1000, .max_tokens = 50}, parrot_.talker());
  std::vector<std::string> shown;
  const auto keep = [&](std::string_view text) {
    if (!text.empty()) shown.emplace_back(text);
    return true;
  };
  EXPECT_EQ(talk.say("one", keep).text, parrot_.answer);
  EXPECT_EQ(shown, (std::vector<std::string>{"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x99\x82"}));
}

TEST_F(Conversation, AModelThatGoesOnWithTheOtherSideIsStopped) {
  parrot_.answer = "fine\nHumans are.\nHuman: and me?";
  Talk talk(format_, {.context = 1000, .max_tokens = 50}, parrot_.talker());
  std::string shown;
  const Talk::Answer answer = talk.say("one", [&](std::string_view text) { return shown += text, true; });
  EXPECT_EQ(answer.text, "fine\nHumans are.");
  EXPECT_EQ(shown, answer.text);
  EXPECT_EQ(answer.end, Talk::End::stop);
}

TEST_F(Conversation, AnIdBeyondTheTokenizerHasNoText) {
  Talk talk(format_, {.context = 1000, .max_tokens = 50},
            [](const auto&, std::int64_t, const std::function<bool(TokenId)>& emit) { return emit('a') && emit(300) && emit('b'); });
  EXPECT_EQ(talk.say("one", listen).text, "ab");
}

TEST_F(Conversation, LimitsAreAtLeastOne) {
  EXPECT_THROW(Talk(format_, {.context = 10, .max_tokens = 0}, parrot_.talker()), UsageError);
  EXPECT_THROW(Talk(format_, {.context = 0, .max_tokens = 1}, parrot_.talker()), UsageError);
}

TEST(StopTexts, WhateverTheCutsTheFirstOfThemEndsIt) {
  for (const auto& [stream, expected, found] : std::vector<std::tuple<std::string, std::string, bool>>{
           {"one two stop three", "one two ", true},
           {"one end stop", "one ", true},
           {"sto and sto", "sto and sto", false},
           {"ststop", "st", true},
           {"", "", false},
       })
    for (std::size_t piece = 1; piece < 7; ++piece) {
      StopTexts stops({"stop", "end"});
      std::string out;
      for (std::size_t at = 0; at < stream.size(); at += piece) out += stops.push(std::string_view(stream).substr(at, piece));
      out += stops.rest();
      EXPECT_EQ(out, expected) << piece;
      EXPECT_EQ(stops.found(), found) << stream;
    }
}

}  // namespace
}  // namespace bhyt
