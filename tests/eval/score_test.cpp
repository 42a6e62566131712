// Log-likelihoods through the engine: the same as those of whole rows, whatever is computed beside them.
#include "eval/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "tests/devices.h"
#include "tests/generate/requests.h"

namespace bhyt::testing {
namespace {

std::vector<Passage> some_passages(std::int64_t vocab) {
  std::vector<Passage> passages;
  for (std::uint64_t i = 0; i < 12; ++i) {
    Passage p{.context = draw_ids(i == 3 ? 1 : 20 + 9 * static_cast<std::int64_t>(i % 5), i % 4, vocab), .endings = {}};
    for (std::uint64_t e = 0; e < 1 + i % 5; ++e)
      p.endings.push_back(draw_ids(i % 2 == 0 ? 1 : 1 + static_cast<std::int64_t>((e + i) % 4), 100 + 7 * i + e, vocab));
    passages.push_back(std::move(p));
  }
  Passage many{.context = draw_ids(33, 9, vocab), .endings = {}};  // more of one token than one request takes
  for (std::int32_t id = 0; id < 20; ++id) many.endings.push_back({id});
  passages.push_back(std::move(many));
  return passages;
}

std::vector<EndingScore> scores_of(Context& ctx, const Model& m, const std::vector<Passage>& passages, const EngineOptions& options) {
  Engine engine(ctx, m, options);
  std::vector<EndingScore> all;
  std::size_t next = 0;
  EXPECT_TRUE(score_passages(engine, passages, [&](std::size_t i, std::span<const EndingScore> scores) {
    EXPECT_EQ(i, next++);
    EXPECT_EQ(scores.size(), passages[i].endings.size());
    all.insert(all.end(), scores.begin(), scores.end());
  }));
  EXPECT_EQ(next, passages.size());
  return all;
}

TEST(Score, EqualsWholeRows) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const std::int64_t vocab = m->config().vocab;
    const auto passages = some_passages(vocab);
    const auto scores = scores_of(ctx, *m, passages, {.tokens = 30, .sequences = 4});
    std::size_t k = 0;
    for (const Passage& p : passages)
      for (const auto& ending : p.endings) {
        Ids row = p.context;
        row.insert(row.end(), ending.begin(), ending.end());
        const auto logits = whole_logits(ctx, *m, row);
        double sum = 0, squares = 0;
        bool greedy = true;
        for (std::size_t t = p.context.size(); t < row.size(); ++t) {
          const float* at = logits.data() + (t - 1) * static_cast<std::size_t>(vocab);
          double total = 0;
          for (std::int64_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(at[v]));
          const double x = at[row[t]] - std::log(total);
          sum += x, squares += x * x;
          greedy = greedy && std::max_element(at, at + vocab) - at == row[t];
        }
        EXPECT_NEAR(scores[k].sum, sum, 5e-5) << k;
        EXPECT_NEAR(scores[k].squares, squares, 5e-4) << k;
        EXPECT_EQ(scores[k].greedy, greedy) << k;
        ++k;
      }
  }
}

// The budget of a step, the number of sequences and of threads change nothing, to the last bit.
TEST(Score, TheSameForEveryBudgetOnTheCpu) {
  std::vector<double> first;
  for (const int threads : {1, 2})
    for (const EngineOptions& options :
         {EngineOptions{.tokens = 256}, EngineOptions{.tokens = 7, .sequences = 3}, EngineOptions{.pages = 12, .tokens = 64}}) {
      Context& ctx = test::context_on(Device::cpu(), threads);
      const auto m = make_model(ctx, small_config("rmsnorm", 2));
      std::vector<double> sums;
      for (const EndingScore& s : scores_of(ctx, *m, some_passages(m->config().vocab), options)) sums.push_back(s.sum);
      if (first.empty()) first = sums;
      EXPECT_EQ(sums, first) << threads << " threads, " << options.tokens << " tokens";
    }
}

// Endings of one token are read off one pass over their context; others share its whole pages.
TEST(Score, AContextIsComputedOnce) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 2));
  const std::int64_t vocab = m->config().vocab;
  Engine engine(ctx, *m);
  const auto computed = [&](const Passage& p) {
    engine.wait_until_idle();
    const std::int64_t before = engine.counters().computed_tokens;
    EXPECT_TRUE(score_passages(engine, {&p, 1}, [](auto, auto) {}));
    engine.wait_until_idle();
    return engine.counters().computed_tokens - before;
  };
  EXPECT_EQ(computed({.context = draw_ids(70, 1, vocab), .endings = {{1}, {2}, {3}, {4}}}), 70);
  EXPECT_LE(computed({.context = draw_ids(70, 2, vocab), .endings = {{1, 2}, {2, 3}, {3, 4}, {4, 5}}}), 71 + 3 * 7);
}

TEST(Score, NoNumberIsAnError) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  const Parameter& embedding = m->parameters().list().front();
  const std::vector<float> values(static_cast<std::size_t>(embedding.size), std::numeric_limits<float>::quiet_NaN());
  m->parameters().write_value(embedding, values.data());
  Engine engine(ctx, *m);
  const Passage p{.context = {1, 2}, .endings = {{3}}};
  EXPECT_THROW(score_passages(engine, {&p, 1}, [](auto, auto) {}), Error);
}

TEST(Score, StopsWhenItIsTold) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  Engine engine(ctx, *m, {.interrupted = [] { return true; }});
  const Passage p{.context = {1, 2}, .endings = {{3}}};
  EXPECT_FALSE(score_passages(engine, {&p, 1}, [](auto, auto) { ADD_FAILURE(); }));
}

}  // namespace
}  // namespace bhyt::testing
