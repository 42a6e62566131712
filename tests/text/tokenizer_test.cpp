// What a tokenizer does: merging, added tokens, any bytes, long input, threads.
#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "core/threads.h"
#include "tests/text/fuzz_strings.h"
#include "tests/text/small_tokenizer.h"
#include "text/bpe.h"

namespace bhyt {
namespace {

using Ids = std::vector<TokenId>;
using Json = nlohmann::json;

// The definition: the lowest rank anywhere, the leftmost among equals, again and again.
Ids merge_slowly(const MergeTable& merges, Ids ids) {
  for (;;) {
    std::size_t best = ids.size();
    MergeTable::Found found;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i)
      if (const auto f = merges.find(ids[i], ids[i + 1]); f.rank < found.rank) {
        found = f;
        best = i;
      }
    if (best == ids.size()) return ids;
    ids[best] = found.result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Merge, ShortAndLongWordsFollowTheDefinition) {
  test::SplitMix rng(1);
  for (int round = 0; round < 60; ++round) {
    // Ranks in no order, some equal: harder than any trained vocabulary.
    std::vector<Merge> list;
    for (TokenId id = 4; id < 40; ++id)
      list.push_back({static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(id))),
                      static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(id))), id, static_cast<std::uint32_t>(rng.below(20))});
    const MergeTable merges(list);
    for (const std::size_t n : {1, 2, 3, 31, 95, 96, 97, 98, 200, 500}) {
      Ids symbols(n);
      for (TokenId& s : symbols) s = static_cast<TokenId>(rng.below(3));
      Ids out;
      merge_symbols(merges, symbols.data(), n, out);
      ASSERT_EQ(out, merge_slowly(merges, symbols)) << "round " << round << ", " << n << " symbols";
    }
  }
}

TEST(Bpe, MergesAndSplits) {
  const auto t = parse_tokenizer_json(test::small_json().dump());
  EXPECT_EQ(t->kind(), "bpe");
  EXPECT_EQ(t->vocab_size(), 265);
  EXPECT_EQ(t->encode("hello hello"), (Ids{259, 260}));
  EXPECT_EQ(t->encode("hell"), (Ids{258}));
  EXPECT_EQ(t->encode("aaaaaaa"), (Ids{262, 261, 'a'}));
  EXPECT_EQ(t->encode(""), Ids{});
  EXPECT_EQ(t->bos(), 263);
  EXPECT_EQ(t->end_of_text(), 264);
  EXPECT_EQ(t->stops(), (Ids{264}));
  EXPECT_THROW(t->piece(265, true), Error);
  EXPECT_THROW(t->piece(-1, true), Error);
}

TEST(Bpe, SpecialTokensAreReadOnlyWhenAsked) {
  const auto t = parse_tokenizer_json(test::small_json().dump());
  EXPECT_EQ(t->encode("hello<|end_of_text|>hello"), (Ids{259, 264, 259}));
  const Ids plain = t->encode("hello<|end_of_text|>", false);
  EXPECT_EQ(plain.size(), 1 + std::string("<|end_of_text|>").size());
  EXPECT_EQ(t->decode(plain), "hello<|end_of_text|>");
  EXPECT_EQ(t->decode({259, 264}), "hello");
  EXPECT_EQ(t->decode({259, 264}, true), "hello<|end_of_text|>");
  EXPECT_EQ(t->encode("<|end_of_text<|end_of_text|>").back(), 264);
}

TEST(Bpe, TheLongestAddedTokenWins) {
  Json j = test::small_json();
  j["added_tokens"].push_back(test::added_token(265, "<|e", false));
  j["added_tokens"].push_back(test::added_token(266, "<|end_of_text|>!"));
  const auto t = parse_tokenizer_json(j.dump());
  EXPECT_EQ(t->encode("<|end_of_text|>!<|e<|end_of_text|>"), (Ids{266, 265, 264}));
  // A special token that is not read covers its text; the plain one elsewhere is still found.
  EXPECT_EQ(t->encode("<|end_of_text|><|e", false).back(), 265);
  EXPECT_EQ(t->decode(t->encode("<|end_of_text|>!<|e", false)), "<|end_of_text|>!<|e");
}

TEST(Bpe, AddedTokensTakeTheirSpaces) {
  Json j = test::small_json();
  Json left = test::added_token(265, "<L>"), right = test::added_token(266, "<R>");
  left["lstrip"] = right["rstrip"] = true;
  j["added_tokens"].push_back(left);
  j["added_tokens"].push_back(right);
  const auto t = parse_tokenizer_json(j.dump());
  EXPECT_EQ(t->encode("a \u3000<L> a<R> \n a"), (Ids{'a', 265, ' ', 'a', 266, 'a'}));
  EXPECT_EQ(t->encode("<R> <L> "), (Ids{266, 265, ' '}));
  EXPECT_EQ(t->decode(t->encode("a <L> <R> a", false)), "a <L> <R> a");
}

