// What the engine refuses, what goes wrong, and how answers end before their time.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "generate/engine.h"
#include "tests/devices.h"
#include "tests/generate/requests.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

TEST(EngineTrouble, RefusesWhatCannotBeAnswered) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  Engine engine(ctx, *m, {.pages = 3, .length = 80});
  const auto message = [&](Request r) { return test::message_of([&] { engine.check(r); }); };
  EXPECT_TRUE(test::has(message({.prompt = {}, .max_tokens = 1}), "the prompt is empty"));
  EXPECT_TRUE(
      test::has(message({.prompt = {1, 23}, .max_tokens = 1}), "token id 23 of the prompt is not below the model's vocabulary of 23"));
  EXPECT_TRUE(test::has(message({.prompt = {-1}, .max_tokens = 1}), "token id -1"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = -1}), "max-tokens must be at least 0"));
  EXPECT_TRUE(test::has(message({.prompt = draw_ids(70, 1, 23), .max_tokens = 11}), "the limit is 80 tokens"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = std::numeric_limits<std::int64_t>::max()}), "the limit is 80 tokens"));
  EXPECT_EQ(message({.prompt = draw_ids(70, 1, 23), .max_tokens = 10}), "no error");
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = 1, .sampling = {.temperature = -1}}), "temperature"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = 1, .sampling = {.temperature = NAN}}), "temperature"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = 1, .sampling = {.top_k = -1}}), "top-k"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = 1, .sampling = {.top_p = 0}}), "top-p"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = 1, .sampling = {.min_p = 1.5}}), "min-p"));
  EXPECT_TRUE(test::has(message({.prompt = {1}, .max_tokens = 1, .sampling = {.repetition_penalty = 0}}), "repetition-penalty"));
  Request scored{.prompt = {1, 2}};
  scored.targets = {{0, 1}, {1, 23}};
  EXPECT_TRUE(test::has(message(scored), "target 23"));
  scored.targets = {{1, 1}, {0, 1}};
  EXPECT_TRUE(test::has(message(scored), "in the order of the 2 tokens"));
  scored.targets = {{2, 1}};
  EXPECT_TRUE(test::has(message(scored), "behind token 2"));
  scored.targets.assign(kTargetsOfAToken, {1, 1});
  EXPECT_EQ(message(scored), "no error");
  scored.targets.push_back({1, 1});
  EXPECT_TRUE(test::has(message(scored), "expected at most 16 targets behind one token, got more behind token 1"));
  EXPECT_THROW((void)engine.submit({.prompt = {23}, .max_tokens = 1}), UsageError);
  EXPECT_TRUE(engine.submit({.prompt = {1}}).wait().tokens.empty());  // nothing asked for
  Engine small(ctx, *m, {.pages = 1});                                // less than one request
  EXPECT_EQ(small.longest(), 32);
  EXPECT_EQ(test::message_of([&] { (void)small.submit({.prompt = draw_ids(30, 1, 23), .max_tokens = 3}); }),
            "a prompt of 30 tokens and 3 new ones are too long: the memory for keys and values holds 32 tokens");
  EXPECT_EQ(small.submit({.prompt = draw_ids(30, 1, 23), .max_tokens = 2}).wait().tokens.size(), 2u);
  EXPECT_THROW(Engine(ctx, *m, {.pages = -1}), UsageError);
}

// A row of the embedding is not a number: prompts with that token fail, all others go on.
TEST(EngineTrouble, DamagedWeightsFailThoseWhoMeetThem) {
  for (Context& ctx : test::contexts())
    for (const bool ahead : {false, true}) {
      const auto m = make_model(ctx, small_config("rmsnorm", 1));
      const Parameter& p = *std::find_if(m->parameters().list().begin(), m->parameters().list().end(),
                                         [](const Parameter& q) { return q.name == "model.embed_tokens.weight"; });
      auto values = m->parameters().read_value(p);
      std::fill_n(values.begin() + 5 * 12, 12, NAN);
      m->parameters().write_value(p, values.data());
      Engine engine(ctx, *m, {.ahead = ahead});
      auto answers = engine.submit_all(std::vector<Request>{
          {.prompt = {1, 2}, .max_tokens = 3}, {.prompt = {1, 5, 2}, .max_tokens = 9}, {.prompt = {3}, .max_tokens = 3}});
      const std::string message = test::message_of([&] { answers[1].wait(); });
      EXPECT_TRUE(test::has(message, "the logits behind token 3 are not finite numbers: the weights may be damaged"));
      EXPECT_TRUE(test::has(test::message_of([&] { answers[1].next(); }), "are not finite"));
      EXPECT_EQ(answers[0].wait().tokens.size(), 3u);
      EXPECT_EQ(answers[2].wait().tokens.size(), 3u);
      engine.wait_until_idle();
      EXPECT_EQ(engine.counters().pages_used, 0);
    }
}

