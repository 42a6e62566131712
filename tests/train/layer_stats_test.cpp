// What metrics.jsonl says of the layers: from every token where that is cheap, else from a sample, and the same as an analysis says.
#include "train/layer_stats.h"

#include <gtest/gtest.h>

#include "model/score_pass.h"
#include "tests/model/small_model.h"
#include "tests/train/helpers.h"

namespace bhyt::train {
namespace {

ModelConfig bent_config(const std::string& method) {
  ModelConfig c = testing::small_config(method, 2);
  c.norm.kappa = 1.5;
  c.norm.lambda = {3, 2.5};
  return c;
}

void expect_near(const Json& got, std::initializer_list<double> expected) {
  ASSERT_EQ(got.size(), expected.size()) << got.dump();
  std::size_t i = 0;
  for (const double e : expected) EXPECT_NEAR(got[i++].get<double>(), e, 1e-5 * std::fabs(e)) << got.dump();
}

TEST(LayerStats, SayWhatAnAnalysisSays) {
  for (Context& ctx : test::contexts()) {
    const auto m = testing::make_model(ctx, bent_config("bhyt"));
    const testing::Tokens tokens(ctx, testing::draw_rows(23, 3));
    ScorePass pass(ctx, *m, 3, testing::kSeq);
    const analysis::LayerWatch watch(*m, pass.observers, {.seq = testing::kSeq});
    const LayerStats stats(ctx, *m, pass.observers, 3 * testing::kSeq, testing::kSeq);
    pass.forward(tokens.batch);
    const Json j = stats.result();
    const auto &first = watch.layers().at(1), &second = watch.layers().at(2);
    expect_near(j["norm"], {watch.embedding().norm(), first.output.norm(), second.output.norm()});
    expect_near(j["variance"], {watch.embedding().variance(), first.output.variance(), second.output.variance()});
    expect_near(j["kurtosis"], {watch.embedding().kurtosis(), first.output.kurtosis(), second.output.kurtosis()});
    expect_near(j["saturated_attn"], {*first.attention.saturated(), *second.attention.saturated()});
    expect_near(j["saturated_mlp"], {*first.mlp.saturated(), *second.mlp.saturated()});
    EXPECT_GT(j["saturated_mlp"][0], 0);
    expect_near(j["approximation_ratio"], {first.approximation->ratio(), second.approximation->ratio()});
    expect_near(j["approximation_r"], {*first.approximation->correlation(), *second.approximation->correlation()});
  }
}

TEST(LayerStats, LeaveOutWhatAMethodDoesNotHave) {
  Context& ctx = test::context_on(Device::cpu());
  const testing::Tokens tokens(ctx, testing::draw_rows(23, 3));
  const auto keys = [&](ModelConfig c) {
    const auto m = testing::make_model(ctx, c);
    ScorePass pass(ctx, *m, 3, testing::kSeq);
    const LayerStats stats(ctx, *m, pass.observers, 3 * testing::kSeq, testing::kSeq);
    pass.forward(tokens.batch);
    return stats.result();
  };
  const Json plain = keys(bent_config("lns"));
  EXPECT_FALSE(plain.contains("saturated_attn") || plain.contains("approximation_r")) << plain.dump();
  const Json bent = keys(bent_config("dyt"));
  EXPECT_TRUE(bent.contains("saturated_attn") && !bent.contains("approximation_r")) << bent.dump();
  ModelConfig mixed = bent_config("bhyt");
  mixed.norm.exact_list = {1};
  const Json some = keys(mixed);
  EXPECT_TRUE(some["approximation_ratio"][0].is_null() && some["approximation_ratio"][1].is_number()) << some.dump();
}

// Norms are means over all tokens, whatever the sample is; kurtosis is the sample's.
TEST(LayerStats, TakeASampleOfManyTokens) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = testing::make_model(ctx, bent_config("bhyt"));
  const testing::Tokens tokens(ctx, testing::draw_rows(23, 3));
  ScorePass pass(ctx, *m, 3, testing::kSeq);
  const LayerStats all(ctx, *m, pass.observers, 3 * testing::kSeq, testing::kSeq), some(ctx, *m, pass.observers, 512 * 7, testing::kSeq);
  pass.forward(tokens.batch);
  EXPECT_EQ(all.result()["norm"], some.result()["norm"]);
  EXPECT_NE(all.result()["kurtosis"], some.result()["kurtosis"]);
}

// Micro-batches are pieces of one step: the sample goes on where the last one ended.
TEST(LayerStats, ASampleGoesOnOverPasses) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = testing::make_model(ctx, bent_config("bhyt"));
  const testing::Tokens tokens(ctx, testing::draw_rows(23, 3));
  constexpr std::int64_t kTokens = 3 * testing::kSeq;
  ScorePass pass(ctx, *m, 3, testing::kSeq);
  const analysis::LayerWatch watch(*m, pass.observers, {.sample = {.every = 2 * kTokens, .first = kTokens + 1}, .whole = false});
  for (const std::int64_t seen : {0, 1, 1, 2}) {
    pass.forward(tokens.batch);
    EXPECT_EQ(watch.embedding().tokens(), seen);
    EXPECT_EQ(watch.layers().at(2).output.tokens(), seen);
    EXPECT_EQ(watch.layers().at(2).approximation->tokens(), seen);
  }
}

