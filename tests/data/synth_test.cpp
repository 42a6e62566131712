#include "data/synth.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "data/pack.h"
#include "data/token_file.h"
#include "test_util.h"

namespace bhyt {
namespace {

using namespace test;

// The rate is computed from expectations; here the language itself scores what it says. Both must agree.
TEST(Synth, EntropyRateMatchesTheCodeLengthOfASample) {
  for (const std::int64_t vocab : {64, 512, 1024}) {
    const SynthLanguage language(vocab, 7);
    const auto e = language.entropy();
    Rng rng(99, 5);
    constexpr int n = 3000;
    double nats = 0, tokens = 0, bytes = 0, squares = 0;
    std::vector<TokenId> d;
    for (int i = 0; i < n; ++i) {
      d.clear();
      language.document(rng, d);
      const double x = language.nats(d), t = static_cast<double>(d.size());
      ASSERT_TRUE(std::isfinite(x));
      nats += x;
      tokens += t;
      bytes += static_cast<double>(language.text(d).size() + 1);
      squares += (x - e.rate * t) * (x - e.rate * t);
    }
    // The ratio of means; its standard error by the delta method. About half a million tokens.
    const double error = std::sqrt(squares) / tokens;
    EXPECT_NEAR(nats / tokens, e.rate, 4 * error) << vocab;
    EXPECT_LT(error, 5e-3);
    EXPECT_NEAR(tokens / n, e.tokens_per_document, 0.1 * e.tokens_per_document);
    EXPECT_NEAR(nats / bytes, e.per_document / e.bytes_per_document, 4 * std::sqrt(squares) / bytes + 1e-3);
    EXPECT_GT(e.rate, 1.0);
    EXPECT_LT(e.rate, 0.6 * std::log(static_cast<double>(vocab)));
    EXPECT_LT(e.row_cut, 20);
  }
}

// The same expectation another way: the distributions read off nats(), the free choices followed in time until no mass is left.
TEST(Synth, EntropyOfADocumentByFollowingItInTime) {
  using L = SynthLanguage;
  const L language(64, 3);
  const auto words = static_cast<std::size_t>(language.words());
  const auto plogp = [](double p) { return p > 0 ? -p * std::log(p) : 0; };
  const double choice = plogp(L::kEnd) + plogp(L::kRefer) + plogp(L::kPhrase) + plogp(L::kWord);
  double total = 0;
  for (std::size_t k = 0; k < static_cast<std::size_t>(language.topics()); ++k) {
    const std::vector<TokenId> title{static_cast<TokenId>(words + k),
                                     static_cast<TokenId>(words + static_cast<std::size_t>(language.topics()))};
    std::vector<std::vector<TokenId>> way(words + 1);  // a document that leads to a state; the last state is "after NAME"
    std::vector<std::vector<double>> p(words + 1);
    std::vector<double> h(words + 1);
    std::vector<std::size_t> queue{words};
    way[words] = title;
    for (std::size_t i = 0; i < queue.size(); ++i) {
      const std::size_t s = queue[i];
      std::vector<TokenId> d = way[s];
      d.push_back(language.end_of_text());
      const double here = language.nats(d);
      double sum = 0;
      for (std::size_t w = 0; w < words; ++w) {
        d.back() = static_cast<TokenId>(w);
        d.push_back(language.end_of_text());
        p[s].push_back(std::exp(here - language.nats(d)) / L::kWord);
        d.pop_back();
        sum += p[s][w];
        h[s] += plogp(p[s][w]);
        if (p[s][w] > 0 && way[w].empty()) {
          way[w] = d;
          queue.push_back(w);
        }
      }
      EXPECT_NEAR(sum, 1, 1e-10);
    }
    std::vector<double> mass(words + 1);
    mass[words] = 1;
    for (double left = 1; left > 1e-13;) {
      std::vector<double> next(words + 1), walk = mass;
      total += left * choice / static_cast<double>(language.topics());
      for (int i = 0; i < L::kPhraseLength; ++i) {
        std::vector<double> further(words + 1);
        for (const std::size_t s : queue) {
          total += ((i == 0 ? L::kWord : 0) + L::kPhrase) * walk[s] * h[s] / static_cast<double>(language.topics());
          for (std::size_t w = 0; w < words; ++w) further[w] += walk[s] * p[s][w];
        }
        walk = further;
        for (std::size_t w = 0; w < words; ++w)
          next[w] += ((i == 0 ? L::kWord : 0) + (i + 1 == L::kPhraseLength ? L::kPhrase : 0)) * walk[w];
      }
      next[words] = L::kRefer * left;
      mass = next;
      left = 0;
      for (const double m : mass) left += m;
    }
  }
  total += std::log(static_cast<double>(language.topics() * language.names()));
  EXPECT_NEAR(language.entropy().per_document, total, 1e-8);
}

TEST(Synth, SomeThingsAreNotOfTheLanguage) {
  const SynthLanguage language(512, 1);
  Rng rng(1, 2);
  std::vector<TokenId> d;
  while (d.size() < 100) {
    d.clear();
    language.document(rng, d);
  }
  EXPECT_TRUE(std::isfinite(language.nats(d)));
  for (std::size_t n = 0; n < d.size(); ++n) EXPECT_TRUE(std::isinf(language.nats(std::span(d).first(n)))) << n;
  auto bad = d;
  bad.push_back(0);
  EXPECT_TRUE(std::isinf(language.nats(bad)));
  bad = d;
  std::swap(bad[0], bad[1]);
  EXPECT_TRUE(std::isinf(language.nats(bad)));
}

TEST(Synth, DocumentsVaryAndRepeatThemselves) {
  const SynthLanguage language(512, 1);
  Rng rng(1, 2);
  std::size_t shortest = 1 << 20, longest = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<TokenId> d;
    language.document(rng, d);
    shortest = std::min(shortest, d.size());
    longest = std::max(longest, d.size());
    const TokenId name = d[1];
    for (std::size_t t = 0; t + 1 < d.size(); ++t) {
      ASSERT_LT(d[t], 512);
      if (d[t] == 509) {  // a reference, however far from the title
        ASSERT_EQ(d[t + 1], name);
      }
      for (std::size_t j = 1; d[t] == 510 && j <= 12; ++j) ASSERT_EQ(d[t + 4 + j], d[t + j]);
    }
  }
  EXPECT_LT(shortest, 40u);
  EXPECT_GT(longest, 600u);
}

TEST(Synth, FilesAreDeterministicAndSplitsDiffer) {
  TempDir dir;
  const auto make = [&](const std::string& name, std::uint64_t seed) {
    return synthesize({.out = dir / name, .tokens = 30000, .seed = seed, .progress = false});
  };
  const SynthResult r = make("a", 5);
  make("b", 5);
  make("c", 6);
  for (const char* f : {"/train.tok", "/valid.tok", "/info.json"}) EXPECT_EQ(read_file(dir / "a" + f), read_file(dir / "b" + f)) << f;
  EXPECT_NE(read_file(dir / "a/train.tok"), read_file(dir / "c/train.tok"));
  EXPECT_NE(read_file(dir / "a/train.tok").substr(128, 1000), read_file(dir / "a/valid.tok").substr(128, 1000));
  const TokenFile train(dir / "a/train.tok"), valid(dir / "a/valid.tok");
  train.verify();
  valid.verify();
  EXPECT_GE(train.tokens(), 30000u);
  EXPECT_LT(train.tokens(), 35000u);
  EXPECT_GE(valid.tokens(), 3000u);
  EXPECT_EQ(train.info().meta.kind, "synth");
  EXPECT_EQ(train.info().documents, r.train_documents);
  const auto info = nlohmann::json::parse(read_file(dir / "a/info.json"));
  EXPECT_EQ(info["entropy_rate"].get<double>(), r.entropy.rate);
  EXPECT_EQ(info["tokens"].get<std::uint64_t>(), train.tokens());
  EXPECT_EQ(info["seed"], 5);
  EXPECT_EQ(info["vocab"], SynthLanguage::kDefault);
  EXPECT_EQ(entropy_floor(dir / "a/train.tok", "synth"), r.entropy.rate);
  std::filesystem::copy_file(dir / "c/train.tok", dir / "a/other.tok");  // another language beside this info.json
  EXPECT_EQ(entropy_floor(dir / "a/other.tok", "synth"), std::nullopt);
  EXPECT_EQ(entropy_floor(dir / "none.tok", "synth"), std::nullopt);
}

TEST(Synth, DocumentsAsText) {
  TempDir dir;
  const auto bytes = make_byte_tokenizer();
  const SynthResult r = synthesize({.out = dir / "d", .tokens = 20000, .vocab = 2000, .documents = true, .progress = false});
  pack(*bytes, {.out = dir / "d.tok", .inputs = {dir / "d/train.jsonl"}, .progress = false});
  EXPECT_EQ(TokenFile(dir / "d.tok").info().documents, r.train_documents);
  const auto floor = entropy_floor(dir / "d/train.jsonl", "bytes");
  ASSERT_TRUE(floor);
  EXPECT_LT(*floor, r.entropy.rate / 2);
  EXPECT_EQ(entropy_floor(dir / "d/train.jsonl", "bpe"), std::nullopt);
  // Every id has its own spelling.
  const SynthLanguage language(2000, 0);
  std::map<std::string, TokenId> seen;
  for (TokenId id = 0; id < 1999; ++id) EXPECT_TRUE(seen.emplace(language.text(std::vector{id}), id).second) << id;
}

TEST(Synth, WrongUse) {
  TempDir dir;
  EXPECT_HAS(message_of<UsageError>([&] { synthesize({.out = dir / "a", .tokens = 10, .vocab = 10}); }), "vocab must be from 64");
  EXPECT_HAS(message_of<UsageError>([&] { synthesize({.out = dir / "a", .tokens = 0}); }), "tokens must be greater than 0");
  write_file(dir / "file", "x");
  EXPECT_HAS(message_of([&] { synthesize({.out = dir / "file", .tokens = 10, .progress = false}); }), "cannot write");
}

}  // namespace
}  // namespace bhyt
