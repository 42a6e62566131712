// The engine against decoding one sequence at a time and whole forwards.
#include "generate/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "ops/norm/methods.h"
#include "tests/devices.h"
#include "tests/generate/requests.h"
#include "tests/model/decoding.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

// Prompts of 1 to 100 tokens, answers of 1 to 40, that join and leave at different times.
std::vector<Request> mixed_requests(std::int64_t vocab) {
  std::vector<Request> requests;
  for (const auto& [prompt, max_tokens] : std::vector<std::pair<int, int>>{{1, 30}, {31, 2}, {100, 12}, {32, 40}, {5, 1}, {64, 9}, {7, 33}})
    requests.push_back({.prompt = draw_ids(prompt, static_cast<std::uint64_t>(prompt), vocab), .max_tokens = max_tokens});
  return requests;
}

Ids with_prompt(const Request& r, const Ids& answer) {
  Ids all = r.prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  return all;
}

TEST(Engine, AnswersEqualDecodingOneByOne) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods())
      for (const std::int64_t layers : {1, 2}) {  // a head of its own, and a tied one
        const auto m = make_model(ctx, small_config(std::string(method.name), layers));
        const auto requests = mixed_requests(m->config().vocab);
        std::vector<Ids> expected;
        for (const Request& r : requests) expected.push_back(test::continue_greedily(*m, r.prompt, r.prompt.size() + r.max_tokens));
        for (const bool ahead : {false, true})
          for (const std::int64_t tokens : {7, 256}) {
            SCOPED_TRACE(fmt::format("{} {} layers {} ahead {} tokens {}", method.name, layers, name_of(ctx.device()), ahead, tokens));
            Engine engine(ctx, *m, {.pages = 9, .tokens = tokens, .sequences = 5, .ahead = ahead});
            auto answers = engine.submit_all(requests);
            for (std::size_t i = 0; i < answers.size(); ++i) {
              const Answered a = answers[i].wait();
              EXPECT_EQ(with_prompt(requests[i], a.ids()), expected[i]) << i;
              EXPECT_EQ(a.finish, Finish::length);
            }
          }
      }
}

// On a CPU not even a bit depends on the neighbours, on the pieces of a prompt, or on whether it was evicted.
void expect_the_same_bits(Context& ctx, const std::string& method, DType type) {
  SCOPED_TRACE(fmt::format("{} {}", method, name_of(type)));
  ModelConfig c = small_config(method, 2);
  c.d = 48, c.head_dim = 16, c.mlp = 80, c.vocab = 301;
  const auto m = make_model(ctx, c, type);
  auto requests = mixed_requests(c.vocab);
  for (const std::int64_t n : {20, 25, 30}) requests.push_back({.prompt = draw_ids(n, 9, c.vocab), .max_tokens = 90 - n});
  for (Request& r : requests) r.logprobs = true;
  std::vector<Answered> alone;
  for (const Request& r : requests) alone.push_back(Engine(ctx, *m, {.sequences = 1}).submit(r).wait());
  Engine engine(ctx, *m, {.pages = 6, .tokens = 19, .sequences = 4});
  auto answers = engine.submit_all(requests);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Answered a = answers[i].wait();
    ASSERT_EQ(a.ids(), alone[i].ids()) << i;
    for (std::size_t k = 0; k < a.tokens.size(); ++k) EXPECT_EQ(a.tokens[k].logprob, alone[i].tokens[k].logprob) << i << " " << k;
  }
  engine.wait_until_idle();
  EXPECT_GT(engine.counters().evictions, 0);
}

TEST(Engine, ARequestHasTheSameBitsAloneAndAmongOthers) {
  for (const Method& method : methods())
    for (const DType type : {DType::f32, DType::bf16})
      expect_the_same_bits(test::context_on(Device::cpu()), std::string(method.name), type);
}

// As decoding one by one does: on a CPU to the bit. On a GPU two tokens may be as good as equal, so that only their number is sure.
TEST(Engine, ContinuesInBf16) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      SCOPED_TRACE(fmt::format("{} {}", method.name, name_of(ctx.device())));
      const auto m = make_model(ctx, small_config(std::string(method.name), 2), DType::bf16);
      const auto requests = mixed_requests(m->config().vocab);
      std::vector<Ids> expected;
      if (!ctx.device().is_cuda())
        for (const Request& r : requests) expected.push_back(test::continue_greedily(*m, r.prompt, r.prompt.size() + r.max_tokens));
      Engine engine(ctx, *m, {.pages = 20});
      auto answers = engine.submit_all(requests);
      for (std::size_t i = 0; i < answers.size(); ++i) {
        const Ids ids = answers[i].wait().ids();
        EXPECT_EQ(std::ssize(ids), requests[i].max_tokens);
        if (expected.empty()) continue;
        EXPECT_EQ(with_prompt(requests[i], ids), expected[i]) << i;
      }
    }
}

