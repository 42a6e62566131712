// What is counted of rows of numbers, on rows whose answers are known.
#include "analysis/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/memory.h"
#include "tests/devices.h"

namespace bhyt::analysis {
namespace {

HostRows rows(std::int64_t cols, std::vector<float> values) {
  const std::int64_t n = std::ssize(values) / cols;
  return {n, cols, std::move(values)};
}

TEST(StreamStats, MomentsOfKnownRows) {
  StreamStats s;
  s.add(rows(4, {1, -1, 1, -1}));
  s.add(rows(4, {5, 5, 5, 9}));
  EXPECT_EQ(s.tokens(), 2);
  EXPECT_NEAR(s.norm(), (2 + std::sqrt(156.0)) / 2, 1e-12);
  EXPECT_NEAR(s.abs(), (1 + 6) / 2.0, 1e-12);
  EXPECT_NEAR(s.variance(), (1 + 3) / 2.0, 1e-12);                 // around the token's own mean
  EXPECT_NEAR(s.kurtosis(), (1 + (3 + 81) / 4.0 / 9) / 2, 1e-12);  // not the excess
  EXPECT_EQ(s.largest().value, 9);
  EXPECT_EQ(s.largest().feature, 3);
  EXPECT_EQ(s.largest().token, 1);
}

TEST(StreamStats, TheLargestKeepsItsSignAndRowsWithoutVarianceHaveNoKurtosis) {
  StreamStats s;
  s.add(rows(4, {2, 2, 2, 2, 1, -1, -7, 1}));
  EXPECT_EQ(s.largest().value, -7);
  EXPECT_EQ(s.largest().feature, 2);
  StreamStats varied;
  varied.add(rows(4, {1, -1, -7, 1}));
  EXPECT_EQ(s.kurtosis(), varied.kurtosis());
}

// Feature 3 is beyond 6·rms in half of the tokens, feature 5 in fewer.
TEST(StreamStats, OutliersPersistInHalfOfTheTokens) {
  constexpr std::size_t kCols = 64;
  const auto token = [&](int spike) {
    std::vector<float> x(kCols, 0.1f);
    if (spike >= 0) x[static_cast<std::size_t>(spike)] = -20;
    return x;
  };
  StreamStats s;
  for (const int spike : {3, -1, 3, 5}) s.add(rows(kCols, token(spike)));
  EXPECT_EQ(s.outliers(), (std::vector<std::int64_t>{3}));
  s.add(rows(kCols, token(-1)));
  EXPECT_TRUE(s.outliers().empty());
}

TEST(StreamStats, KnowsWhatIsNotFinite) {
  StreamStats s;
  s.add(rows(2, {1, 2}));
  EXPECT_TRUE(s.finite());
  s.add(rows(2, {1, std::nanf("")}));
  EXPECT_FALSE(s.finite());
  EXPECT_TRUE(std::isnan(s.kurtosis()));
  SiteStats site({.map = Map::tanh, .lambda = 1});
  site.add(rows(2, {1, std::nanf("")}), std::vector<float>{1}, {});
  EXPECT_TRUE(std::isnan(*site.saturated()));
  EXPECT_TRUE(std::isnan(*site.beyond_lambda()));
}

TEST(CosineStats, IsAMeanOverTokens) {
  CosineStats c;
  c.add(rows(2, {1, 0, 0, 3}), rows(2, {2, 0, 4, 0}));
  EXPECT_NEAR(c.mean(), 0.5, 1e-12);
  c.add(rows(2, {1, 1}), rows(2, {-3, -3}));
  EXPECT_NEAR(c.mean(), 0, 1e-12);
}

TEST(SiteStats, SaturationOfTheMapAndBeyondLambda) {
  SiteStats s(SiteFacts{.map = Map::tanh, .lambda = 1.5, .chebyshev = 0.01});
  // a·x: 1.8, 1.84 (|tanh| passes 0.95 between), 1.4, −4
  s.add(rows(2, {0.9f, 0.92f, 0.7f, -2}), std::vector<float>{2, 2}, {});
  EXPECT_EQ(s.saturated(), 0.5);
  EXPECT_EQ(s.beyond_lambda(), 0.75);

  SiteStats erf(SiteFacts{.map = Map::erf, .shift = 1, .alpha = 1});
  erf.add(rows(4, {0.38f, 0.39f, 0.5f, -2.38f}), std::vector<float>{1}, {});  // with the shift 1.38, 1.39, 1.5 and −1.38
  EXPECT_EQ(erf.saturated(), 0.5);
  EXPECT_FALSE(erf.beyond_lambda());

  const SiteStats plain{SiteFacts{}};
  EXPECT_FALSE(plain.saturated());
}

TEST(SiteStats, GainsAreRootMeanSquares) {
  SiteStats s(SiteFacts{.map = Map::tanh, .factor = 2, .gamma = {1, 3}, .lambda = 1});
  s.add(rows(2, {3, 4}), std::vector<float>{0.1f}, rows(2, {0.6f, 0.8f}));
  EXPECT_NEAR(s.gain(), 0.2, 1e-7);
  EXPECT_NEAR(s.output(), std::sqrt(0.5), 1e-7);
  EXPECT_NEAR(s.linear_gain(), 2 * std::sqrt((0.09 + 1.44) / 25), 1e-7);
  SiteStats centred(SiteFacts{.centred = true});
  centred.add(rows(2, {3, 5}), std::vector<float>{1}, rows(2, {-1, 1}));
  EXPECT_NEAR(centred.linear_gain(), centred.gain(), 1e-12);
}

TEST(ApproximationStats, RatioCorrelationAndWorstToken) {
  ApproximationStats s;
  s.add(std::vector<float>{2, 4}, rows(1, {1, 2}));
  s.add(std::vector<float>{3}, rows(1, {3}));  // actual 1, 4, 9: ratios 2, 1, 1/3
  EXPECT_EQ(s.tokens(), 3);
  EXPECT_NEAR(s.ratio(), (2 + 1 + 1 / 3.0) / 3, 1e-12);
  // deviations −1, 1, 0 and −11/3, −2/3, 13/3
  EXPECT_NEAR(*s.correlation(), 3 / std::sqrt(2 * (121 + 4 + 169) / 9.0), 1e-12);
  EXPECT_EQ(s.worst().token, 2);  // a third is further from 1 than twice is
  EXPECT_NEAR(s.worst().ratio(), 1 / 3.0, 1e-12);
  ASSERT_EQ(s.points(2).size(), 2u);
  EXPECT_EQ(s.points(2)[1].token, 1);
  EXPECT_EQ(s.points(2)[1].actual, 4);
  EXPECT_EQ(s.points(9).size(), 3u);
  ApproximationStats flat;
  flat.add(std::vector<float>{1, 1}, rows(1, {1, 2}));
  EXPECT_FALSE(flat.correlation());
}

TEST(EntropyStats, UniformAttentionHasAllOfIt) {
  EntropyStats s;
  const std::vector<float> zeros(6 * 2, 0);
  s.add({6, 2, zeros}, {6, 2, zeros}, {.seq = 6, .heads = 2, .kv_heads = 2, .head_dim = 1});
  EXPECT_EQ(s.count(), 5 * 2);
  EXPECT_NEAR(s.relative(), 1, 1e-12);
  EXPECT_NEAR(s.nats(), std::log(2.0 * 3 * 4 * 5 * 6) / 5, 1e-12);
}

// Two rows of three tokens: no row sees the other, and both query heads share the one key head.
TEST(EntropyStats, RowsAndHeadsAreTheirOwn) {
  EntropyStats s;
  s.add(rows(2, {0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0}), rows(1, {0, 0, 1, 50, 50, 50}),
        {.seq = 3, .heads = 2, .kv_heads = 1, .head_dim = 1, .positions = 1});  // the last position alone
  const auto entropy = [](double score) {                                       // of scores 0, 0, score
    const double sum = 2 + std::exp(score), p = std::exp(score) / sum;
    return -2 / sum * std::log(1 / sum) - p * std::log(p);
  };
  EXPECT_EQ(s.count(), 4);
  EXPECT_NEAR(s.nats(), (entropy(1) + entropy(2) + 2 * std::log(3.0)) / 4, 1e-12);
}

TEST(Sample, OfTokensOfASlice) {
  for (Context& ctx : test::contexts()) {
    std::vector<float> values(10 * 3);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const OwnedTensor t(ctx, DType::f32, {10, 3});
    from_host(ctx, values.data(), t);
    const HostRows all = rows_on_host(ctx, t), some = rows_on_host(ctx, t.t.col_slice(1, 2), {.every = 4, .first = 2});
    EXPECT_EQ(all.values, values);
    EXPECT_EQ(some.rows, 2);  // tokens 2 and 6
    EXPECT_EQ(some.values, (std::vector<float>{7, 8, 19, 20}));
    EXPECT_EQ(numbers_on_host(ctx, t.t.reshape({30}), {.every = 20, .first = 10}), (std::vector<float>{10}));
    EXPECT_EQ(rows_on_host(ctx, t.t.row_slice(0, 1), {.every = 64, .first = 1}).rows, 0);
  }
}

// Whatever the batch and however it is cut, about as many tokens as asked for, from all parts of the rows.
TEST(Sample, IsSpreadOverPositionsAndMicroBatches) {
  constexpr std::int64_t kSeq = 64;
  for (const std::int64_t batch : {2, 8, 128, 255, 256, 512, 1024})
    for (const std::int64_t piece : {batch, std::int64_t{1}}) {
      const std::int64_t every = std::max<std::int64_t>(batch * kSeq / 128, 1);
      Sample sample = spread_over(every, kSeq);
      std::vector<std::int64_t> quarters(4);
      for (std::int64_t row = 0; row < batch; row += piece) {
        const std::int64_t tokens = piece * kSeq;
        for (std::int64_t i = 0; i < sample.count(tokens); ++i)
          ++quarters.at(static_cast<std::size_t>((sample.first + i * sample.every) % kSeq * 4 / kSeq));
        sample.advance(tokens);
      }
      const auto [least, most] = std::minmax_element(quarters.begin(), quarters.end());
      EXPECT_GE(*least, 16) << batch << " " << piece;
      EXPECT_LE(*most, 48) << batch << " " << piece;
    }
}

}  // namespace
}  // namespace bhyt::analysis
