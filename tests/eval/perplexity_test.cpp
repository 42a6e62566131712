// Perplexities: which tokens are scored in which window, and what they cost, against one forward for each window.
#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "eval/rolling.h"
#include "eval/windows.h"
#include "tests/generate/requests.h"
#include "tests/temporary_folder.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Windows = std::vector<Window>;

TEST(Windows, SideBySideLeaveOutTheFirstTokenOfEach) {
  EXPECT_EQ(sliding_windows(8, 4, 4), (Windows{{0, 1, 4}, {4, 5, 8}}));
  EXPECT_EQ(sliding_windows(7, 4, 4), (Windows{{0, 1, 4}, {4, 5, 7}}));
  EXPECT_EQ(sliding_windows(9, 4, 4), (Windows{{0, 1, 4}, {4, 5, 8}}));  // the ninth is alone
  EXPECT_EQ(sliding_windows(3, 4, 4), (Windows{{0, 1, 3}}));
  EXPECT_EQ(sliding_windows(1, 4, 4), Windows{});
  EXPECT_EQ(sliding_windows(0, 4, 4), Windows{});
}

TEST(Windows, OverlappingScoreEveryTokenButTheFirst) {
  EXPECT_EQ(sliding_windows(9, 4, 2), (Windows{{0, 1, 4}, {2, 4, 6}, {4, 6, 8}, {6, 8, 9}}));
  EXPECT_EQ(sliding_windows(8, 4, 2), (Windows{{0, 1, 4}, {2, 4, 6}, {4, 6, 8}}));  // ends with the one that reaches the end
  EXPECT_EQ(sliding_windows(6, 4, 3), (Windows{{0, 1, 4}, {3, 4, 6}}));
  EXPECT_EQ(sliding_windows(5, 4, 1), (Windows{{0, 1, 4}, {1, 4, 5}}));
}

// Of [prefix] + tokens: the last window reads as many as the others.
TEST(Windows, RollingOnesReadTheSameLength) {
  EXPECT_EQ(rolling_windows(1, 4), Windows{});
  EXPECT_EQ(rolling_windows(4, 4), (Windows{{0, 1, 4}}));
  EXPECT_EQ(rolling_windows(5, 4), (Windows{{0, 1, 5}}));
  EXPECT_EQ(rolling_windows(6, 4), (Windows{{0, 1, 5}, {1, 5, 6}}));
  EXPECT_EQ(rolling_windows(9, 4), (Windows{{0, 1, 5}, {4, 5, 9}}));
  EXPECT_EQ(rolling_windows(11, 4), (Windows{{0, 1, 5}, {4, 5, 9}, {6, 9, 11}}));
  EXPECT_EQ(rolling_windows(4, 1), (Windows{{0, 1, 2}, {1, 2, 3}, {2, 3, 4}}));
}

TEST(TokenCosts, ErrorsAreThoseOfAMean) {
  // −log p of 1, 2 and 6: mean 3, variance 14/3.
  const TokenCosts c{.windows = 1, .scored = 3, .bytes = 4, .sum = 9, .squares = 41};
  EXPECT_DOUBLE_EQ(c.nll(), 3);
  EXPECT_DOUBLE_EQ(c.ppl(), std::exp(3.0));
  EXPECT_DOUBLE_EQ(*c.nll_stderr(), std::sqrt(14.0 / 3 / 2));
  EXPECT_DOUBLE_EQ(*c.ppl_stderr(), std::exp(3.0) * std::sqrt(14.0 / 3 / 2));
  EXPECT_DOUBLE_EQ(*c.bits_per_byte(), 9 / (4 * std::log(2.0)));
  const TokenCosts one{.windows = 1, .scored = 1, .sum = 2, .squares = 4};
  EXPECT_FALSE(one.nll_stderr() || one.ppl_stderr() || one.bits_per_byte());
}

// Bytes and nothing else.
class BareBytes : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return 256; }
  void encode(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions&) const override {
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::string piece(TokenId id, bool) const override { return {static_cast<char>(id)}; }
  std::optional<TokenId> bos() const override { return {}; }
  std::optional<TokenId> end_of_text() const override { return {}; }
  std::vector<TokenId> stops() const override { return {}; }
  std::uint64_t fingerprint() const override { return 1; }
  void save(const fs::path&) const override {}
};

