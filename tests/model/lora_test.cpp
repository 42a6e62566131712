// Adapters in a whole model: loss and gradients against the naive model with W + (α/r)·B A in place of W; dropout against differences of
// the loss itself; and what must hold whatever the values: what is frozen, recomputation, passes that agree.
#include "model/lora.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/score_pass.h"
#include "tests/devices.h"
#include "tests/model/decoding.h"
#include "tests/model/helpers.h"
#include "tests/model/reference_model.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

using P = Projection;

LoraConfig some(std::vector<Projection> targets, std::int64_t rank = 3) {
  return {.rank = rank, .alpha = 4.5, .targets = std::move(targets)};
}

// The model's own weights with what its adapters add to them.
NamedValues effective(const Model& m, NamedValues w) {
  for (const Parameter& p : m.parameters().list()) {
    if (p.role != Role::lora_a) continue;
    const std::string stem = p.name.substr(0, p.name.find(".lora_A"));
    const auto r = static_cast<std::size_t>(p.shape[0]), in = static_cast<std::size_t>(p.shape[1]);
    const std::vector<double>&a = w.at(p.name), &b = w.at(stem + ".lora_B.weight");
    std::vector<double>& of = w.at(stem + ".weight");
    for (std::size_t i = 0; i < of.size(); ++i)
      for (std::size_t k = 0; k < r; ++k) of[i] += m.lora().scale() * b[i / in * r + k] * a[k * in + i % in];
  }
  return w;
}

// Along its own direction and along a random one, for every parameter that is trained.
template <class Loss>
void check_directions(const Model& m, const Result& got, const NamedValues& w, double h, double bar, Loss&& loss) {
  Rng rng(23);
  for (const Parameter& p : m.parameters().list()) {
    if (p.frozen) continue;
    const float* g = got.gradients.data() + p.offset;
    double top = 0;
    for (std::int64_t i = 0; i < p.size; ++i) top = std::max(top, static_cast<double>(std::fabs(g[i])));
    ASSERT_GT(top, 0) << p.name;
    for (int k = 0; k < 2; ++k) {
      std::vector<double> direction(static_cast<std::size_t>(p.size));
      double along = 0, size = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) {
        direction[i] = k == 0 ? static_cast<double>(g[i]) / top : rng.normal();
        along += static_cast<double>(g[i]) * direction[i];
        size += std::fabs(direction[i]);
      }
      const auto at = [&](double step) {
        NamedValues moved = w;
        for (std::size_t i = 0; i < direction.size(); ++i) moved[p.name][i] += step * direction[i];
        return loss(moved);
      };
      const double expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      EXPECT_NEAR(along, expected, bar * (top + 1e-4) * std::sqrt(size)) << p.name << " direction " << k;
    }
  }
}

void check_model(Context& ctx, const ModelConfig& c, const LoraConfig& lora) {
  SCOPED_TRACE(fmt::format("{} on {}, {} targets, rank {}", c.norm.method, name_of(ctx.device()), lora.targets.size(), lora.rank));
  const auto m = make_model(ctx, c, DType::f32, {}, lora);
  const Rows rows = draw_rows(c.vocab, 2);
  const Result got = gradients_of(ctx, *m, rows);
  const NamedValues w = weights_of(*m);
  const std::vector<float> constants = on_host(ctx, m->constants());
  ReferenceModel reference(c, {constants.begin(), constants.end()});
  reference.freeze(w);
  const double loss = reference.loss(effective(*m, w), rows);
  EXPECT_NEAR(got.loss, loss, 1e-5 * loss);
  EXPECT_GT(std::fabs(loss - reference.loss(w, rows)), 1e-4) << "the adapters must count";
  check_directions(*m, got, w, 1e-4, 5e-5, [&](const NamedValues& moved) { return reference.loss(effective(*m, moved), rows); });
}

TEST(LoraModel, EveryMethodWithAdaptersEverywhere) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) check_model(ctx, small_config(std::string(method.name), 2), some(all_projections()));
}

