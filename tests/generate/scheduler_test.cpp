// Plans without a model: what a step computes, who waits, who gives pages back.
#include "generate/scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace bhyt {
namespace {

using Ids = std::vector<std::int32_t>;

Ids counting(std::int64_t n, std::int32_t from = 0) {
  Ids ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(from + static_cast<std::int32_t>(i));
  return ids;
}

std::shared_ptr<Sequence> sequence(Ids prompt, std::int64_t max_tokens) {
  return std::make_shared<Sequence>(Request{.prompt = std::move(prompt), .max_tokens = max_tokens}, std::make_shared<AnswerState>());
}

// What a step would do: each part that chooses gets a token.
std::vector<Scheduler::Part> step(Scheduler& scheduler) {
  auto plan = scheduler.plan();
  scheduler.share_pages(plan);
  for (const auto& part : plan) {
    if (!part.chooses) continue;
    Sequence& s = *part.sequence;
    s.tokens.push_back(static_cast<std::int32_t>(1000 + s.made()));
    if (std::ssize(s.tokens) == s.most())
      s.answer->finish(Finish::length);
    else
      scheduler.learn_pages(s);
  }
  return plan;
}

TEST(Scheduler, PromptsAreCutToTheBudgetBesideWhatGoesOn) {
  Scheduler scheduler({.tokens = 10, .sequences = 4, .pages = 20});
  const auto a = sequence(counting(4), 50), b = sequence(counting(25, 100), 50);
  scheduler.add(a);
  scheduler.add(b);
  auto plan = step(scheduler);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].count, 4);
  EXPECT_TRUE(plan[0].chooses);
  EXPECT_EQ(plan[1].count, 6);
  EXPECT_FALSE(plan[1].chooses);
  plan = step(scheduler);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].sequence, a);  // one token of what goes on, then the prompt
  EXPECT_EQ(plan[0].count, 1);
  EXPECT_EQ(plan[1].first, 6);
  EXPECT_EQ(plan[1].count, 9);
  EXPECT_FALSE(plan[1].chooses);
  plan = step(scheduler);
  EXPECT_EQ(plan[1].first, 15);
  EXPECT_EQ(plan[1].count, 9);
  plan = step(scheduler);
  EXPECT_EQ(plan[1].count, 1);
  EXPECT_TRUE(plan[1].chooses);
}

TEST(Scheduler, NoMoreSequencesThanThereIsRoomFor) {
  Scheduler scheduler({.tokens = 100, .sequences = 2, .pages = 20});
  for (int i = 0; i < 3; ++i) scheduler.add(sequence(counting(3, 50 * i), 2));
  EXPECT_EQ(step(scheduler).size(), 2u);
  EXPECT_EQ(scheduler.waiting(), 1);
  step(scheduler);  // their last tokens
  EXPECT_EQ(step(scheduler).size(), 1u);
  EXPECT_EQ(scheduler.waiting(), 0);
}

// The oldest waits for pages, and those behind it wait too, though they would fit.
TEST(Scheduler, WhatDoesNotFitWaitsInTurn) {
  Scheduler scheduler({.tokens = 200, .sequences = 8, .pages = 4});
  const auto first = sequence(counting(90), 6), second = sequence(counting(60, 200), 6), third = sequence(counting(5, 300), 6);
  for (const auto& s : {first, second, third}) scheduler.add(s);
  EXPECT_EQ(step(scheduler).size(), 1u);
  EXPECT_EQ(scheduler.pool().used(), 3);
  EXPECT_EQ(scheduler.waiting(), 2);
  first->answer->finish(Finish::cancelled);
  EXPECT_EQ(step(scheduler).size(), 2u);
}

