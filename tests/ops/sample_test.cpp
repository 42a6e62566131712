// Choosing tokens: against a naive choice in double by a full sort, and the statistics of many draws.
#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "core/rng.h"
#include "tests/devices.h"

namespace bhyt::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows of logits with a choice each; seen tokens for those that refer to them.
struct Choices {
  std::int64_t vocab = 0;
  std::vector<float> logits;
  std::vector<SampleRow> rows;
  std::vector<std::uint32_t> seen, fresh;

  std::vector<std::int32_t> tokens;  // what came out
  std::vector<float> logprobs;

  void add(const std::vector<float>& row, const SampleRow& how) {
    vocab = std::ssize(row);
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(how);
  }
  void run(Context& ctx) {
    const std::int64_t r = std::ssize(rows), words = seen_words(vocab);
    const OwnedTensor x(ctx, DType::f32, {r, vocab}), how(ctx, DType::u8, {r, sizeof(SampleRow)}), ids(ctx, DType::i32, {r}),
        probs(ctx, DType::f32, {r}), old(ctx, DType::u32, {std::ssize(seen) / words, words}),
        bits(ctx, DType::u32, {std::ssize(fresh) / words, words});
    from_host(ctx, logits.data(), x);
    from_host(ctx, rows.data(), how);
    from_host(ctx, seen.data(), old);
    from_host(ctx, fresh.data(), bits);
    sample(ctx, {.logits = x, .rows = how, .seen = old, .fresh = bits, .tokens = ids, .logprobs = probs});
    tokens.resize(rows.size());
    logprobs.resize(rows.size());
    to_host(ctx, ids, tokens.data());
    to_host(ctx, probs, logprobs.data());
    to_host(ctx, old, seen.data());
  }
};

std::int32_t choose(Context& ctx, const std::vector<float>& logits, const SampleRow& how = {}) {
  Choices c;
  c.add(logits, how);
  c.run(ctx);
  return c.tokens[0];
}

// The tokens that the filters leave and their probabilities, by sorting the whole vocabulary.
std::map<std::int32_t, double> kept(const std::vector<float>& logits, const SampleRow& how) {
  std::vector<std::pair<double, std::int32_t>> all;
  const double top = *std::max_element(logits.begin(), logits.end());
  for (std::size_t i = 0; i < logits.size(); ++i) all.emplace_back(-std::exp((logits[i] - top) / how.temperature), i);
  std::sort(all.begin(), all.end());
  if (how.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(how.top_k)));
  double total = 0, sum = 0;
  for (const auto& a : all) total -= a.first;
  std::map<std::int32_t, double> out;
  for (const auto& [minus, id] : all) {
    if (how.top_p < 1 && sum >= static_cast<double>(how.top_p) * total) break;
    sum -= minus;
    if (-minus >= static_cast<double>(how.min_p)) out[id] = -minus;
  }
  sum = 0;
  for (const auto& [id, weight] : out) sum += weight;
  for (auto& [id, weight] : out) weight /= sum;
  return out;
}

std::vector<float> draw_logits(std::int64_t vocab, double spread, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  for (float& l : logits) l = static_cast<float>(spread * rng.normal());
  return logits;
}

TEST(Sample, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  for (Context& ctx : test::contexts()) {
    EXPECT_EQ(choose(ctx, {0.f, 3.f, -1.f, 3.f}), 1);
    EXPECT_EQ(choose(ctx, {-5.f}), 0);
    EXPECT_EQ(choose(ctx, {-kInf, -7.f}), 1);
    EXPECT_EQ(choose(ctx, {-0.0f, 0.0f}), 0);
    for (const std::int64_t vocab : {31, 1023, 1024, 1025, 5000}) {
      auto logits = draw_logits(vocab, 1, 3);
      logits[static_cast<std::size_t>(vocab - 1)] = logits[static_cast<std::size_t>(vocab / 2)] = 50;
      EXPECT_EQ(choose(ctx, logits), vocab / 2);
    }
  }
}

TEST(Sample, SaysWhereThereIsNothingToChoose) {
  for (Context& ctx : test::contexts())
    for (const float temperature : {0.f, 1.f}) {
      Choices c;
      c.add({1.f, NAN, 0.f}, {.temperature = temperature});
      c.add({1.f, 2.f, 0.f}, {.temperature = temperature});
      c.add({-NAN, 2.f, 0.f}, {.temperature = temperature});
      c.add({-kInf, -kInf, -kInf}, {.temperature = temperature});
      c.add({0.f, kInf, 0.f}, {.temperature = temperature});
      c.run(ctx);
      EXPECT_EQ(c.tokens[0], -1);
      EXPECT_GE(c.tokens[1], 0);  // its neighbours are not its business
      EXPECT_EQ(c.tokens[2], -1);
      EXPECT_EQ(c.tokens[3], -1);
      EXPECT_EQ(c.tokens[4], -1);
      EXPECT_TRUE(std::isnan(c.logprobs[0]));
      EXPECT_FALSE(std::isnan(c.logprobs[1]));
    }
}