// Tokens read one at a time are those of the whole, in order.
TEST(Engine, GivesTokensAsTheyCome) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("rmsnorm", 2));
  Engine engine(ctx, *m);
  Answer answer = engine.submit({.prompt = {1, 2}, .max_tokens = 20});
  Ids read;
  while (const auto token = answer.next()) read.push_back(token->id);
  EXPECT_EQ(read.size(), 20u);
  EXPECT_EQ(read, answer.wait().ids());
  EXPECT_FALSE(answer.next());
}

TEST(Engine, ScoresSequences) {
  for (Context& ctx : test::contexts())
    for (const bool ahead : {false, true}) {
      const auto m = make_model(ctx, small_config("bhyt", 2));
      const std::int64_t vocab = m->config().vocab;
      std::vector<Request> requests;
      for (const std::int64_t n : {1, 40, 90, 33}) {
        Request r{.prompt = draw_ids(n, static_cast<std::uint64_t>(n), vocab)};
        for (std::int32_t i = 0; i < n; ++i)
          for (std::int32_t k = 0; k < (i == n - 1 ? kTargetsOfAToken : i % 3); ++k)
            r.targets.push_back({i, static_cast<std::int32_t>((i * 7 + k) % vocab)});
        requests.push_back(r);
      }
      requests.push_back(requests[2]);
      requests.back().max_tokens = 3;  // scored and continued
      Engine engine(ctx, *m, {.pages = 7, .tokens = 20, .sequences = 3, .ahead = ahead});
      auto answers = engine.submit_all(requests);
      engine.wait_until_idle();  // the context is free again
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const Request& r = requests[i];
        const auto logits = whole_logits(ctx, *m, r.prompt);
        const Answered a = answers[i].wait();
        EXPECT_EQ(std::ssize(a.tokens), r.max_tokens);
        ASSERT_EQ(a.scores.size(), r.targets.size());
        for (std::size_t k = 0; k < r.targets.size(); ++k) {
          const auto [behind, id] = r.targets[k];
          const float* row = logits.data() + behind * vocab;
          double sum = 0;
          for (std::int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
          EXPECT_NEAR(a.scores[k].logprob, row[id] - std::log(sum), 2e-5) << i << " " << k;
          EXPECT_EQ(a.scores[k].greedy, std::max_element(row, row + vocab) - row == id) << i << " " << k;
        }
      }
    }
}

TEST(Engine, GivesLogProbabilities) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    Engine engine(ctx, *m);
    Request r{.prompt = draw_ids(10, 1, 23), .max_tokens = 12, .sampling = {.temperature = 1.5, .seed = 3}};
    r.logprobs = true;
    const Answered a = engine.submit(r).wait();
    engine.wait_until_idle();
    const auto logits = whole_logits(ctx, *m, with_prompt(r, a.ids()));
    for (std::size_t i = 0; i < 12; ++i) {
      const float* row = logits.data() + (9 + i) * 23;
      double sum = 0;
      for (int v = 0; v < 23; ++v) sum += std::exp(static_cast<double>(row[v]));
      EXPECT_NEAR(a.tokens[i].logprob, row[a.tokens[i].id] - std::log(sum), 2e-5) << i;
    }
  }
}

// Samples are what the request gets alone, whatever it shares steps with, and each seed has its own.
TEST(Engine, SamplesDependOnTheirSeedAlone) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    std::vector<Request> requests;
    for (std::uint64_t seed = 0; seed < 6; ++seed)
      requests.push_back({.prompt = draw_ids(40, 1, 23),
                          .max_tokens = 30,
                          .sampling = {.temperature = 1.2, .top_k = 15, .top_p = 0.9, .min_p = 0.01, .seed = seed}});
    requests.push_back(requests[2]);
    std::vector<Ids> alone, together;
    for (const Request& r : requests) alone.push_back(Engine(ctx, *m, {.sequences = 1}).submit(r).wait().ids());
    Engine engine(ctx, *m, {.tokens = 10, .ahead = true});
    for (Answer& a : engine.submit_all(requests)) together.push_back(a.wait().ids());
    EXPECT_EQ(together, alone);
    EXPECT_EQ(together[6], together[2]);
    EXPECT_EQ(std::set<Ids>(together.begin(), together.end()).size(), 6u);
  }
}

