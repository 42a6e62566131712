#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace bhyt::train {
namespace {

TEST(Schedule, RisesToThePeakAndFallsToItsShare) {
  const Schedule s{.lr = 2e-3, .min_lr_ratio = 0.1, .warmup_ratio = 0.1, .steps = 1000};
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 2e-5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 50), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(s, 100), 2e-3);
  EXPECT_DOUBLE_EQ(learning_rate(s, 550), 2e-3 * 0.55);  // half-way down: the mean of peak and end
  EXPECT_DOUBLE_EQ(learning_rate(s, 1000), 2e-4);
  for (int i = 2; i <= 1000; ++i) EXPECT_EQ(learning_rate(s, i) > learning_rate(s, i - 1), i <= 100) << i;
}

TEST(Schedule, AgreesWithItsFormulaAtOddLengths) {
  const Schedule s{.lr = 1, .min_lr_ratio = 0.25, .warmup_ratio = 0.3, .steps = 7};  // three steps of warm-up
  EXPECT_DOUBLE_EQ(learning_rate(s, 2), 2.0 / 3);
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), 0.25 + 0.75 * 0.5 * (1 + std::cos(std::acos(-1.0) / 4)));
}

TEST(Schedule, Edges) {
  const Schedule seven{.lr = 1, .warmup_ratio = 0.07, .steps = 100};  // a little more than 7 in double
  EXPECT_DOUBLE_EQ(learning_rate(seven, 7), 1.0);
  EXPECT_LT(learning_rate(seven, 8), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate({.lr = 1, .min_lr_ratio = 0.5, .warmup_ratio = 0, .steps = 1}, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate({.lr = 1, .min_lr_ratio = 0.5, .warmup_ratio = 0.1, .steps = 1}, 1), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate({.lr = 1, .min_lr_ratio = 0, .warmup_ratio = 1, .steps = 4}, 4), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate({.lr = 1, .min_lr_ratio = 1, .warmup_ratio = 0, .steps = 4}, 3), 1.0);
}

// transformers' get_cosine_with_min_lr_schedule_with_warmup, as its documentation has it, with s − 1 in the place of the step.
TEST(Schedule, TransformersCosineIsOneStepLate) {
  const Schedule hf{.kind = ScheduleKind::cosine_hf, .lr = 1e-3, .min_lr_ratio = 0.1, .warmup_ratio = 0.12, .steps = 20};
  EXPECT_EQ(learning_rate(hf, 1), 0);
  EXPECT_DOUBLE_EQ(learning_rate(hf, 2), 1e-3 / 3);
  EXPECT_DOUBLE_EQ(learning_rate(hf, 4), 1e-3);  // the first one behind the warm-up
  for (int s = 4; s <= 20; ++s)
    EXPECT_DOUBLE_EQ(learning_rate(hf, s), 1e-3 * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::acos(-1.0) * (s - 1 - 3) / 17.0)))) << s;
  EXPECT_DOUBLE_EQ(learning_rate({.kind = ScheduleKind::cosine_hf, .lr = 1, .warmup_ratio = 0, .steps = 4}, 1), 1.0);
}

TEST(Schedule, LinearConstantAndStableThenDecay) {
  Schedule s{.kind = ScheduleKind::linear, .lr = 1, .min_lr_ratio = 0.2, .warmup_ratio = 0.1, .decay_ratio = 0.3, .steps = 20};
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(s, 11), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 20), 0.2);
  s.kind = ScheduleKind::constant;
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 20), 1.0);
  s.kind = ScheduleKind::wsd;
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 14), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(s, 17), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 20), 0.2);
  s.decay_ratio = 1;  // a decay longer than what the warm-up leaves begins behind it
  EXPECT_DOUBLE_EQ(learning_rate(s, 2), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(s, 20), 0.2);
}

}  // namespace
}  // namespace bhyt::train