// Chi-square of many draws against the probabilities that are left; nothing else is ever drawn. The bound is that of one in a million
// (Wilson and Hilferty), and the seeds are fixed.
void check_draws(Context& ctx, const std::vector<float>& logits, SampleRow how, int draws, const std::string& what) {
  Choices c;
  how.seed = 12345;
  for (int i = 0; i < draws; ++i) {
    how.number = i;
    c.add(logits, how);
  }
  c.run(ctx);
  const auto expected = kept(logits, how);
  std::map<std::int32_t, int> counts;
  for (const std::int32_t id : c.tokens) {
    ASSERT_TRUE(expected.contains(id)) << what << ": " << id << " should not be drawn";
    ++counts[id];
  }
  double chi = 0, rare = 0, rare_count = 0;
  int cells = 0;
  for (const auto& [id, p] : expected) {
    const double count = counts[id];
    if (p * draws < 10) {
      rare += p, rare_count += count;
      continue;
    }
    chi += (count - p * draws) * (count - p * draws) / (p * draws);
    ++cells;
  }
  if (rare * draws >= 10) chi += (rare_count - rare * draws) * (rare_count - rare * draws) / (rare * draws), ++cells;
  if (cells < 2) return;
  const double k = cells - 1, h = 2 / (9 * k);
  EXPECT_LT(chi, k * std::pow(1 - h + 4.753 * std::sqrt(h), 3)) << what << ", " << cells << " cells";
}

TEST(Sample, DrawsFollowTheSoftmaxOfWhatTheFiltersLeave) {
  for (Context& ctx : test::contexts()) {
    const auto logits = draw_logits(61, 1.5, 7);
    check_draws(ctx, logits, {.temperature = 1}, 20000, "plain");
    check_draws(ctx, logits, {.temperature = 0.5f}, 20000, "cool");
    check_draws(ctx, logits, {.temperature = 3}, 20000, "hot");
    check_draws(ctx, logits, {.temperature = 1, .top_k = 7}, 20000, "top-k");
    check_draws(ctx, logits, {.temperature = 1, .top_p = 0.8f}, 20000, "top-p");
    check_draws(ctx, logits, {.temperature = 1, .min_p = 0.1f}, 20000, "min-p");
    check_draws(ctx, logits, {.temperature = 0.8f, .top_p = 0.7f, .min_p = 0.05f, .top_k = 20}, 20000, "all");
    check_draws(ctx, {0.f, std::log(2.f), std::log(5.f), -100.f}, {.temperature = 1}, 20000, "few");
    check_draws(ctx, std::vector<float>(3000, 1.5f), {.temperature = 1, .top_k = 50}, 5000, "equals: the lower ids");
  }
}

// No other token is drawn than those that should be left, and each of them that is not rare.
TEST(Sample, FiltersLeaveWhatAFullSortLeaves) {
  for (Context& ctx : test::contexts())
    for (const std::int64_t vocab : {1, 33, 2049})
      for (const double spread : {0.0, 0.01, 3.0, 30.0})
        for (const std::int32_t k : {0, 1, 5, 40})
          for (const float p : {1.0f, 0.95f, 0.3f}) {
            const SampleRow how{.temperature = 0.8f, .top_p = p, .top_k = k};
            auto logits = draw_logits(vocab, spread, static_cast<std::uint64_t>(vocab + k));
            for (std::size_t i = 0; i + 3 < logits.size(); i += 3) logits[i] = logits[i + 1];  // ties
            const auto expected = kept(logits, how);
            if (expected.size() > 40) continue;
            Choices c;
            SampleRow row = how;
            for (row.number = 0; row.number < 400; ++row.number) c.add(logits, row);
            c.run(ctx);
            std::set<std::int32_t> drawn(c.tokens.begin(), c.tokens.end());
            for (const std::int32_t id : drawn) EXPECT_TRUE(expected.contains(id)) << vocab << " " << spread << " " << k << " " << p;
            for (const auto& [id, probability] : expected)
              EXPECT_TRUE(probability < 0.05 || drawn.contains(id)) << vocab << " " << spread << " " << k << " " << p << ": " << id;
          }
}

