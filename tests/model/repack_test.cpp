// Models that are repacked for generating: the same function, with fewer things to do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/checkpoint.h"
#include "model/train_pass.h"
#include "tests/devices.h"
#include "tests/model/decoding.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"
#include "tests/model/training_pass.h"

namespace bhyt::testing {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kTokens = 40;

Ids some_ids(std::uint64_t seed = 3) {
  Rng rng(seed);
  Ids ids;
  for (std::int64_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<std::int32_t>(rng.below(23)));
  return ids;
}

std::unique_ptr<Model> repacked(Context& ctx, const ModelConfig& c, DType type, const Model::Repack& how) {
  auto m = make_model(ctx, c, type);
  m->repack(how);
  return m;
}

double largest(const std::vector<float>& v) {
  double top = 0;
  for (const float x : v) top = std::max(top, std::fabs(static_cast<double>(x)));
  return top;
}

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  double far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) far = std::max(far, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return far;
}

// Two layers are tied, three are not; the last norm goes into a head of its own alone.
TEST(Repack, FoldedIsTheSameFunction) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods())
      for (const std::int64_t layers : {2, 3})
        for (const DType type : {DType::f32, DType::bf16}) {
          SCOPED_TRACE(fmt::format("{} {} layers {} {}", method.name, layers, name_of(type), name_of(ctx.device())));
          const ModelConfig c = small_config(std::string(method.name), layers);
          const auto exact = make_model(ctx, c), plain = make_model(ctx, c, type), folded = repacked(ctx, c, type, {.fold = true});
          const auto logits = [](const Model& m) { return test::Decoder(m, kTokens).next(some_ids()); };
          const auto expected = logits(*exact);
          // In bf16 the weights are rounded elsewhere: another draw of the errors that the model has anyway.
          const double rounding = type == DType::f32 ? 1e-5 : 0x1p-5;
          const double tolerance = 2 * farthest(logits(*plain), expected) + rounding * std::max(1.0, largest(expected));
          EXPECT_LE(farthest(logits(*folded), expected), tolerance);
        }
}

TEST(Repack, TheGainIsGoneWhereTheMethodAllowsIt) {
  Context& ctx = test::context_on(Device::cpu());
  const auto folded = repacked(ctx, small_config("rmsnorm", 3), DType::f32, {.fold = true});
  EXPECT_FALSE(folded->blocks()[0].site1().gamma);
  EXPECT_FALSE(folded->blocks()[2].site2().gamma);
  EXPECT_FALSE(folded->last().gamma);
  EXPECT_TRUE(repacked(ctx, small_config("rmsnorm", 2), DType::f32, {.fold = true})->last().gamma) << "the head is the embedding";
  EXPECT_TRUE(repacked(ctx, small_config("rmsnorm", 3), DType::f32, {.fold = false})->blocks()[0].site1().gamma);
  const auto layernorm = repacked(ctx, small_config("layernorm", 3), DType::f32, {.fold = true});
  EXPECT_FALSE(layernorm->blocks()[0].site1().gamma);
  EXPECT_TRUE(layernorm->blocks()[0].site1().beta) << "in units of the gain";
  EXPECT_TRUE(repacked(ctx, small_config("derf", 3), DType::f32, {.fold = true})->blocks()[0].site1().gamma) << "a bias behind a bound";
}

// A bias cannot be measured in a gain of zero; nor in a small one where weights are rounded to coarse steps, which it would multiply.
TEST(Repack, AGainOfNextToNothingStays) {
  Context& ctx = test::context_on(Device::cpu());
  const ModelConfig c = small_config("layernorm", 3);
  const auto with_gain = [&](float gain) {
    auto m = make_model(ctx, c);
    set_layernorm(*m, 3, gain, 0.5f);
    return m;
  };
  const auto keeps_gain = [&](float gain, const Model::Repack& how) {
    const auto plain = with_gain(gain), folded = with_gain(gain);
    folded->repack(how);
    EXPECT_FALSE(folded->blocks()[0].site1().gamma);
    const auto expected = test::Decoder(*plain, kTokens).next(some_ids()), got = test::Decoder(*folded, kTokens).next(some_ids());
    EXPECT_LE(farthest(got, expected), (how.weights ? 0.1 : 2e-5) * std::max(1.0, largest(expected)));
    return static_cast<bool>(folded->blocks()[1].site1().gamma);
  };
  EXPECT_TRUE(keeps_gain(0, {}));
  EXPECT_FALSE(keeps_gain(0.01f, {}));
  EXPECT_TRUE(keeps_gain(0.1f, {.weights = DType::i8}));
  EXPECT_FALSE(keeps_gain(0.3f, {.weights = DType::i8}));
}