// By hand from the tokens that belong to a text; the second of two passes has others than the first.
TEST(LayerStats, TokensThatFillRowsUpDoNotCount) {
  for (Context& ctx : test::contexts()) {
    const auto m = testing::make_model(ctx, bent_config("bhyt"));
    const testing::Tokens tokens(ctx, testing::draw_rows(23, 3));
    constexpr std::int64_t kTokens = 3 * testing::kSeq;
    std::vector<std::vector<std::int32_t>> targets(2, std::vector<std::int32_t>(kTokens, 1));
    for (std::size_t i = 3; i < testing::kSeq + 2; ++i) targets[0][i] = kFilling;  // a row's end, and the beginning of the next
    for (std::size_t i = 2 * testing::kSeq; i < kTokens; ++i) targets[1][i] = kFilling;
    targets[1][1] = -1;  // not scored, but text
    std::vector<OwnedTensor> there;
    for (const auto& t : targets) {
      there.emplace_back(OwnedTensor(ctx, DType::i32, {3, testing::kSeq}));
      from_host(ctx, t.data(), there.back());
    }
    ScorePass pass(ctx, *m, 3, testing::kSeq);
    const LayerStats stats(ctx, *m, pass.observers, kTokens, testing::kSeq,
                           [&](std::int64_t i) -> Tensor { return there.at(static_cast<std::size_t>(i)); });
    std::size_t number = 0;
    analysis::StreamStats embedding, last;
    const auto keep = [&](Context& at, const Seen& seen) {
      const analysis::HostRows all = analysis::rows_on_host(at, seen.value);
      for (std::int64_t i = 0; i < all.rows; ++i)
        if (const auto row = all.row(i); targets.at(number)[static_cast<std::size_t>(i)] != kFilling)
          (seen.layer == 0 ? embedding : last).add({1, all.cols, {row.begin(), row.end()}});
    };
    const auto watching = pass.observers.subscribe({Point::embedding, Point::block_output}, keep, {0, 2});
    for (; number < 2; ++number) pass.forward(tokens.batch);
    const Json j = stats.result();
    EXPECT_NEAR(j["norm"][0].get<double>(), embedding.norm(), 1e-5 * embedding.norm());
    EXPECT_NEAR(j["norm"][2].get<double>(), last.norm(), 1e-5 * last.norm());
    EXPECT_NEAR(j["variance"][2].get<double>(), last.variance(), 1e-5 * last.variance());
    EXPECT_NEAR(j["kurtosis"][2].get<double>(), last.kurtosis(), 1e-5 * last.kurtosis());
  }
}

TEST(LayerStats, AreWrittenEverySoManySteps) {
  const Folder tmp;
  train(small_run(tmp, "a") + Words{"train.steps=20", "analysis.every=7"});
  std::vector<std::int64_t> steps;
  for (const auto& line : metrics_of(tmp.path / "a"))
    if (line.contains("layers")) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 7, 14, 20}));
}

}  // namespace
}  // namespace bhyt::train