// Where all tokens are as good as equally likely, the draws alone decide.
TEST(Engine, EachTokenIsANewDraw) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const Ids ids = Engine(ctx, *m).submit({.prompt = {1}, .max_tokens = 40, .sampling = {.temperature = 1e6}}).wait().ids();
    EXPECT_GT(std::set(ids.begin(), ids.end()).size(), 10u);
  }
}

// The likeliest token by Hugging Face's rule, one by one.
Ids penalized_greedily(const Model& m, Ids ids, std::int64_t more, float penalty) {
  test::Decoder decoder(m, std::ssize(ids) + more);
  const auto prompt = static_cast<std::ptrdiff_t>(ids.size());
  std::vector<float> logits = decoder.next(ids);
  for (; more > 0; --more) {
    for (const std::int32_t id : std::set(ids.begin(), ids.end())) {
      float& l = logits[static_cast<std::size_t>(id)];
      l = l > 0 ? l / penalty : l * penalty;
    }
    ids.push_back(static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (more > 1) logits = decoder.next({ids.back()});
  }
  return {ids.begin() + prompt, ids.end()};
}

TEST(Engine, TheRepetitionPenaltyKnowsPromptAndAnswer) {
  for (Context& ctx : test::contexts())
    for (const bool ahead : {false, true}) {
      const auto m = make_model(ctx, small_config("bhyt", 2));
      std::vector<Request> requests;
      for (std::uint64_t i = 0; i < 6; ++i)
        requests.push_back({.prompt = draw_ids(3 + 9 * static_cast<std::int64_t>(i), i, 23), .max_tokens = 40});
      SCOPED_TRACE(ahead);
      for (const std::size_t i : {0u, 1u, 3u, 5u}) requests[i].sampling.repetition_penalty = 1.7;
      Engine engine(ctx, *m, {.pages = 6, .tokens = 16, .sequences = 4, .ahead = ahead});  // slots change owners, some are evicted
      auto answers = engine.submit_all(requests);
      engine.wait_until_idle();
      for (std::size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(answers[i].wait().ids(), penalized_greedily(*m, requests[i].prompt, 40, i == 2 || i == 4 ? 1.f : 1.7f)) << i;
      EXPECT_GT(engine.counters().evictions, 0);
    }
}

TEST(Engine, SharedBeginningsAreComputedOnce) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    Engine engine(ctx, *m);
    const Request r{.prompt = draw_ids(70, 1, 23), .max_tokens = 2};
    const Ids expected = Engine(ctx, *m).submit(r).wait().ids();
    for (Answer& a : engine.submit_all(std::vector<Request>(4, r))) EXPECT_EQ(a.wait().ids(), expected);
    engine.wait_until_idle();
    const std::int64_t shared = ctx.device().is_cuda() ? 64 : 69;  // whole pages; all but the last token
    EXPECT_EQ(engine.counters().shared_tokens, 3 * shared);
    EXPECT_EQ(engine.counters().computed_tokens, 70 + 3 * (70 - shared) + 4);
    EXPECT_EQ(engine.counters().pages_used, 0);
    EXPECT_EQ(engine.counters().pages_cached, 2);
    const Answered later = engine.submit(r).wait();
    EXPECT_EQ(later.ids(), expected);
    EXPECT_EQ(later.shared_tokens, 64);
  }
}

TEST(Engine, StopsAtIdsAndWhereItIsTold) {
  for (Context& ctx : test::contexts())
    for (const bool ahead : {false, true}) {
      const auto m = make_model(ctx, small_config("bhyt", 1));
      Engine engine(ctx, *m, {.ahead = ahead});
      const Request r{.prompt = {1, 2, 3}, .max_tokens = 40, .sampling = {.temperature = 2, .seed = 5}};
      const Ids all = engine.submit(r).wait().ids();
      const auto stop = std::find_if(all.begin() + 1, all.end(), [&](std::int32_t id) { return id != all[0]; });
      ASSERT_NE(stop, all.end());
      const Ids before(all.begin(), stop), with(all.begin(), stop + 1);
      Request by_id = r, by_function = r;
      by_id.stops = {*stop};
      by_function.stop = [&](std::int32_t id) { return id == *stop; };
      const Answered a = engine.submit(by_id).wait(), b = engine.submit(by_function).wait();
      EXPECT_EQ(a.ids(), before);  // the id itself is no part of the answer
      EXPECT_EQ(a.finish, Finish::stop);
      EXPECT_EQ(b.ids(), with);
      EXPECT_EQ(b.finish, Finish::stop);
    }
}

}  // namespace
}  // namespace bhyt::testing
