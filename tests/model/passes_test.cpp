// Passes beside each other: several over one model, several contexts at the same time, and a context that is settled.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "model/score_pass.h"
#include "model/train_pass.h"
#include "ops/adamw/adamw.h"
#include "tests/devices.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

std::vector<ArenaSpan> spans_of(const Parameters& parameters) {
  std::vector<ArenaSpan> spans;
  for (const Parameter& p : parameters.list())
    if (!p.frozen) spans.push_back({p.offset, p.size, p.value, p.decays});
  return spans;
}

// Large enough that loops are cut into several pieces.
ModelConfig wide_config(const std::string& method) {
  ModelConfig c = small_config(method, 2);
  c.d = 64, c.head_dim = 16, c.mlp = 136, c.vocab = 211;
  c.init_std = 0.1;
  return c;
}

// Every bit that a few steps of training leave: losses, and all values behind them.
std::vector<float> train(Device device, const ModelConfig& c, DType type) {
  Context ctx(device, 2);
  const auto m = make_model(ctx, c, type);
  const Parameters& parameters = m->parameters();
  const OwnedTensor first(ctx, DType::f32, {parameters.arena_size()}), second(ctx, DType::f32, {parameters.arena_size()}),
      low_bits(ctx, DType::u16, {parameters.arena_size()}), norm(ctx, DType::f32, {1});
  for (const Tensor& t : {first.t, second.t, low_bits.t}) zero(ctx, t);
  const auto spans = spans_of(parameters);
  TrainingStep step(ctx, *m, draw_rows(c.vocab, 8));
  std::vector<float> out;
  for (std::int64_t i = 1; i <= 3; ++i) {
    out.push_back(static_cast<float>(step.run().loss));
    gradient_norm(ctx, step.gradients.arena, spans, norm);
    adamw(ctx, low_bits, step.gradients.arena, first, second, spans,
          {.lr = 0.01, .weight_decay = 0.1, .step = i, .grad_norm = norm, .loss = {}, .clip = 1});
    m->refresh_constants();
  }
  for (const Parameter& p : parameters.list()) {
    const auto v = parameters.read_value(p);
    out.insert(out.end(), v.begin(), v.end());
  }
  return out;
}

void check_together(Device device, const ModelConfig& c, DType type) {
  SCOPED_TRACE(fmt::format("{} {} {}", c.norm.method, name_of(device), name_of(type)));
  const std::vector<float> alone = train(device, c, type);
  EXPECT_LT(alone[2], alone[0]) << "nothing was learned: nothing is compared";
  auto one = std::async(std::launch::async, train, device, c, type), other = std::async(std::launch::async, train, device, c, type);
  EXPECT_TRUE(same_bits(one.get(), alone));
  EXPECT_TRUE(same_bits(other.get(), alone));
}

TEST(Contexts, TwoThatTrainAtTheSameTimeHaveTheBitsOfOneAlone) {
  for (const Device device : test::devices()) {
    for (const Method& m : methods()) check_together(device, wide_config(std::string(m.name)), DType::f32);
    for (const char* method : {"bhyt", "seednorm"}) check_together(device, wide_config(method), DType::bf16);
  }
}

// At every moment of the backward another pass runs over the same model, in the same context, on rows and in a shape of its own.
TEST(Passes, AScoreWithinATrainingStepLeavesItsGradientsAlone) {
  for (Context& ctx : test::contexts())
    for (const Recompute recompute : {Recompute::none, Recompute::swiglu, Recompute::block}) {
      SCOPED_TRACE(fmt::format("{} recompute {}", name_of(ctx.device()), static_cast<int>(recompute)));
      const auto m = make_model(ctx, small_config("bhyt", 2));
      const auto rows = draw_rows(23, 3), others = draw_rows(23, 5, 77);
      const Tokens tokens(ctx, others);
      ScorePass scoring(ctx, *m, 5, kSeq);
      const OwnedTensor losses(ctx, DType::f32, {5 * kSeq});
      const auto score = [&] {
        scoring.score(tokens.batch, {.loss = {}, .losses = losses, .greedy = {}});
        return on_host(ctx, losses);
      };
      const std::vector<float> alone = score();
      TrainingStep step(ctx, *m, rows, {.recompute = recompute});
      const Result expected = step.run();
      int scored = 0;
      const Result got = step.run(false, [&](std::int64_t) {
        EXPECT_TRUE(same_bits(score(), alone));
        ++scored;
      });
      EXPECT_EQ(scored, 4);
      EXPECT_TRUE(same_bits(got, expected));
    }
}