TEST(Bpe, ThePostProcessorPutsTokensAround) {
  Json j = test::small_json();
  const auto token = [](const char* s) { return Json{{"SpecialToken", {{"id", s}, {"type_id", 0}}}}; };
  j["post_processor"] = {{"type", "Sequence"},
                         {"processors",
                          {{{"type", "ByteLevel"}},
                           {{"type", "TemplateProcessing"},
                            {"single", {token("b"), {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, token("e")}},
                            {"special_tokens", {{"b", {{"id", "b"}, {"ids", {263}}}}, {"e", {{"id", "e"}, {"ids", {264, 264}}}}}}}}}};
  const auto t = parse_tokenizer_json(j.dump());
  EXPECT_EQ(t->encode("hello"), (Ids{263, 259, 264, 264}));
  EXPECT_EQ(t->encode(""), (Ids{263, 264, 264}));
  EXPECT_EQ(t->encode("hello", false), (Ids{259}));
}

TEST(Bpe, IgnoreMergesTakesWholeWords) {
  Json j = test::small_json();
  j["model"]["merges"].erase(3);  // hello can no longer be put together
  EXPECT_EQ(parse_tokenizer_json(j.dump())->encode("hello"), (Ids{258, 'o'}));
  j["model"]["ignore_merges"] = true;
  EXPECT_EQ(parse_tokenizer_json(j.dump())->encode("hello"), (Ids{259}));
}

TEST(Bpe, BytesWithoutATokenBecomeUnknown) {
  Json j = test::small_json();
  j["model"]["vocab"].erase("x");
  EXPECT_EQ(parse_tokenizer_json(j.dump())->encode("axxb"), (Ids{'a', 'b'}));
  j["model"]["unk_token"] = "y";
  EXPECT_EQ(parse_tokenizer_json(j.dump())->encode("axxb"), (Ids{'a', 'y', 'y', 'b'}));
  j["model"]["fuse_unk"] = true;
  EXPECT_EQ(parse_tokenizer_json(j.dump())->encode("axxb"), (Ids{'a', 'y', 'b'}));
}

// Any bytes come back, through every kind of tokenizer at hand.
TEST(RoundTrip, AnyBytes) {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(parse_tokenizer_json(test::small_json().dump()));
  all.push_back(load_tokenizer("bytes"));
  if (const std::string data = test::data_dir(); !data.empty())
    for (const char* path : {"/tokenizers/llama3", "/tokenizers/gpt2", "/checkpoints/aidreams260K_tokenizer.bin"})
      all.push_back(load_tokenizer(data + path));
  test::SplitMix rng(3);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (std::uint64_t n = rng.below(120); n > 0; --n)
      text.push_back(static_cast<char>(rng.below(4) ? rng.below(256) : "e ' \xE2\x96"[rng.below(6)]));
    for (const auto& t : all) ASSERT_EQ(t->decode(t->encode(text, false)), text) << t->kind();
  }
}

// No space in a megabyte: letters of one kind, of several, and one long run of spaces.
TEST(LongInput, WithoutABreak) {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(parse_tokenizer_json(test::small_json().dump()));
  if (const std::string data = test::data_dir(); !data.empty())
    for (const char* path : {"/tokenizers/llama3", "/checkpoints/aidreams260K_tokenizer.bin"}) all.push_back(load_tokenizer(data + path));
  test::SplitMix rng(5);
  std::string mixed;
  while (mixed.size() < 1'000'000) mixed.push_back(static_cast<char>('a' + rng.below(26)));
  for (const std::string& text : {mixed, std::string(1'000'000, 'a'), std::string(1'000'000, ' ') + "x", std::string(300'000, '\xFF')})
    for (const auto& t : all) {
      const Ids ids = t->encode(text, false);
      EXPECT_TRUE(t->decode(ids) == text) << t->kind();
    }
  const Ids ids = all[0]->encode(std::string(1'000'003, 'a'), false);
  EXPECT_EQ(ids.size(), 250'000u + 2);
}

TEST(Threads, SeveralTokenizersAtOnce) {
  Json other = test::small_json();
  other["model"]["merges"] = Json::array();
  const auto a = parse_tokenizer_json(test::small_json().dump()), b = parse_tokenizer_json(other.dump());
  const test::FuzzStrings strings;
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < 300; ++i) texts.push_back(strings(i));
  std::vector<Ids> want_a, want_b;
  for (const std::string& t : texts) {
    want_a.push_back(a->encode(t));
    want_b.push_back(b->encode(t));
  }
  {
    std::vector<std::jthread> threads;
    for (int k = 0; k < 4; ++k)
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < texts.size(); ++i) {
          EXPECT_EQ(a->encode(texts[i]), want_a[i]);
          EXPECT_EQ(b->encode(texts[i]), want_b[i]);
        }
      });
  }
  Threads three(3);
  EXPECT_EQ(encode_all(three, *a, {texts.begin(), texts.end()}, {}), want_a);
}

}  // namespace
}  // namespace bhyt