// A model over bytes, so that ids are easily known. Nothing stands before its texts.
class PerplexityOfBytes : public ::testing::Test {
 protected:
  static constexpr TokenId kEnd = 256;
  void SetUp() override {
    ModelConfig c = testing::small_config("bhyt", 2);
    c.vocab = 257;
    c.norm.seq_len = 64;
    model_ = testing::make_model(ctx_, c);
  }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  static std::vector<TokenId> bytes_of(const std::string& text) {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  Perplexity score(PerplexityOptions options, std::vector<ScoredText>* texts = nullptr) {
    options.progress = false;
    Engine engine(ctx_, *model_);
    return score_files(engine, *bytes_, options, [&](const ScoredText& t) {
      if (texts) texts->push_back(t);
    });
  }
  // What a window's scored tokens cost, by a forward over all that it holds.
  TokenCosts cost(const std::vector<TokenId>& ids, const Window& w) {
    const std::vector<TokenId> held(ids.begin() + w.begin, ids.begin() + w.end);
    const std::vector<float> logits = testing::whole_logits(ctx_, *model_, held);
    TokenCosts c{.windows = 1, .scored = w.scored()};
    for (std::int64_t i = w.first; i < w.end; ++i) {
      const float* row = logits.data() + (i - 1 - w.begin) * model_->config().vocab;
      double all = 0;
      for (std::int64_t v = 0; v < model_->config().vocab; ++v) all += std::exp(static_cast<double>(row[v]));
      const TokenId id = ids[static_cast<std::size_t>(i)];
      const double nll = std::log(all) - row[id];
      c.add({.bytes = id != kEnd, .sum = nll, .squares = nll * nll});
    }
    return c;
  }
  TokenCosts costs(const std::vector<TokenId>& ids, const Windows& windows) {
    TokenCosts c;
    for (const Window& w : windows) c.add(cost(ids, w));
    return c;
  }
  static void expect_same(const TokenCosts& a, const TokenCosts& b) {
    EXPECT_EQ(a.windows, b.windows);
    EXPECT_EQ(a.scored, b.scored);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_NEAR(a.sum, b.sum, 1e-5 * (1 + std::abs(b.sum)));
    EXPECT_NEAR(a.squares, b.squares, 1e-5 * (1 + std::abs(b.squares)));
  }
  void expect_refused(const PerplexityOptions& options, const std::string& message) {
    try {
      score(options);
      ADD_FAILURE() << "not refused: " << message;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }

  test::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path;
  Context ctx_{Device::cpu(), 1};
  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
};

TEST_F(PerplexityOfBytes, EveryTextIsScoredByItself) {
  const std::string first = "mary had a little lamb", third = "its fleece was";
  const std::string file = write("texts.jsonl", "{\"text\": \"" + first + "\"}\n{\"text\": \"\"}\n\n{\"text\": \"" + third + "\"}\n");
  for (const std::int64_t stride : {8, 5, 1}) {
    std::vector<ScoredText> texts;
    const Perplexity all = score({.inputs = {file, write("more.txt", "x")}, .window = 8, .stride = stride}, &texts);
    EXPECT_EQ(all.documents, 4);
    EXPECT_EQ(all.tokens, 22 + 14 + 1);
    EXPECT_FALSE(all.interrupted);
    ASSERT_EQ(texts.size(), 4u);
    TokenCosts sum;
    const std::string expected[] = {first, "", third, "x"};
    const std::int64_t lines[] = {1, 2, 4, 1};
    for (std::size_t i = 0; i < 4; ++i) {
      const std::vector<TokenId> ids = bytes_of(expected[i]);
      EXPECT_EQ(texts[i].number, static_cast<std::int64_t>(i));
      EXPECT_EQ(texts[i].tokens, std::ssize(ids));
      EXPECT_EQ(texts[i].line, lines[i]);
      EXPECT_EQ(texts[i].file, i < 3 ? file : (folder_ / "more.txt").string());
      const TokenCosts c = costs(ids, sliding_windows(std::ssize(ids), 8, stride));
      expect_same(texts[i].costs, c);
      sum.add(c);
    }
    expect_same(all.costs, sum);
  }
}

TEST_F(PerplexityOfBytes, PackedTextsAreOneText) {
  const std::string file = write("texts.jsonl", "{\"text\": \"mary had\"}\n{\"text\": \"\"}\n{\"text\": \"a little lamb\"}\n");
  std::vector<TokenId> ids;
  for (const char* text : {"mary had", "", "a little lamb"}) {
    for (const TokenId id : bytes_of(text)) ids.push_back(id);
    ids.push_back(kEnd);
  }
  for (const std::int64_t block : {5, 12, 24}) {
    std::vector<ScoredText> blocks;
    const Perplexity all = score({.inputs = {file}, .mode = PerplexityMode::packed, .window = block, .stride = block}, &blocks);
    EXPECT_EQ(all.documents, 3);
    EXPECT_EQ(all.tokens, 24);
    ASSERT_EQ(std::ssize(blocks), 24 / block);
    TokenCosts sum;
    for (std::int64_t b = 0; b < 24 / block; ++b) {
      const TokenCosts c = cost(ids, {b * block, b * block + 1, (b + 1) * block});
      EXPECT_EQ(blocks[static_cast<std::size_t>(b)].number, b);
      EXPECT_EQ(blocks[static_cast<std::size_t>(b)].file, "");
      expect_same(blocks[static_cast<std::size_t>(b)].costs, c);
      sum.add(c);
    }
    expect_same(all.costs, sum);
  }
}

// A text may be cut between batches, and a batch may end one.
TEST_F(PerplexityOfBytes, BatchesDoNotShow) {
  Engine engine(ctx_, *model_);
  const std::vector<std::string> texts{"mary had a little lamb", "", "its", "fleece was white as snow"};
  for (const std::int64_t batch : {1, 7, 8, 20, 1000}) {
    WindowScorer scorer(engine, {}, batch);
    std::vector<double> sums;
    std::int64_t steps = 0;
    for (const std::string& text : texts) {
      const std::vector<TokenId> ids = bytes_of(text);
      ASSERT_TRUE(scorer.add(
          ids, sliding_windows(std::ssize(ids), 7, 4), [&](const EndingScore& s) { sums.push_back(s.sum); },
          [&](const Window&, const EndingScore&) { ++steps; }));
    }
    ASSERT_TRUE(scorer.finish());
    ASSERT_EQ(sums.size(), texts.size()) << batch;
    std::int64_t windows = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> ids = bytes_of(texts[i]);
      const TokenCosts c = costs(ids, sliding_windows(std::ssize(ids), 7, 4));
      EXPECT_NEAR(-sums[i], c.sum, 1e-4) << batch;
      windows += c.windows;
    }
    EXPECT_EQ(steps, windows);
  }
}

TEST_F(PerplexityOfBytes, RollingScoresEveryTokenBehindTheEndOfText) {
  Engine engine(ctx_, *model_);
  const std::vector<std::string> pages{"mary ( had ) a", "", "lamb"};
  std::vector<RollingDocument> documents;
  ASSERT_TRUE(score_rolling(engine, *bytes_, pages, {.length = 5}, [&](std::size_t i, const RollingDocument& d) {
    EXPECT_EQ(i, documents.size());
    documents.push_back(d);
  }));
  ASSERT_EQ(documents.size(), 3u);
  const std::string texts[] = {"mary (had) a", "", "lamb"};
  for (std::size_t i = 0; i < 3; ++i) {
    std::vector<TokenId> ids{kEnd};
    for (const TokenId id : bytes_of(texts[i])) ids.push_back(id);
    EXPECT_EQ(documents[i].text, texts[i]);
    EXPECT_EQ(documents[i].tokens, std::ssize(ids) - 1);
    EXPECT_EQ(documents[i].bytes, std::ssize(pages[i]));
    EXPECT_NEAR(-documents[i].loglikelihood, costs(ids, rolling_windows(std::ssize(ids), 5)).sum, 1e-4);
  }
  EXPECT_EQ(documents[0].words, 5);
  EXPECT_EQ(documents[1].loglikelihood, 0);
}

TEST_F(PerplexityOfBytes, ALimitEndsBeforeWhatIsWrongBehindIt) {
  const std::string file = write("bad.jsonl", "{\"text\": \"mary had\"}\n{\"text\": \"a lamb\"}\nno JSON\n");
  EXPECT_EQ(score({.inputs = {file}, .window = 8, .stride = 8, .limit = 2}).tokens, 14);
  EXPECT_EQ(score({.inputs = {file}, .window = 8, .stride = 8, .limit = 1}).documents, 1);
  expect_refused({.inputs = {file}, .window = 8, .stride = 8, .limit = 3}, file + ":3: bad JSON");
  expect_refused({.inputs = {file}, .window = 8, .stride = 8}, file + ":3: bad JSON");
  expect_refused({.inputs = {file}, .key = "page", .window = 8, .stride = 8}, file + ":1: no string under \"page\"");
}

TEST_F(PerplexityOfBytes, WhatCannotBeScoredIsRefused) {
  const std::string file = write("a.txt", "mary had"), one = write("one.txt", "m");
  expect_refused({.window = 8, .stride = 8}, "nothing to score");
  expect_refused({.inputs = {file}, .window = 1, .stride = 1}, "a window must hold at least 2 tokens");
  expect_refused({.inputs = {file}, .window = 8, .stride = 0}, "the stride must be from 1 to the window, 8, got 0");
  expect_refused({.inputs = {file}, .window = 8, .stride = 9}, "the stride must be from 1 to the window, 8, got 9");
  expect_refused({.inputs = {file}, .mode = PerplexityMode::packed, .window = 8, .stride = 4}, "packed blocks do not overlap");
  expect_refused({.inputs = {file}, .window = 8, .stride = 8, .limit = -1}, "the limit must be at least 0");
  expect_refused({.inputs = {one, one}, .window = 8, .stride = 8}, "no token can be scored: 2 texts with 2 tokens in all");
  expect_refused({.inputs = {file}, .mode = PerplexityMode::packed, .window = 10, .stride = 10},
                 "no token can be scored: 1 texts with 9 tokens in all do not fill a block of 10");
  expect_refused({.inputs = {(folder_ / "none.txt").string()}, .window = 8, .stride = 8}, "none.txt");
  expect_refused({.inputs = {write("a.jsonl.gz", "no gzip")}, .window = 8, .stride = 8}, "a.jsonl.gz: damaged gzip data");
}

TEST_F(PerplexityOfBytes, SomeTokenMustStandBetweenOrBeforeTexts) {
  Engine engine(ctx_, *model_);
  const std::string file = write("a.txt", "mary had");
  const BareBytes bare;
  EXPECT_EQ(score_files(engine, bare, {.inputs = {file}, .window = 4, .stride = 4, .progress = false}).costs.scored, 6);
  EXPECT_THROW(score_files(engine, bare, {.inputs = {file}, .mode = PerplexityMode::packed, .window = 4, .stride = 4}), UsageError);
  const std::vector<std::string> pages{"mary had"};
  EXPECT_THROW(score_rolling(engine, bare, pages, {.length = 4}, [](std::size_t, const RollingDocument&) {}), UsageError);
  EXPECT_THROW(score_rolling(engine, *bytes_, pages, {.length = 0}, [](std::size_t, const RollingDocument&) {}), UsageError);
}

TEST_F(PerplexityOfBytes, AnInterruptionLeavesWhatWasScored) {
  const std::string file = write("a.txt", "mary had a little lamb");
  bool stop = true;
  Engine engine(ctx_, *model_, {.interrupted = [&] { return stop; }});
  bool told = false;
  const Perplexity none =
      score_files(engine, *bytes_, {.inputs = {file}, .window = 8, .stride = 8}, [&](const ScoredText&) { told = true; });
  EXPECT_TRUE(none.interrupted);
  EXPECT_EQ(none.costs.scored, 0);
  EXPECT_FALSE(told);
}

}  // namespace
}  // namespace bhyt