TEST(LoraModel, AnyTargetsRanksAndLayers) {
  for (Context& ctx : test::contexts())
    for (const char* method : {"bhyt", "rmsnorm"}) {
      const ModelConfig c = small_config(method, 3);
      check_model(ctx, c, some({P::q, P::v}));
      check_model(ctx, c, some({P::k}, 1));
      check_model(ctx, c, some({P::v, P::gate, P::down}, 16));  // more than some weights have
      check_model(ctx, c, some({P::o, P::up}, 5));
      LoraConfig middle = some({P::q, P::k, P::v, P::down});
      middle.layers = {1};
      check_model(ctx, c, middle);
      middle.layers = {0, 2};
      check_model(ctx, c, middle);
    }
}

TEST(LoraModel, NormsAreTrainedOnRequest) {
  for (Context& ctx : test::contexts())
    for (const Method& method : methods()) {
      LoraConfig lora = some({P::q, P::gate});
      lora.train_norms = true;
      check_model(ctx, small_config(std::string(method.name), 2), lora);
    }
}

TEST(LoraModel, NormsAloneAreTrainedWithRankZero) {
  Context& ctx = test::context_on(Device::cpu());
  const ModelConfig c = small_config("bhyt", 2);
  const auto whole = make_model(ctx, c), norms = make_model(ctx, c, DType::f32, {}, {.train_norms = true});
  const Rows rows = draw_rows(c.vocab, 2);
  const Result all = gradients_of(ctx, *whole, rows), got = gradients_of(ctx, *norms, rows);
  EXPECT_EQ(all.loss, got.loss);
  std::int64_t trained = 0;
  for (const Parameter& p : norms->parameters().list()) {
    EXPECT_EQ(p.frozen, p.shape.size() == 2) << p.name;
    if (p.frozen) continue;
    trained += p.size;
    EXPECT_TRUE(same_bits(got.of(p), all.of(whole->parameters().at(p.name)))) << p.name;
  }
  EXPECT_EQ(norms->parameters().trained(), trained);
}

// ---- what is frozen, and what is kept for it

TEST(LoraModel, OnlyAdaptersHaveAPlaceInArenas) {
  Context& ctx = test::context_on(Device::cpu());
  const ModelConfig c = small_config("bhyt", 2);
  const LoraConfig lora = some(all_projections());
  const Model m(ctx, c, DType::f32, {}, lora);
  const std::int64_t d = c.d, q = c.q_width(), kv = c.kv_width(), f = c.mlp;
  const std::int64_t in_layer = 3 * ((d + q) + 2 * (d + kv) + (q + d) + 2 * (d + f) + (f + d));
  EXPECT_EQ(m.parameters().trained(), 2 * in_layer);
  EXPECT_LT(m.parameters().arena_size(), 2 * in_layer + 2 * 14 * 128 + 1024);
  EXPECT_EQ(Parameters::planned(c, DType::f32, lora).arena, m.parameters().arena_size());
  EXPECT_EQ(Parameters::planned(c, DType::f32, lora).value_bytes, m.parameters().value_bytes());
  EXPECT_EQ(m.parameters().vectors_size(), 0) << "nothing needs to be zero before a step";
  const Gradients g(ctx, m.parameters());
  EXPECT_FALSE(g.weights.embedding || g.weights.head || g.weights.last.gamma || g.weights.layers[0].qkv || g.weights.layers[0].site1.gamma);
  EXPECT_EQ(g.weights.layers[1].adapters(Product::qkv).a.rows(), 9);
  for (const Parameter& p : m.parameters().list()) EXPECT_EQ(p.frozen, !p.adapter()) << p.name;
  for (const Recompute r : {Recompute::none, Recompute::norm, Recompute::swiglu, Recompute::block})
    for (const double dropout : {0.0, 0.1}) {
      LoraConfig with = lora;
      with.dropout = dropout;
      const Model model(ctx, c, DType::f32, {}, with);
      const TrainPass::Shape shape{.batch = 2, .seq = kSeq, .recompute = r};
      const MemoryUse use = TrainPass(ctx, model, shape).memory();
      EXPECT_EQ(use.activations + use.workspace, TrainPass::planned_bytes(c, DType::f32, ctx.device(), shape, with));
    }
}