// A large vocabulary and weights that are far below one another are no trouble, and a rare token is drawn as often as it should.
TEST(Sample, RareTokensAreDrawn) {
  for (Context& ctx : test::contexts()) {
    std::vector<float> logits(30000, -14.f);  // together e^-14 · 30000 = 2.4 % beside the first
    logits[7] = 0;
    Choices c;
    for (int i = 0; i < 1000; ++i) c.add(logits, {.temperature = 1, .number = i, .seed = 4});
    c.run(ctx);
    const auto others = std::count_if(c.tokens.begin(), c.tokens.end(), [](std::int32_t id) { return id != 7; });
    EXPECT_GT(others, 8);
    EXPECT_LT(others, 45);
  }
}

TEST(Sample, ADrawDependsOnSeedAndNumberAlone) {
  for (Context& ctx : test::contexts()) {
    const auto logits = draw_logits(500, 1, 1), other = draw_logits(500, 2, 2);
    const SampleRow how{.temperature = 1, .top_p = 0.95f, .number = 3, .seed = 8};
    const std::int32_t alone = choose(ctx, logits, how);
    Choices among;
    for (int i = 0; i < 5; ++i) among.add(other, {.temperature = 1, .number = i, .seed = 100});
    among.add(logits, how);
    among.run(ctx);
    EXPECT_EQ(among.tokens[5], alone);
    EXPECT_EQ(choose(test::context_on(Device::cpu(), 1), logits, how), alone);  // and on the CPU
    std::set<std::int32_t> by_seed, by_number;
    for (std::uint64_t s = 0; s < 20; ++s) by_seed.insert(choose(ctx, logits, {.temperature = 1, .seed = s}));
    for (std::int32_t n = 0; n < 20; ++n) by_number.insert(choose(ctx, logits, {.temperature = 1, .number = n}));
    EXPECT_GT(by_seed.size(), 10u);
    EXPECT_GT(by_number.size(), 10u);
  }
}

TEST(Sample, ThePenaltyActsOnWhatWasSeen) {
  for (Context& ctx : test::contexts()) {
    const std::vector<float> up{2.f, 3.f, 1.f}, down{-2.f, -1.f, -1.5f};
    Choices c;
    c.fresh = {0b010, 0b010};
    c.seen = {0b111, 0b111, 0b001};
    c.add(up, {.penalty = 2, .seen = 0, .fresh = 0});    // 3 → 1.5
    c.add(down, {.penalty = 2, .seen = 1, .fresh = 1});  // −1 → −2
    c.add(up, {.penalty = 2, .seen = 2});                // 2 → 1, 3 stays
    c.add(up, {});
    c.run(ctx);
    EXPECT_EQ(c.tokens, (std::vector<std::int32_t>{0, 2, 1, 1}));
    EXPECT_EQ(c.seen, (std::vector<std::uint32_t>{0b011, 0b110, 0b011}));  // the choices are added
    const double sum = std::exp(2.0) + std::exp(3.0) + std::exp(1.0);
    EXPECT_NEAR(c.logprobs[0], 2 - std::log(sum), 1e-6);  // of the logits as they came
    EXPECT_NEAR(c.logprobs[3], 3 - std::log(sum), 1e-6);
  }
}

TEST(Sample, LogProbabilitiesAreThoseOfTheSoftmax) {
  for (Context& ctx : test::contexts())
    for (const std::int64_t vocab : {1, 37, 5001}) {
      const auto logits = draw_logits(vocab, 4, 11);
      double sum = 0;
      for (const float l : logits) sum += std::exp(static_cast<double>(l));
      Choices c;
      for (int i = 0; i < 9; ++i) c.add(logits, {.temperature = i == 0 ? 0 : 2.f, .top_k = 30, .number = i});
      c.run(ctx);
      for (std::size_t i = 0; i < 9; ++i)
        EXPECT_NEAR(c.logprobs[i], logits[static_cast<std::size_t>(c.tokens[i])] - std::log(sum), 2e-5) << vocab << " " << i;
    }
}

TEST(Sample, ChecksItsTensors) {
  Context& ctx = test::context_on(Device::cpu());
  const OwnedTensor x(ctx, DType::f32, {2, 40}), rows(ctx, DType::u8, {2, sizeof(SampleRow)}), ids(ctx, DType::i32, {2}),
      few(ctx, DType::i32, {1}), bits(ctx, DType::u32, {1, 1});
  EXPECT_THROW(sample(ctx, {.logits = x, .rows = ids, .tokens = ids}), Error);
  EXPECT_THROW(sample(ctx, {.logits = x, .rows = rows, .tokens = few}), Error);
  EXPECT_THROW(sample(ctx, {.logits = x, .rows = rows, .tokens = ids, .logprobs = ids}), Error);
  EXPECT_THROW(sample(ctx, {.logits = x, .rows = rows, .seen = bits, .tokens = ids}), Error);
}

}  // namespace
}  // namespace bhyt::testing
