// Accuracies of single documents, means, standard errors, pooled groups and perplexities, against numbers worked out by hand.
#include "eval/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "eval/question.h"
#include "eval/scored.h"

namespace bhyt {
namespace {

Question question(std::vector<std::int64_t> characters, std::int64_t gold) {
  Question q{.task = "arc_easy", .document = 7, .gold = gold};
  q.characters = std::move(characters);
  return q;
}

std::vector<Likelihood> sums(const std::vector<double>& values) {
  std::vector<Likelihood> choices;
  for (const double v : values) choices.push_back({.sum = v, .greedy = false, .tokens = 1});
  return choices;
}

TEST(Grade, TheLikeliestAndTheLikeliestPerCharacter) {
  const Graded graded = grade(question({2, 20, 5}, 1), sums({-4, -10, -6}), true);  // -2, -0.5, -1.2 a character
  EXPECT_EQ(graded.acc, 0.0);
  EXPECT_EQ(graded.acc_norm, 1.0);
  EXPECT_EQ(graded.choices.size(), 3u);
}

TEST(Grade, TheFirstOfEquals) {
  EXPECT_EQ(grade(question({1, 1, 1}, 1), sums({-5, -3, -3}), true).acc, 1.0);
  EXPECT_EQ(grade(question({1, 1, 1}, 2), sums({-5, -3, -3}), true).acc, 0.0);
  EXPECT_EQ(grade(question({1, 2, 4}, 1), sums({-5, -4, -8}), true).acc_norm, 1.0);
  EXPECT_EQ(grade(question({1, 2, 4}, 2), sums({-5, -4, -8}), true).acc_norm, 0.0);
}

TEST(Grade, AnEmptyChoiceLosesByLength) {
  const Graded graded = grade(question({0, 1}, 1), sums({0, -1000}), true);
  EXPECT_EQ(graded.acc, 0.0);
  EXPECT_EQ(graded.acc_norm, 1.0);
  EXPECT_EQ(grade(question({0, 0}, 0), sums({-2, -1}), true).acc_norm, 1.0);  // both minus infinity: the first
}

TEST(Grade, NoLengthsAreNeededWhereNobodyAsks) {
  const Graded graded = grade(question({}, 0), sums({-1, -2}), false);
  EXPECT_EQ(graded.acc, 1.0);
  EXPECT_FALSE(graded.acc_norm.has_value());
}

TEST(Grade, RefusesWhatIsNoNumber) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    try {
      (void)grade(question({1, 1}, 0), sums({-1, bad}), false);
      ADD_FAILURE() << bad << " was scored";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("arc_easy document 7"), std::string::npos) << e.what();
    }
  }
}

TEST(Grade, RefusesAGoldThatIsNoChoice) {
  EXPECT_THROW((void)grade(question({1, 1}, 2), sums({-1, -2}), false), Error);
  EXPECT_THROW((void)grade(question({1, 1}, -1), sums({-1, -2}), false), Error);
  EXPECT_THROW((void)grade(question({1}, 0), sums({-1, -2}), true), Error);
  EXPECT_THROW((void)grade(question({}, 0), {}, false), Error);
}

TEST(Mean, HasTheStandardErrorOfASample) {
  const Mean mean = mean_of(std::vector<double>{1, 0, 0, 1, 1});  // squares around 0.6: 1.2; 1.2 / 4 / 5 = 0.06
  EXPECT_DOUBLE_EQ(mean.value, 0.6);
  EXPECT_DOUBLE_EQ(mean.error.value(), std::sqrt(0.06));
  EXPECT_EQ(mean.count, 5);
}

TEST(Mean, OfASingleValueHasNoError) {
  const Mean mean = mean_of(std::vector<double>{1});
  EXPECT_EQ(mean.value, 1.0);
  EXPECT_FALSE(mean.error.has_value());
  EXPECT_FALSE(deviation(std::vector<double>{1}).has_value());
  EXPECT_THROW((void)mean_of({}), Error);
}

TEST(Deviation, IsThatOfASample) { EXPECT_DOUBLE_EQ(deviation(std::vector<double>{1, 2, 3, 4}).value(), std::sqrt(5.0 / 3)); }

// (2·3·0.01 + 4·5·0.04) / (8 - 2) / 8 = 0.86 / 48
TEST(Pool, WeighsByDocuments) {
  const Mean pooled = pool(std::vector<Mean>{{0.5, 0.1, 3}, {0.25, 0.2, 5}});
  EXPECT_DOUBLE_EQ(pooled.value, (1.5 + 1.25) / 8);
  EXPECT_DOUBLE_EQ(pooled.error.value(), std::sqrt(0.86 / 48));
  EXPECT_EQ(pooled.count, 8);
}

TEST(Pool, HasNoErrorWhereAPartHasNone) {
  EXPECT_FALSE(pool(std::vector<Mean>{{0.5, 0.1, 3}, {1, {}, 1}}).error.has_value());
  EXPECT_FALSE(pool(std::vector<Mean>{{1, {}, 1}, {0.5, 0.1, 3}}).error.has_value());
}

TEST(Perplexity, IsOverAllTexts) {
  const Perplexities p = perplexities(std::vector<Rolled>{{-30, 9, 10, 40}, {-10, 4, 10, 60}});
  EXPECT_DOUBLE_EQ(p.word, std::exp(2.0));
  EXPECT_DOUBLE_EQ(p.byte, std::exp(0.4));
  EXPECT_DOUBLE_EQ(p.bits_per_byte, 0.4 / std::log(2.0));
  EXPECT_THROW((void)perplexities(std::vector<Rolled>{{std::nan(""), 9, 10, 40}}), Error);
  EXPECT_THROW((void)perplexities(std::vector<Rolled>{}), Error);
}

}  // namespace
}  // namespace bhyt