TEST(LoraModel, LayersBelowTheLowestTrainedOneKeepNothing) {
  for (Context& ctx : test::contexts())
    for (const char* method : {"bhyt", "peri"})
      for (const Recompute r : {Recompute::none, Recompute::norm, Recompute::swiglu, Recompute::block}) {
        const ModelConfig c = small_config(method, 5);
        const Rows rows = draw_rows(c.vocab, 2);
        const TrainPass::Shape shape{.batch = 2, .seq = kSeq, .recompute = r};
        const auto planned = [&](const LoraConfig& lora) { return TrainPass::planned_bytes(c, DType::f32, ctx.device(), shape, lora); };
        const LoraConfig all = some(all_projections());
        LoraConfig top = all;
        top.layers = {3, 4};
        const auto whole = make_model(ctx, c, DType::f32, {}, all), upper = make_model(ctx, c, DType::f32, {}, top);
        for (const auto& m : {whole.get(), upper.get()}) m->parameters().initialize_adapters(3);  // B = 0: one model
        const Result expected = gradients_of(ctx, *whole, rows, {.recompute = r}), got = gradients_of(ctx, *upper, rows, {.recompute = r});
        EXPECT_EQ(got.loss, expected.loss);
        for (const Parameter& p : upper->parameters().list()) {
          if (p.role != Role::lora_b) continue;
          const std::vector<float> g = got.of(p);
          EXPECT_TRUE(std::any_of(g.begin(), g.end(), [](float x) { return x != 0; })) << p.name;
          EXPECT_TRUE(same_bits(g, expected.of(whole->parameters().at(p.name)))) << p.name << " recompute " << static_cast<int>(r);
        }
        const MemoryUse use = TrainPass(ctx, *upper, shape).memory();
        EXPECT_EQ(use.activations + use.workspace, planned(top));
        EXPECT_LT(planned(top), planned(all)) << "recompute " << static_cast<int>(r);
      }
}

TEST(LoraModel, InitialValues) {
  Context& ctx = test::context_on(Device::cpu());
  ModelConfig c = small_config("rmsnorm", 2);
  c.mlp = 400;
  const Model m(ctx, c, DType::f32, {}, some(all_projections(), 64)), other(ctx, c, DType::f32, {}, some({P::down}, 64));
  m.parameters().initialize(5);
  other.parameters().initialize_adapters(5);
  for (const Parameter& p : m.parameters().list()) {
    if (!p.adapter()) continue;
    const std::vector<float> v = m.parameters().read_value(p);
    if (p.role == Role::lora_b) {
      EXPECT_TRUE(std::all_of(v.begin(), v.end(), [](float x) { return x == 0; })) << p.name;
      continue;
    }
    const double bound = 1 / std::sqrt(static_cast<double>(p.shape[1])), n = static_cast<double>(v.size());
    double sum = 0, square = 0, top = 0;
    for (const float x : v) sum += x, square += static_cast<double>(x) * x, top = std::max(top, std::fabs(static_cast<double>(x)));
    EXPECT_LE(top, bound) << p.name;
    EXPECT_GT(top, 0.97 * bound) << p.name;
    EXPECT_NEAR(sum / n, 0, 5 * bound / std::sqrt(3 * n)) << p.name;
    EXPECT_NEAR(square / n, bound * bound / 3, 0.1 * bound * bound) << p.name;
    EXPECT_EQ(p.decays, true);
  }
  const std::string name = "model.layers.1.mlp.down_proj.lora_A.weight";
  EXPECT_TRUE(same_bits(m.parameters().read_value(m.parameters().at(name)), other.parameters().read_value(other.parameters().at(name))))
      << "drawn from the seed and the name alone";
  EXPECT_EQ(other.parameters().read_value(other.parameters().at("model.embed_tokens.weight"))[0], 0) << "the model's own stay";
}

TEST(LoraModel, WithoutBTheModelIsItself) {
  for (Context& ctx : test::contexts()) {
    const ModelConfig c = small_config("bhyt", 2);
    const auto plain = make_model(ctx, c), adapted = make_model(ctx, c, DType::f32, {}, some(all_projections()));
    adapted->parameters().initialize_adapters(3);
    const Rows rows = draw_rows(c.vocab, 2);
    const Result a = gradients_of(ctx, *plain, rows), b = gradients_of(ctx, *adapted, rows);
    EXPECT_EQ(a.loss, b.loss);
    for (const Parameter& p : adapted->parameters().list()) {
      if (!p.adapter()) continue;
      const std::vector<float> g = b.of(p);
      EXPECT_EQ(p.role == Role::lora_a, std::all_of(g.begin(), g.end(), [](float x) { return x == 0; })) << p.name;
    }
  }
}