TEST(Scheduler, OutOfPagesTheYoungestGivesItsBack) {
  Scheduler scheduler({.tokens = 200, .sequences = 8, .pages = 3});
  const auto old = sequence(counting(31), 60), young = sequence(counting(31, 200), 60);
  scheduler.add(old);
  scheduler.add(young);
  EXPECT_EQ(step(scheduler).size(), 2u);
  EXPECT_EQ(step(scheduler).size(), 2u);
  EXPECT_EQ(scheduler.pool().used(), 2);
  const auto plan = step(scheduler);  // both need a second page, there is one
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].sequence, old);
  EXPECT_EQ(scheduler.evictions(), 1);
  EXPECT_EQ(young->slot, -1);
  EXPECT_TRUE(young->pages.empty());
  EXPECT_EQ(scheduler.pool().used(), 2);
  EXPECT_EQ(scheduler.pool().cached(), 1);  // what it had computed, for as long as nobody needs it
  while (!old->answer->over()) step(scheduler);
  const std::int64_t shared = scheduler.shared_tokens();
  EXPECT_EQ(shared, 0);
  const auto again = step(scheduler);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].sequence, young);
  EXPECT_EQ(again[0].first + again[0].count, 33);  // prompt and the two new ones
  EXPECT_TRUE(again[0].chooses);
}

TEST(Scheduler, BeginningsAreSharedEvenWithinAStep) {
  Scheduler scheduler({.tokens = 300, .sequences = 8, .pages = 20});
  Ids other = counting(70);
  other[40] = 9;  // the second page differs
  const auto a = sequence(counting(70), 9), b = sequence(counting(70), 9), c = sequence(other, 9);
  for (const auto& s : {a, b, c}) scheduler.add(s);
  const auto plan = step(scheduler);
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].count, 70);
  EXPECT_EQ(plan[1].count, 6);
  EXPECT_EQ(plan[2].count, 38);
  EXPECT_EQ(scheduler.shared_tokens(), 64 + 32);
  EXPECT_EQ(a->pages[1], b->pages[1]);
  EXPECT_EQ(a->pages[0], c->pages[0]);
  EXPECT_NE(a->pages[1], c->pages[1]);
  EXPECT_EQ(scheduler.pool().used(), 3 + 1 + 2);
}

// Beyond whole pages, from a sequence that runs: as far as it is computed and the tokens agree, and never what has to be scored.
TEST(Scheduler, APageIsBegunAsAnotherOne) {
  Scheduler scheduler({.tokens = 90, .sequences = 8, .pages = 20, .copies = true});
  Ids other = counting(70);
  other[45] = 9;
  Request scored{.prompt = counting(70), .max_tokens = 0};
  scored.targets = {{40, 3}};
  const auto a = sequence(counting(70), 9), b = sequence(other, 9), d = sequence(counting(80), 9), e = sequence(counting(80, 500), 9);
  const auto c = std::make_shared<Sequence>(scored, std::make_shared<AnswerState>());
  scheduler.add(a);
  scheduler.add(b);
  auto plan = step(scheduler);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].begun_by, -1);
  EXPECT_EQ(plan[1].first, 45);
  EXPECT_EQ(plan[1].count, 20);  // what the budget leaves
  EXPECT_EQ(plan[1].begun_by, a->pages[1]);
  EXPECT_NE(b->pages[1], a->pages[1]);
  for (const auto& s : {c, d, e}) scheduler.add(s);
  plan = step(scheduler);
  ASSERT_EQ(plan.size(), 5u);
  EXPECT_EQ(plan[1].sequence, b);
  EXPECT_EQ(plan[1].begun_by, -1);  // it has it by now
  EXPECT_EQ(plan[2].first, 40);
  EXPECT_EQ(plan[2].begun_by, a->pages[1]);
  EXPECT_EQ(plan[3].first, 70);
  EXPECT_EQ(plan[3].begun_by, a->pages[2]);
  EXPECT_EQ(plan[4].first, 0);
  EXPECT_EQ(plan[4].begun_by, -1);
}

// A prompt of full pages that is known to its end: its last token is computed all the same, and the page goes back for the known one.
TEST(Scheduler, ThePageOfTheLastTokenIsExchanged) {
  Scheduler scheduler({.tokens = 300, .sequences = 8, .pages = 20});
  const auto a = sequence(counting(64), 9), b = sequence(counting(64), 9);
  scheduler.add(a);
  scheduler.add(b);
  const auto plan = scheduler.plan();
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[1].first, 32);
  EXPECT_NE(a->pages[1], b->pages[1]);
  scheduler.share_pages(plan);
  EXPECT_EQ(a->pages[1], b->pages[1]);
  EXPECT_EQ(scheduler.pool().used(), 2 + 2);  // and one for the new tokens of each
}