TEST(Repack, CannotBeTrainedSavedOrRepacked) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = repacked(ctx, small_config("bhyt", 2), DType::f32, {.fold = true});
  const test::TempDir dir;
  EXPECT_TRUE(test::has(test::message_of([&] { TrainPass(ctx, *m, {.batch = 1, .seq = 4}); }), "repacked for generating"));
  EXPECT_TRUE(test::has(test::message_of([&] { save_model(dir.path(), *m); }), "repacked for generating"));
  EXPECT_TRUE(test::has(test::message_of([&] { m->repack({}); }), "not repacked yet"));
  EXPECT_TRUE(test::has(test::message_of([&] { m->refresh_constants(); }), "not repacked yet"));
}

TEST(Repack, IsAskedForWhenAModelIsLoaded) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 3));
  const test::TempDir dir;
  save_model(dir.path(), *m);
  EXPECT_FALSE(load_model(ctx, dir.path(), DType::f32)->repacked());
  const auto loaded = load_model(ctx, dir.path(), DType::f32, Model::Repack{.weights = DType::i8});
  EXPECT_EQ(loaded->weights().layers[0].qkv.dtype, DType::i8);
  EXPECT_FALSE(loaded->blocks()[0].site1().gamma);
}

// Rows in which every token follows from the one before, and descent by the gradients' signs until they are known.
HostRows orbit_rows() {
  HostRows rows{.batch = 4, .seq = 16, .tokens = {}, .targets = {}, .positions = {}, .first = {}};
  for (int r = 0; r < 4; ++r)
    for (int t = 0, id = 5 * r + 1; t < 16; ++t) {
      rows.tokens.push_back(id);
      id = (id * 7 + 3) % 23;
      rows.targets.push_back(id);
    }
  return rows;
}

std::unique_ptr<Model> trained(Context& ctx, const std::string& method) {
  ModelConfig c = small_config(method, 2);
  c.d = 64, c.head_dim = 16, c.mlp = 96, c.init_std = 0.05;
  auto m = make_model(ctx, c);
  const HostRows rows = orbit_rows();
  for (int step = 0; step < 60; ++step) {
    m->refresh_constants();
    const NamedGradients g = training_pass(*m, rows, 1.0f / 64);
    for (const Parameter& p : m->parameters().list()) {
      if (p.frozen) continue;
      auto v = m->parameters().read_value(p);
      for (std::size_t i = 0; i < v.size(); ++i)
        v[i] -= 3e-3f * static_cast<float>((g.by_name.at(p.name)[i] > 0) - (g.by_name.at(p.name)[i] < 0));
      m->parameters().write_value(p, v.data());
    }
  }
  m->refresh_constants();
  return m;
}

double mean_loss(Context& ctx, const Model& m) {
  const HostRows rows = orbit_rows();
  test::Sequences sequences(ctx, m, 4, 16, 64);
  std::vector<DecodePass::Piece> pieces;
  std::vector<std::vector<Target>> targets;
  for (std::size_t r = 0; r < 4; ++r) {
    pieces.push_back(sequences.piece(r, std::span(rows.tokens).subspan(16 * r, 16)));
    pieces.back().targets = targets.emplace_back(test::targets_behind(std::span(rows.targets).subspan(16 * r, 16)));
  }
  double sum = 0;
  for (const float loss : on_host(ctx, sequences.pass.run(pieces).losses)) sum += loss;
  return sum / 64;
}

TEST(Repack, Int8ChangesThePerplexityOfATrainedModelLittle) {
  Context& ctx = test::context_on(Device::cpu());
  for (const std::string method : {"bhyt", "rmsnorm", "layernorm", "seednorm"}) {
    SCOPED_TRACE(method);
    const auto m = trained(ctx, method);
    const double before = mean_loss(ctx, *m);
    EXPECT_LT(before, 1.0);
    m->repack({.weights = DType::i8});
    EXPECT_LT(std::fabs(mean_loss(ctx, *m) - before), 0.01) << before;
  }
}

TEST(Repack, Int8RowsDoNotKnowOfEachOther) {
  Context& ctx = test::context_on(Device::cpu());
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto m = repacked(ctx, small_config("bhyt", 2), type, {.weights = DType::i8});
    const Ids a = some_ids(1), b = some_ids(2);
    test::Sequences sequences(ctx, *m, 2, kTokens, 2 * kTokens);
    const auto logits = [&](std::vector<std::pair<std::size_t, std::span<const std::int32_t>>> call) {
      sequences.length = {0, 0};
      return on_host(ctx, sequences.run(call).logits);
    };
    auto alone = logits({{0, a}});
    for (const float x : logits({{1, std::span(b).first(9)}})) alone.push_back(x);
    EXPECT_EQ(logits({{0, a}, {1, std::span(b).first(9)}}), alone);
  }
}

}  // namespace
}  // namespace bhyt::testing