// ---- the same bits, however it is computed

TEST(LoraModel, RecomputingAndAddingUp) {
  for (Context& ctx : test::contexts())
    for (const double dropout : {0.0, 0.3}) {
      const ModelConfig c = small_config("bhyt", 3);
      LoraConfig lora = some({P::q, P::v, P::o, P::gate, P::down});
      lora.dropout = dropout;
      lora.train_norms = true;
      const auto m = make_model(ctx, c, DType::f32, {}, lora);
      const Rows rows = draw_rows(c.vocab, 2);
      const auto run = [&](Recompute r) {
        TrainingStep step(ctx, *m, rows, {.recompute = r});
        step.dropout_seed = 19;
        step.fill_gradients(NAN);
        return step.run();
      };
      const Result expected = run(Recompute::none);
      for (const float g : expected.gradients) ASSERT_FALSE(std::isinf(g));
      for (const Recompute r : {Recompute::norm, Recompute::swiglu, Recompute::block}) {
        const Result got = run(r);
        EXPECT_EQ(got.loss, expected.loss);
        for (const Parameter& p : m->parameters().list())
          EXPECT_TRUE(p.frozen || same_bits(got.of(p), expected.of(p))) << p.name << " recompute " << static_cast<int>(r);
      }
      TrainingStep twice(ctx, *m, rows);
      twice.dropout_seed = 19;
      twice.run();
      const Result sum = twice.run(true);
      for (const Parameter& p : m->parameters().list()) {
        if (p.frozen) continue;
        const std::vector<float> one = expected.of(p), two = sum.of(p);
        for (std::size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(two[i], 2 * one[i], 1e-6 + 1e-5 * std::fabs(one[i])) << p.name;
      }
    }
}

std::vector<float> logits_of(Context& ctx, const Model& m, const Tokens& tokens, std::int64_t rows) {
  ScorePass pass(ctx, m, tokens.batch.batch, kSeq);
  pass.forward(tokens.batch);
  const OwnedTensor out(ctx, DType::f32, {rows, m.config().vocab});
  pass.logits(0, rows, out);
  return on_host(ctx, out);
}

TEST(LoraModel, TrainingScoringAndContinuingAgree) {
  for (Context& ctx : test::contexts())
    for (const char* method : {"bhyt", "peri"}) {
      const ModelConfig c = small_config(method, 2);
      LoraConfig lora = some({P::q, P::v, P::gate, P::up, P::down});
      lora.dropout = 0.5;  // nothing but training passes may see it
      const auto m = make_model(ctx, c, DType::f32, {}, lora);
      lora.dropout = 0;
      const auto sober = make_model(ctx, c, DType::f32, {}, lora);
      const Rows rows = draw_rows(c.vocab, 2);
      const Tokens tokens(ctx, rows);
      const OwnedTensor loss(ctx, DType::f32, {2});
      zero(ctx, loss);
      const Tensor first = Tensor(loss.t.data, DType::f32, ctx.device(), {1}),
                   second(loss.t.as<float>() + 1, DType::f32, ctx.device(), {1});
      TrainPass(ctx, *m, {.batch = 2, .seq = kSeq}).score(tokens.batch, {.loss = first});
      ScorePass(ctx, *m, 2, kSeq).score(tokens.batch, {.loss = second});
      const std::vector<float> scored = on_host(ctx, loss);
      EXPECT_EQ(scored[0], scored[1]);
      EXPECT_NEAR(scored[0] / (2 * kSeq), gradients_of(ctx, *sober, rows).loss, 1e-5);
      const std::vector<float> whole = logits_of(ctx, *m, tokens, 2 * kSeq);
      test::Decoder decoder(*m, kSeq);
      for (std::size_t t = 0; t < kSeq; ++t) {
        const std::vector<float> next = decoder.next({rows[0][t]});
        for (std::size_t v = 0; v < next.size(); ++v) ASSERT_NEAR(next[v], whole[t * next.size() + v], 2e-4) << method << " position " << t;
      }
    }
}

TEST(LoraModel, ASequenceIsContinuedAlikeBesideOthers) {
  Context& ctx = test::context_on(Device::cpu());
  for (const DType type : {DType::f32, DType::bf16}) {
    const ModelConfig c = small_config("bhyt", 2);
    const auto m = make_model(ctx, c, type, {}, some(all_projections(), 5));
    const std::vector<std::int32_t> one{3, 7, 1, 9}, other{5, 5, 2, 8, 11, 4, 1};
    test::Decoder alone(*m, 16);
    const std::vector<float> expected = alone.next(one);
    test::Sequences beside(ctx, *m, 2, 16, 16);
    const DecodePass::Result r = beside.run({{1, other}, {0, one}});
    const std::vector<float> both = on_host(ctx, r.logits);
    EXPECT_TRUE(same_bits({both.begin() + c.vocab, both.end()}, expected)) << name_of(type);
  }
}

// ---- dropout

TEST(LoraDropout, GradientsAreThoseOfTheLossWithThisMask) {
  for (Context& ctx : test::contexts()) {
    const ModelConfig c = small_config("bhyt", 2);
    LoraConfig lora = some(all_projections());
    lora.dropout = 0.4;
    const auto m = make_model(ctx, c, DType::f32, {}, lora);
    const Rows rows = draw_rows(c.vocab, 2);
    TrainingStep step(ctx, *m, rows);
    step.dropout_seed = 8;
    const Result got = step.run();
    EXPECT_TRUE(same_bits(got, step.run()));
    const NamedValues w = weights_of(*m);
    check_directions(*m, got, w, 4e-2, 2e-2, [&](const NamedValues& moved) {
      for (const Parameter& p : m->parameters().list()) {
        if (!p.adapter()) continue;
        const std::vector<double>& v = moved.at(p.name);
        m->parameters().write_value(p, std::vector<float>(v.begin(), v.end()).data());
      }
      return step.run().loss;
    });
  }
}

// With most of x left out, a column of A's gradient is zero where no token kept that element: the shadow of the mask.
TEST(LoraDropout, EveryProductOfEveryLayerHasItsOwnMask) {
  Context& ctx = test::context_on(Device::cpu());
  ModelConfig c = small_config("rmsnorm", 2);
  c.d = 24;
  LoraConfig lora = some(all_projections());
  lora.dropout = 0.97;
  const auto m = make_model(ctx, c, DType::f32, {}, lora);
  TrainingStep step(ctx, *m, draw_rows(c.vocab, 2));
  const Result got = step.run();
  const auto shadow = [&](int layer, const char* module) {
    const Parameter& p = m->parameters().at(fmt::format("model.layers.{}.{}.lora_A.weight", layer, module));
    const std::vector<float> g = got.of(p);
    std::string out;
    for (std::int64_t j = 0; j < p.shape[1]; ++j) out += g[static_cast<std::size_t>(j)] == 0 ? '.' : 'x';
    return out;
  };
  const std::string q = shadow(0, "self_attn.q_proj");
  EXPECT_NE(q.find('.'), q.npos);
  EXPECT_NE(q.find('x'), q.npos);
  EXPECT_EQ(shadow(0, "self_attn.k_proj"), q) << "one product, one mask";
  EXPECT_NE(shadow(0, "mlp.gate_proj"), q);
  EXPECT_NE(shadow(0, "self_attn.o_proj"), q);
  EXPECT_NE(shadow(1, "self_attn.q_proj"), q);
}

TEST(LoraDropout, MasksDifferBySeed) {
  Context& ctx = test::context_on(Device::cpu());
  const ModelConfig c = small_config("rmsnorm", 2);
  LoraConfig lora = some(all_projections());
  lora.dropout = 0.4;
  const auto m = make_model(ctx, c, DType::f32, {}, lora);
  TrainingStep step(ctx, *m, draw_rows(c.vocab, 2));
  step.dropout_seed = 1;
  const Result first = step.run();
  step.dropout_seed = 2;
  EXPECT_NE(first.loss, step.run().loss);
}

// ---- bf16, and a model that cannot be

TEST(LoraModel, Bf16IsNearFp32) {
  for (Context& ctx : test::contexts()) {
    const ModelConfig c = small_config("bhyt", 2);
    const LoraConfig lora = some(all_projections());
    const auto exact = make_model(test::context_on(Device::cpu()), c, DType::f32, {}, lora), m = make_model(ctx, c, DType::bf16, {}, lora);
    for (const Parameter& p : m->parameters().list()) {  // values that both hold
      const Parameter& same = exact->parameters().at(p.name);
      exact->parameters().write_value(same, m->parameters().read_value(p).data());
    }
    exact->refresh_constants();
    const Rows rows = draw_rows(c.vocab, 2);
    const Result a = gradients_of(test::context_on(Device::cpu()), *exact, rows), b = gradients_of(ctx, *m, rows);
    EXPECT_NEAR(a.loss, b.loss, 0.01 * a.loss);
    for (const Parameter& p : m->parameters().list()) {
      if (p.frozen) continue;
      const std::vector<float> want = a.of(exact->parameters().at(p.name)), got = b.of(p);
      double error = 0, size = 0;
      for (std::size_t i = 0; i < want.size(); ++i)
        error += std::pow(static_cast<double>(want[i]) - got[i], 2), size += std::pow(static_cast<double>(want[i]), 2);
      EXPECT_LT(std::sqrt(error), 0.06 * std::sqrt(size)) << p.name;
    }
  }
}

TEST(LoraModel, RefusesWhatCannotBe) {
  Context& ctx = test::context_on(Device::cpu());
  const ModelConfig c = small_config("rmsnorm", 2);
  const auto message = [&](const LoraConfig& lora) { return test::message_of([&] { Model(ctx, c, DType::f32, {}, lora); }); };
  EXPECT_TRUE(test::has(message({.rank = -1}), "lora.rank must be from 0"));
  EXPECT_TRUE(test::has(message({.rank = 2, .alpha = 0}), "lora.alpha"));
  EXPECT_TRUE(test::has(message({.rank = 2, .dropout = 1}), "lora.dropout"));
  EXPECT_TRUE(test::has(message({.rank = 2, .targets = {}}), "names no projection"));
  EXPECT_TRUE(test::has(message({.rank = 2, .targets = {P::v, P::q}}), "got v_proj before q_proj"));
  EXPECT_TRUE(test::has(message({.rank = 2, .targets = {P::q, P::q}}), "once"));
  EXPECT_TRUE(test::has(message({.rank = 2, .layers = {2}}), "lora.layers must be from 0 to 1, got 2"));
  EXPECT_TRUE(
      test::has(test::message_of([] { projection_named("lm_head"); }), "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"));
  EXPECT_EQ(projection_named("gate_proj"), P::gate);
  Model m(ctx, c, DType::f32, {}, {.rank = 2});
  EXPECT_TRUE(test::has(test::message_of([&] { m.repack({}); }), "adapters"));
}

// By hand: a block's matrices have 8·(16 + 8 + 3·12) = 480 elements, its attention 2·5·8 = 80 operations forward, the head 80 elements.
TEST(Lora, CountsTheOperationsThatAreMade) {
  const ModelConfig c{.d = 8, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 4, .mlp = 12, .vocab = 10};
  const TrainingFlops full = training_flops(c, 5, {});
  EXPECT_EQ(full.token, 2 * (6 * 480 + 3 * 80));
  EXPECT_EQ(full.scored, 6 * 80);
  EXPECT_EQ(full.sum(), flops_per_token(c, 5));
  // q_proj [8, 8] and down_proj [8, 12] of the second layer: no gradient of W, and no backward in the first layer.
  const TrainingFlops upper = training_flops(c, 5, {.rank = 3, .targets = {P::q, P::down}, .layers = {1}});
  EXPECT_EQ(upper.token, (2 * 480 + 80) + (4 * 480 + 3 * 80) + 6 * 3 * (8 + 8 + 12 + 8));
  EXPECT_EQ(upper.scored, 4 * 80);
  EXPECT_EQ(training_flops(c, 5, {.rank = 3, .targets = {P::q}}).token, 2 * (4 * 480 + 3 * 80 + 6 * 3 * 16));
  EXPECT_EQ(training_flops(c, 5, {.train_norms = true}).token, 2 * (4 * 480 + 3 * 80));  // norms alone
}

}  // namespace
}  // namespace bhyt::testing