TEST(Scheduler, AnswersBecomeBeginnings) {
  Scheduler scheduler({.tokens = 300, .sequences = 8, .pages = 20});
  const auto a = sequence(counting(20), 30);
  scheduler.add(a);
  while (!a->answer->over()) step(scheduler);
  Ids prompt = a->tokens;
  prompt.push_back(5);
  const auto b = sequence(prompt, 3);
  scheduler.add(b);
  EXPECT_EQ(step(scheduler)[0].first, 32);
}

// What has to be scored is computed, whatever is known.
TEST(Scheduler, ScoredTokensAreNotShared) {
  Scheduler scheduler({.tokens = 300, .sequences = 8, .pages = 20});
  scheduler.add(sequence(counting(100), 5));
  step(scheduler);
  Request scored{.prompt = counting(100), .max_tokens = 0};
  scored.targets = {{70, 3}};
  const auto s = std::make_shared<Sequence>(scored, std::make_shared<AnswerState>());
  scheduler.add(s);
  const auto plan = step(scheduler);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[1].first, 64);
  EXPECT_EQ(plan[1].count, 36);
  EXPECT_FALSE(plan[1].chooses);
}

TEST(Scheduler, CancelledOnesGiveTheirPagesBack) {
  Scheduler scheduler({.tokens = 300, .sequences = 1, .pages = 20});
  const auto a = sequence(counting(100), 50), b = sequence(counting(100), 50), c = sequence(counting(10, 500), 5);
  for (const auto& s : {a, b, c}) scheduler.add(s);
  step(scheduler);
  a->answer->finish(Finish::cancelled);
  b->answer->finish(Finish::cancelled);  // has not begun
  const auto plan = step(scheduler);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].sequence, c);
  scheduler.end_all("");
  EXPECT_TRUE(scheduler.idle());
  EXPECT_TRUE(c->answer->over());
  EXPECT_EQ(scheduler.pool().used(), 0);
  EXPECT_EQ(scheduler.pool().cached(), 3);
}

// Wherever they stand in the queue; nobody counts them until they would come to its front.
TEST(Scheduler, CancelledOnesWaitNoMore) {
  Scheduler scheduler({.tokens = 300, .sequences = 1, .pages = 20});
  std::vector<std::shared_ptr<Sequence>> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(sequence(counting(10, 100 * i), 50));
    scheduler.add(all.back());
  }
  step(scheduler);
  EXPECT_EQ(scheduler.waiting(), 4);
  all[2]->answer->finish(Finish::cancelled);
  all[4]->answer->fail("no reason");
  ASSERT_EQ(step(scheduler).size(), 1u);
  EXPECT_EQ(scheduler.waiting(), 2);
  for (const std::size_t next : {1u, 3u}) {
    all[next == 1 ? 0 : 1]->answer->finish(Finish::cancelled);
    EXPECT_EQ(step(scheduler).at(0).sequence, all[next]);
  }
  EXPECT_EQ(scheduler.waiting(), 0);
}

// Not at the front of the queue, where one is that was evicted later.
TEST(Scheduler, OneThatWasEvictedWaitsNoMoreEither) {
  Scheduler scheduler({.tokens = 300, .sequences = 3, .pages = 6});
  std::vector<std::shared_ptr<Sequence>> all;
  for (int i = 0; i < 3; ++i) {
    all.push_back(sequence(counting(10, 100 * i), 150));
    scheduler.add(all.back());
  }
  step(scheduler);
  for (int i = 0; i < 150 && scheduler.waiting() < 2; ++i) step(scheduler);
  ASSERT_EQ(scheduler.waiting(), 2);
  all[2]->answer->finish(Finish::cancelled);
  const auto plan = step(scheduler);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].sequence, all[0]);
  EXPECT_EQ(scheduler.waiting(), 1);
}

}  // namespace
}  // namespace bhyt
