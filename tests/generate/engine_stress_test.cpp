// Many requests at once, in too little memory, from several threads, cancelled at any moment: no page is lost, and every answer is the one
// that the request gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "core/rng.h"
#include "generate/engine.h"
#include "tests/devices.h"
#include "tests/generate/requests.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

constexpr int kKinds = 60, kThreads = 4, kPerThread = 100;

// Prompts of 1 to 90 tokens, a third of them with a common beginning; answers of up to 60; greedy, drawn and penalized ones.
std::vector<Request> many_requests() {
  Rng rng(77);
  const Ids common = draw_ids(64, 5, 23);
  std::vector<Request> requests;
  for (int i = 0; i < kKinds; ++i) {
    Request r{.prompt = draw_ids(1 + static_cast<std::int64_t>(rng.below(90)), rng.next(), 23),
              .max_tokens = 1 + static_cast<std::int64_t>(rng.below(60))};
    if (i % 3 == 0) r.prompt.insert(r.prompt.begin(), common.begin(), common.begin() + 33 + static_cast<std::ptrdiff_t>(rng.below(31)));
    if (i % 2 == 0) r.sampling = {.temperature = 1, .top_p = 0.95, .seed = rng.next()};
    if (i % 5 == 0) r.sampling.repetition_penalty = 1.3;
    if (i % 7 == 0) r.stops = {3};
    requests.push_back(r);
  }
  return requests;
}

// Reads an answer, or cancels it after some tokens; what was read must be how the answer begins.
void read(Answer answer, std::int64_t patience, const Answered& expected, int& wrong) {
  std::size_t n = 0;
  while (const auto token = answer.next()) {
    if (n >= expected.tokens.size() || token->id != expected.tokens[n].id) ++wrong;
    ++n;
    if (--patience == 0) return;  // the handle goes away
  }
  const Answered all = answer.wait();
  if (all.finish != expected.finish || all.ids() != expected.ids()) ++wrong;
}

void stress(Context& ctx, const EngineOptions& options) {
  const auto m = make_model(ctx, small_config("bhyt", 2));
  const std::vector<Request> requests = many_requests();
  std::vector<Answered> expected;
  for (const Request& r : requests) expected.push_back(Engine(ctx, *m, {.sequences = 1}).submit(r).wait());
  Engine engine(ctx, *m, options);
  std::vector<int> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Rng rng(100 + static_cast<std::uint64_t>(t));
      std::vector<std::pair<Answer, std::size_t>> open;
      for (int i = 0; i < kPerThread; ++i) {
        const std::size_t kind = rng.below(kKinds);
        open.emplace_back(engine.submit(requests[kind]), kind);
        if (rng.below(6) == 0) open.erase(open.begin() + static_cast<std::ptrdiff_t>(rng.below(open.size())));  // before it was looked at
        while (open.size() > 12 || (i == kPerThread - 1 && !open.empty())) {
          auto [answer, which] = std::move(open.back());
          open.pop_back();
          const std::int64_t patience = rng.below(4) == 0 ? 1 + static_cast<std::int64_t>(rng.below(20)) : -1;
          read(std::move(answer), patience, expected[which], wrong[static_cast<std::size_t>(t)]);
        }
      }
    });
  for (std::thread& t : threads) t.join();
  engine.wait_until_idle();
  for (const int n : wrong) EXPECT_EQ(n, 0);
  const EngineCounters c = engine.counters();
  EXPECT_EQ(c.pages_used, 0);
  EXPECT_EQ(c.pages_free + c.pages_cached, options.pages);
  EXPECT_EQ(c.running + c.waiting, 0);
  EXPECT_GT(c.evictions, 0);
  EXPECT_GT(c.shared_tokens, 0);
}

TEST(EngineStress, NoPageIsLostAndEveryAnswerIsItsOwn) {
  for (Context& ctx : test::contexts())
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(ahead);
      stress(ctx, {.pages = 9, .tokens = 24, .sequences = 8, .ahead = ahead});
      stress(ctx, {.pages = 20, .tokens = 128, .sequences = 16, .ahead = ahead});
    }
}

TEST(EngineStress, TenThousandWait) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  Engine engine(ctx, *m, {.pages = 8, .tokens = 64, .sequences = 8});
  std::vector<Request> requests;
  for (int i = 0; i < 10000; ++i) requests.push_back({.prompt = {i % 23, i / 23 % 23}, .max_tokens = 2});
  auto answers = engine.submit_all(requests);
  EXPECT_GT(engine.counters().waiting, 0);
  answers.erase(answers.begin() + 3000, answers.begin() + 6000);  // nobody wants them any more
  std::map<Ids, Ids> by_prompt;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Ids& prompt = requests[i < 3000 ? i : i + 3000].prompt;
    const Ids ids = answers[i].wait().ids();
    EXPECT_EQ(ids.size(), 2u);
    EXPECT_EQ(by_prompt.emplace(prompt, ids).first->second, ids);
  }
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().pages_used, 0);
}

}  // namespace
}  // namespace bhyt::testing