// Not even those who begin as it does: what lies before the damaged token does not see it. On a CPU; on a GPU 0 times NaN may be summed.
TEST(EngineTrouble, DamageDoesNotReachWhatLiesBeforeIt) {
  Context& ctx = test::context_on(Device::cpu());
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int64_t shared : {1, 4, 31, 32, 40, 64, 70}) {
      const auto m = make_model(ctx, small_config("rmsnorm", 3), type);
      const Parameter& p = *std::find_if(m->parameters().list().begin(), m->parameters().list().end(),
                                         [](const Parameter& q) { return q.name == "model.embed_tokens.weight"; });
      auto values = m->parameters().read_value(p);
      std::fill_n(values.begin() + 5 * 12, 12, INFINITY);
      m->parameters().write_value(p, values.data());
      std::vector<std::int32_t> begin = draw_ids(shared, 1, 23), other;
      std::replace(begin.begin(), begin.end(), 5, 6);
      std::vector<std::int32_t> damaged = begin;
      for (const std::int32_t id : {5, 3, 2, 1, 7}) damaged.push_back(id);
      (other = begin).push_back(3);
      Engine alone(ctx, *m);
      const auto right = alone.submit({.prompt = other, .max_tokens = 3}).wait().ids();
      Engine engine(ctx, *m);
      auto answers = engine.submit_all(std::vector<Request>{{.prompt = damaged, .max_tokens = 3}, {.prompt = other, .max_tokens = 3}});
      EXPECT_TRUE(test::has(test::message_of([&] { answers[0].wait(); }), "are not finite")) << shared;
      EXPECT_EQ(answers[1].wait().ids(), right) << shared;
      EXPECT_EQ(engine.submit({.prompt = other, .max_tokens = 3}).wait().ids(), right) << shared;  // pages that stayed known
    }
}

TEST(EngineTrouble, CancellingFreesPagesAndWakesReaders) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    Engine engine(ctx, *m, {.pages = 200});
    Answer answer = engine.submit({.prompt = {1}, .max_tokens = 6000});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(answer.next());
    std::thread other([&] { answer.cancel(); });
    other.join();
    while (answer.next()) continue;
    EXPECT_EQ(answer.wait().finish, Finish::cancelled);
    EXPECT_GE(answer.wait().tokens.size(), 3u);
    engine.wait_until_idle();
    EXPECT_EQ(engine.counters().pages_used, 0);
    EXPECT_EQ(engine.counters().running, 0);
    { const Answer forgotten = engine.submit({.prompt = {1}, .max_tokens = 6000}); }  // nobody can read it any more
    engine.wait_until_idle();
    EXPECT_EQ(engine.counters().pages_used, 0);
    EXPECT_LT(engine.counters().computed_tokens, 10000);
  }
}

TEST(EngineTrouble, AReaderThatStopsReadingHoldsNobodyUp) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  Engine engine(ctx, *m, {.sequences = 1});
  Answer unread = engine.submit({.prompt = {1}, .max_tokens = 500});
  EXPECT_TRUE(unread.next());
  EXPECT_EQ(engine.submit({.prompt = {2}, .max_tokens = 5}).wait().tokens.size(), 5u);
  engine.wait_until_idle();
  EXPECT_EQ(unread.wait().tokens.size(), 500u);
}

TEST(EngineTrouble, AnEngineThatGoesAwayEndsItsAnswers) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  std::vector<Answer> answers;
  {
    Engine engine(ctx, *m, {.pages = 400, .sequences = 1});
    answers = engine.submit_all(std::vector<Request>(3, {.prompt = {1}, .max_tokens = 12000}));
    EXPECT_TRUE(answers[0].next());
  }
  for (Answer& a : answers) EXPECT_EQ(a.wait().finish, Finish::cancelled);
}

TEST(EngineTrouble, AnInterruptEndsAllWithWhatThereIs) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  std::atomic<bool> stop = false;
  Engine engine(ctx, *m, {.pages = 800, .interrupted = [&] { return stop.load(); }});
  auto answers = engine.submit_all(std::vector<Request>(2, {.prompt = {1}, .max_tokens = 12000}));
  EXPECT_TRUE(answers[1].next());
  stop = true;
  for (Answer& a : answers) EXPECT_EQ(a.wait().finish, Finish::cancelled);
  EXPECT_FALSE(answers[0].wait().tokens.empty());
}

TEST(EngineTrouble, WhatGoesWrongInAStepIsTold) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  Engine engine(ctx, *m);
  Request bad{.prompt = {1}, .max_tokens = 5};
  bad.stop = [](std::int32_t) -> bool { fail("broken on purpose"); };
  auto answers = engine.submit_all(std::vector<Request>{bad, {.prompt = {2}, .max_tokens = 500}});
  for (Answer& a : answers) EXPECT_EQ(test::message_of([&] { a.wait(); }), "broken on purpose");
  engine.wait_until_idle();
  EXPECT_TRUE(test::has(test::message_of([&] { (void)engine.submit({.prompt = {2}, .max_tokens = 5}); }), "broken on purpose"));
}

TEST(EngineTrouble, WarnsOnceBeyondTheTrainedLength) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 2));  // trained at 9
  ::testing::internal::CaptureStderr();
  {
    Engine engine(ctx, *m);
    (void)engine.submit({.prompt = {1, 2}, .max_tokens = 8}).wait();
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    ::testing::internal::CaptureStderr();
    for (Answer& a : engine.submit_all(std::vector<Request>(2, {.prompt = {1, 2}, .max_tokens = 12}))) a.wait();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(test::has(said, "the text has gone beyond the 9 tokens that the model was trained at: what follows may be worse"));
  EXPECT_EQ(said.find("trained at"), said.rfind("trained at"));
}

}  // namespace
}  // namespace bhyt::testing