// A list of the tokens that are scored, with places that stand for nothing, changes what reaches the LM head and no result.
TEST(Passes, TokensThatAreNotScoredNeedNotReachTheHead) {
  for (Context& ctx : test::contexts())
    for (const char* method : {"rmsnorm", "bhyt"}) {
      SCOPED_TRACE(fmt::format("{} {}", method, name_of(ctx.device())));
      const ModelConfig c = small_config(method, 2);
      const auto m = make_model(ctx, c);
      constexpr std::int64_t kRows = 3, kTokens = kRows * kSeq;
      std::vector<std::int32_t> ids(kTokens), targets(kTokens, -1), places, followers;
      for (std::int64_t i = 0; i < kTokens; ++i) {
        ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 7 % c.vocab);
        if (i % 3 != 1) continue;
        targets[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 5 % c.vocab);
        places.push_back(static_cast<std::int32_t>(i));
        followers.push_back(targets[static_cast<std::size_t>(i)]);
      }
      for (auto* list : {&places, &followers}) list->insert(list->end(), 4, -1);
      const auto upload = [&](const std::vector<std::int32_t>& from, std::int64_t rows) {
        OwnedTensor t(ctx, DType::i32, {rows, std::ssize(from) / rows});
        from_host(ctx, from.data(), t);
        return t;
      };
      const OwnedTensor tokens = upload(ids, kRows), all = upload(targets, kRows), some = upload(places, 1), behind = upload(followers, 1);
      TrainPass pass(ctx, *m, {.batch = kRows, .seq = kSeq, .lists = true});
      const auto run = [&](bool listed) {
        const Gradients gradients(ctx, m->parameters());
        const OwnedTensor loss(ctx, DType::f32, {2}), scale = OwnedTensor(ctx, DType::f32, {1});
        zero(ctx, loss);
        const float quarter = 0.25f;
        from_host(ctx, &quarter, scale);
        const Batch b{.batch = kRows,
                      .seq = kSeq,
                      .tokens = tokens,
                      .targets = all,
                      .scored = listed ? some.t.reshape({some.t.size()}) : Tensor{},
                      .scored_targets = listed ? behind.t.reshape({behind.t.size()}) : Tensor{}};
        const auto part = [&](int i) { return Tensor(loss.t.as<float>() + i, DType::f32, ctx.device(), {1}); };
        pass.run(b, {.gradients = gradients, .loss = part(0), .scale = 0.5f, .scale_by = scale, .accumulate = false});
        pass.score(b, {.loss = part(1)});
        std::vector<float> out = on_host(ctx, loss);
        for (const float g : on_host(ctx, gradients.arena)) out.push_back(g);
        return out;
      };
      const std::vector<float> whole = run(false), listed = run(true);
      ASSERT_EQ(whole.size(), listed.size());
      EXPECT_GT(whole[0], 10);
      EXPECT_NEAR(whole[0], whole[1], 1e-4);
      for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(whole[i], listed[i], 1e-6f + 1e-5f * std::abs(whole[i])) << i;
    }
}

TEST(Passes, TwoTrainingPassesOfOneModelDoNotShareActivations) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    TrainingStep one(ctx, *m, draw_rows(23, 3)), other(ctx, *m, draw_rows(23, 2, 5));
    const Result a = one.run(), b = other.run();
    const Result again = one.run(false, [&](std::int64_t layer) {
      if (layer != 2) return;
      EXPECT_TRUE(same_bits(other.run(), b));
    });
    EXPECT_TRUE(same_bits(again, a)) << name_of(ctx.device());
  }
}

void check_layer_done(Context& ctx, const ModelConfig& c, bool accumulate) {
  const auto m = make_model(ctx, c);
  TrainingStep step(ctx, *m, draw_rows(c.vocab, 2));
  const Result plain = step.run();
  std::vector<std::int64_t> order;
  std::map<std::string, std::vector<float>> copies;
  step.fill_gradients(accumulate ? 0 : NAN);
  const Result end = step.run(accumulate, [&](std::int64_t layer) {
    order.push_back(layer);
    for (const Parameter& p : m->parameters().list())
      if (p.layer == layer && !p.frozen) copies[p.name] = on_host(ctx, m->parameters().in_arena(step.gradients.arena, p));
  });
  std::vector<std::int64_t> expected;
  for (std::int64_t l = c.layers + 1; l >= 0; --l) expected.push_back(l);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(end.loss, plain.loss);
  for (const Parameter& p : m->parameters().list()) {
    if (p.frozen) continue;
    EXPECT_TRUE(same_bits(copies.at(p.name), end.of(p))) << p.name;
    EXPECT_TRUE(accumulate || same_bits(end.of(p), plain.of(p))) << p.name << " without anybody who waits for layers";
  }
}

TEST(Passes, LayersAreDoneFromTheLastToTheFirstAndThenFinal) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods())
      for (const std::int64_t layers : {2, 3})  // head tied, head apart
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} layers {}", method.name, layers, name_of(ctx.device())));
          check_layer_done(ctx, small_config(std::string(method.name), layers), accumulate);
        }
}

// The first two runs find out what is needed (scratch, a library's plans); from then on nothing may be taken and nobody waits.
TEST(Passes, ATrainingStepRunsInASettledContext) {
  for (const Device device : test::devices())
    for (const Method& method : methods())
      for (const DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(fmt::format("{} {} {}", method.name, name_of(device), name_of(type)));
        Context ctx(device, 2);
        const auto m = make_model(ctx, small_config(std::string(method.name), 2), type);
        TrainingStep step(ctx, *m, draw_rows(23, 3));
        const Result first = step.run();
        EXPECT_TRUE(same_bits(step.run(), first));
        ctx.settled();
        EXPECT_TRUE(same_bits(step.run(), first)) << "recorded";
        EXPECT_TRUE(same_bits(step.run(), first)) << "started again";
        // The weights change, their places do not: what was recorded must read them anew.
        const Parameter& p = m->parameters().at("model.norm.weight");
        std::vector<float> v = m->parameters().read_value(p);
        for (float& e : v) e *= 1.5f;
        m->parameters().write_value(p, v.data());
        const Result moved = step.run();
        EXPECT_NE(moved.loss, first.loss);
        ctx.settled(false);
        EXPECT_TRUE(same_bits(step.run(), moved));
      }
}

}  // namespace
}  // namespace bhyt::testing
