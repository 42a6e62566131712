// From strings to ids: where context and continuation meet, what is cut off, and what cannot be scored.
#include "eval/encode.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/eval/golden.h"
#include "tests/eval/task_files.h"

namespace bhyt {
namespace {

using Ids = std::vector<TokenId>;

std::vector<Passage> encode(const Tokenizer& tokenizer, const std::vector<std::string>& contexts,
                            const std::vector<std::string>& continuations, const Reading& reading) {
  Question q{.task = "t", .document = 7, .examples = {}, .contexts = contexts};
  q.continuations = continuations;
  return passages_of(tokenizer, q, reading);
}

Ids bytes(const std::string& text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(Encode, WhiteSpaceBelongsToTheContinuation) {
  const auto t = make_byte_tokenizer();
  const auto p = encode(*t, {"ab \n "}, {"cd"}, {.length = 100});
  ASSERT_EQ(p.size(), 1u);
  EXPECT_EQ(p[0].context, bytes("ab"));
  EXPECT_EQ(p[0].endings, std::vector<Ids>{bytes(" \n cd")});
  EXPECT_EQ(encode(*t, {"a\u2003"}, {"b"}, {.length = 100})[0].context, bytes("a"));        // an em space is white
  EXPECT_EQ(encode(*t, {"a\u200b"}, {"b"}, {.length = 100})[0].context, bytes("a\u200b"));  // one of no width is not
}

TEST(Encode, ChoicesShareTheirContext) {
  const auto t = make_byte_tokenizer();
  const auto p = encode(*t, {"abc"}, {" x", " yy", " z"}, {.length = 100});
  ASSERT_EQ(p.size(), 1u);
  EXPECT_EQ(p[0].endings, (std::vector<Ids>{bytes(" x"), bytes(" yy"), bytes(" z")}));
  EXPECT_EQ(encode(*t, {"abc", "abd"}, {" x", " x"}, {.length = 100}).size(), 2u);
}

// What a model cannot read loses its beginning: as many tokens as the continuation needs, so that choices may see different contexts.
TEST(Encode, TheBeginningIsCutOff) {
  const auto t = make_byte_tokenizer();
  const auto p = encode(*t, {"abcdef"}, {"xy", "wvu", "z"}, {.length = 5});
  ASSERT_EQ(p.size(), 3u);
  EXPECT_EQ(p[0].context, bytes("cdef"));
  EXPECT_EQ(p[1].context, bytes("def"));
  EXPECT_EQ(p[2].context, bytes("bcdef"));
  EXPECT_EQ(encode(*t, {"abcdef"}, {"vwxyz"}, {.length = 5})[0].context, bytes("f"));
}

TEST(Encode, WhatCannotBeScoredIsNamed) {
  const auto t = make_byte_tokenizer();
  const auto message = [&](const std::string& context, const std::string& continuation) -> std::string {
    try {
      (void)encode(*t, {context}, {"ok", continuation}, {.length = 5});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message("a", "123456"), "t, document 7, choice 1: the 6 tokens to score are more than the 5 that the model reads");
  EXPECT_EQ(message("a", ""), "t, document 7, choice 1: expected tokens to score behind the context, but \"\" has none of its own");
}

// A text with nothing before it follows the token that starts texts.
TEST(Encode, AnEmptyContext) {
  const auto t = make_byte_tokenizer();
  const auto p = encode(*t, {""}, {"ab"}, {.length = 5});
  EXPECT_EQ(p[0].context, Ids{256});
  EXPECT_EQ(p[0].endings, std::vector<Ids>{bytes("ab")});
}

class EncodeGolden : public test::EvalFixtures {};

// Every request whose ids the harness has told, with both tokenizers, with BOS and without.
TEST_F(EncodeGolden, RequestsHaveTheHarnesssIds) {
  for (const test::GoldenCase& g : test::read_golden_cases("requests")) {
    SCOPED_TRACE(g.name);
    const auto t = load_tokenizer((test::eval_fixtures() / "models" / g.head.at("model")).string());
    const Reading reading{.length = g.head.at("max_length").is_null() ? 2048 : g.head.at("max_length").get<std::int64_t>(),
                          .bos = g.head.at("bos")};
    for (const auto& d : g.documents) {
      const auto p = encode(*t, {d.at("context")}, {d.at("continuation")}, reading);
      Ids context = d.at("context_ids");
      const auto dropped = d.at("dropped").get<std::ptrdiff_t>();
      context.erase(context.begin(), context.begin() + dropped);
      ASSERT_EQ(p.size(), 1u);
      EXPECT_EQ(p[0].context, context) << d.at("doc_id");
      EXPECT_EQ(p[0].endings[0], d.at("continuation_ids").get<Ids>()) << d.at("doc_id");
    }
  }
}

// The documents of every task: as many tokens of context as the harness counts, the same ids behind it, as much cut off.
TEST_F(EncodeGolden, DocumentsHaveTheHarnesssIds) {
  for (const test::GoldenCase& g : test::read_golden_cases("eval")) {
    SCOPED_TRACE(g.name);
    const auto t = load_tokenizer((test::eval_fixtures() / "models" / g.head.at("model")).string());
    const Reading reading{.length = g.head.at("max_length").is_null() ? 2048 : g.head.at("max_length").get<std::int64_t>(),
                          .bos = g.head.at("bos")};
    for (std::size_t n = 0; n < g.documents.size(); n += 7) {
      const auto& d = g.documents[n];
      for (const auto& c : d.at("choices")) {
        const auto p = encode(*t, {c.contains("context") ? c.at("context") : d.at("context")}, {c.at("continuation")}, reading);
        EXPECT_EQ(std::ssize(p[0].context), c.at("context_tokens").get<std::int64_t>() - c.at("dropped").get<std::int64_t>()) << n;
        EXPECT_EQ(p[0].endings[0], c.at("continuation_ids").get<Ids>()) << n;
      }
    }
  }
}

}  // namespace
}  // namespace bhyt
