// The complete block and a two-layer model, for every method and option: loss against a naive double reference, every gradient against
// differences of that reference; and what must not change a bit: recomputation, threads, the size of what was prepared.
#include "model/model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "model/score_pass.h"
#include "tests/devices.h"
#include "tests/model/reference_model.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

std::vector<double> constants_of(const Model& m) {
  const std::vector<float> c = on_host(m.context(), m.constants());
  return {c.begin(), c.end()};
}

// Loss and every parameter's gradient, along the gradient itself, along a random direction and at single elements.
void check_gradients(const ModelConfig& c, Context& ctx) {
  SCOPED_TRACE(name_of(ctx.device()));
  const auto model = make_model(ctx, c);
  const Model& m = *model;
  const auto rows = draw_rows(c.vocab, 2);
  const Result got = gradients_of(ctx, m, rows);
  const NamedValues w = weights_of(m);
  ReferenceModel reference(c, constants_of(m));
  reference.freeze(w);
  double aux_free = 0;
  {
    ModelConfig plain = c;
    plain.norm.aux_loss = 0;  // the reported loss leaves the auxiliary term out
    ReferenceModel r(plain, constants_of(m));
    r.freeze(w);
    aux_free = r.loss(w, rows);
  }
  EXPECT_NEAR(got.loss, aux_free, 1e-5 * aux_free);
  reference.loss(w, rows);  // records what is held constant
  reference.freeze_exact(true);
  Rng rng(17);
  for (const Parameter& p : m.parameters().list()) {
    if (p.frozen) continue;
    const float* g = got.gradients.data() + p.offset;
    double top = 0;
    for (std::int64_t i = 0; i < p.size; ++i) top = std::max(top, static_cast<double>(std::fabs(g[i])));
    for (int k = 0; k < 3; ++k) {
      std::vector<double> direction(static_cast<std::size_t>(p.size), 0.0);
      if (k == 0)
        direction[rng.below(static_cast<std::uint64_t>(p.size))] = 1;
      else
        for (std::size_t i = 0; i < direction.size(); ++i) direction[i] = k == 1 && top > 0 ? g[i] / top : rng.normal();
      double along = 0, size = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) along += g[i] * direction[i], size += std::fabs(direction[i]);
      const double h = 1e-5;
      const auto at = [&](double step) {
        NamedValues moved = w;
        for (std::size_t i = 0; i < direction.size(); ++i) moved[p.name][i] += step * direction[i];
        return reference.loss(moved, rows);
      };
      const double expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      EXPECT_NEAR(along, expected, 5e-5 * (top + 1e-4) * std::sqrt(size) + 1e-6 * std::fabs(expected)) << p.name << " direction " << k;
    }
  }
}

void check_gradients(const ModelConfig& c) {
  for (Context& ctx : test::contexts()) check_gradients(c, ctx);
}

using Change = std::function<void(ModelConfig&)>;
struct Option {
  const char* name;
  const char* method;
  Change change;
};

std::vector<Option> options() {
  return {
      {"plain", "bhyt", [](ModelConfig&) {}},
      {"kappa grow, last", "bhyt",
       [](ModelConfig& c) { c.norm.kappa_schedule = KappaSchedule::grow, c.norm.lambda_last = 1.5, c.norm.kappa = 3; }},
      {"kappa decay, unit gain", "bhyt", [](ModelConfig& c) { c.norm.kappa_schedule = KappaSchedule::decay, c.norm.gain = Gain::unit; }},
      {"mild_grow, depth gain", "bhyt",
       [](ModelConfig& c) { c.norm.kappa_schedule = KappaSchedule::mild_grow, c.norm.depth_gain = Depth::inv_sqrt; }},
      {"fixed unit gain, depth factor", "bhyt",
       [](ModelConfig& c) {
         c.norm.gain = Gain::fixed_unit, c.norm.depth_factor = Depth::inv_sqrt, c.norm.gamma_in_constant = true;
         c.norm.kappa_schedule = KappaSchedule::mild_grow, c.norm.lambda_last = 1.5, c.norm.kappa = 4;
       }},
      {"depth factor and beta", "layernorm", [](ModelConfig& c) { c.norm.depth_factor = Depth::inv_sqrt; }},
      {"depth factor and gate", "seednorm", [](ModelConfig& c) { c.norm.depth_factor = Depth::inv_sqrt; }},
      {"exact first", "bhyt", [](ModelConfig& c) { c.norm.exact_first = 1; }},
      {"exact list", "bhyt", [](ModelConfig& c) { c.norm.exact_list = {2}; }},
      {"beta", "bhyt", [](ModelConfig& c) { c.norm.correction = Correction::beta; }},
      {"eta, gamma in C", "bhyt", [](ModelConfig& c) { c.norm.correction = Correction::eta, c.norm.gamma_in_constant = true; }},
      {"residual aware", "bhyt",
       [](ModelConfig& c) {
         c.norm.correction = Correction::residual_aware, c.norm.calibration = {1.2, 0.8};
       }},
      {"stop", "bhyt", [](ModelConfig& c) { c.norm.stop_gradient = true; }},
      {"aux", "bhyt", [](ModelConfig& c) { c.norm.aux_loss = 0.3, c.norm.correction = Correction::residual_aware; }},
      {"aux and stop", "bhyt",
       [](ModelConfig& c) { c.norm.aux_loss = 0.3, c.norm.stop_gradient = true, c.norm.correction = Correction::beta; }},
      {"range", "bhyt", [](ModelConfig& c) { c.norm.first_layer = 2, c.norm.last_layer = 2, c.norm.elsewhere = "peri"; }},
      {"approximated elsewhere", "rmsnorm",
       [](ModelConfig& c) {
         c.norm.first_layer = 1, c.norm.last_layer = 1, c.norm.elsewhere = "bhyt", c.norm.correction = Correction::beta;
         c.norm.aux_loss = 0.3;
       }},
      {"frozen lambda", "bhyt", [](ModelConfig& c) { c.norm.learn_lambda = false; }},
      {"learned embedding scale", "bhyt", [](ModelConfig& c) { c.embedding_scale = EmbeddingScaleKind::learned, c.init_std = 0.1; }},
      {"embedding times root d", "rmsnorm", [](ModelConfig& c) { c.embedding_scale = EmbeddingScaleKind::sqrt_d, c.init_std = 0.1; }},
      {"eta", "rmsnorm_approx", [](ModelConfig& c) { c.norm.correction = Correction::eta; }},
      {"one kv head", "bhyt_exact", [](ModelConfig& c) { c.kv_heads = 1; }},
      {"all kv heads", "lns", [](ModelConfig& c) { c.kv_heads = 4; }},
  };
}

TEST(Model, GradientsOfABlockForEveryMethod) {
  for (const Method& m : methods()) {
    SCOPED_TRACE(std::string(m.name));
    check_gradients(small_config(std::string(m.name), 1));
  }
}

TEST(Model, GradientsOfTwoLayersForEveryMethod) {
  for (const Method& m : methods()) {
    SCOPED_TRACE(std::string(m.name));
    check_gradients(small_config(std::string(m.name), 2));
  }
}

TEST(Model, GradientsForEveryOption) {
  for (const Option& o : options()) {
    SCOPED_TRACE(fmt::format("{} {}", o.method, o.name));
    ModelConfig c = small_config(o.method, 2);
    o.change(c);
    check_gradients(c);
  }
}

void check_recompute(const std::string& method, Device device, DType type) {
  SCOPED_TRACE(fmt::format("{} {} {}", method, name_of(device), name_of(type)));
  Context &ctx = test::context_on(device), &three = test::context_on(device, 3);
  const auto m = make_model(ctx, small_config(method, 2), type), on_three = make_model(three, m->config(), type);
  const auto rows = draw_rows(23, 3);
  const Result plain = gradients_of(ctx, *m, rows);
  EXPECT_TRUE(same_bits(gradients_of(ctx, *m, rows), plain)) << "again";
  for (const Recompute r : {Recompute::norm, Recompute::swiglu, Recompute::block})
    EXPECT_TRUE(same_bits(gradients_of(ctx, *m, rows, {.recompute = r}), plain)) << "recompute " << static_cast<int>(r);
  EXPECT_TRUE(same_bits(gradients_of(three, *on_three, rows), plain)) << "threads";
}

TEST(Model, RecomputeAndThreadsChangeNoBit) {
  for (const Device device : test::devices())
    for (const char* method : {"bhyt", "peri", "seednorm"})
      for (const DType type : {DType::f32, DType::bf16}) check_recompute(method, device, type);
}

TEST(Model, EveryRecomputeNeedsLessMemory) {
  Context& ctx = test::context_on(Device::cpu());
  const auto m = make_model(ctx, small_config("bhyt", 2));
  std::size_t before = SIZE_MAX;
  for (const Recompute r : {Recompute::none, Recompute::norm, Recompute::swiglu, Recompute::block}) {
    const TrainPass::Shape shape{.batch = 64, .seq = kSeq, .recompute = r};
    const MemoryUse use = TrainPass(ctx, *m, shape).memory();
    EXPECT_LT(use.activations, before);
    EXPECT_EQ(use.activations + use.workspace, TrainPass::planned_bytes(m->config(), m->type(), m->device(), shape));
    before = use.activations;
  }
}

TEST(Model, Bf16StaysNearFp32) {
  Context& cpu = test::context_on(Device::cpu());
  for (const Method& method : methods()) {
    const ModelConfig c = small_config(std::string(method.name), 2);
    const auto full = make_model(cpu, c);
    const auto rows = draw_rows(c.vocab, 2);
    for (Context& ctx : test::contexts()) {
      const auto half = make_model(ctx, c, DType::bf16);
      EXPECT_NEAR(gradients_of(cpu, *full, rows).loss, gradients_of(ctx, *half, rows).loss, 0.05)
          << method.name << " " << name_of(ctx.device());
    }
  }
}

TEST(Model, ScoreEqualsTheTrainingLoss) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const auto rows = draw_rows(23, 3);
    const Tokens t(ctx, rows);
    const OwnedTensor loss(ctx, DType::f32, {1});
    zero(ctx, loss);
    ScorePass(ctx, *m, 3, kSeq).score(t.batch, {.loss = loss, .losses = {}, .greedy = {}});
    EXPECT_NEAR(on_host(ctx, loss)[0] / (3.0 * kSeq), gradients_of(ctx, *m, rows).loss, 1e-6) << name_of(ctx.device());
  }
}

// Smaller and larger than what a pass was made for.
TEST(Model, BatchesOfOtherSizesGiveTheirOwnBits) {
  for (Context& ctx : test::contexts()) {
    const auto m = make_model(ctx, small_config("bhyt", 2));
    const auto rows = draw_rows(23, 2);
    const Result fitting = gradients_of(ctx, *m, rows);
    EXPECT_TRUE(same_bits(gradients_of(ctx, *m, rows, {.batch = 5}), fitting)) << name_of(ctx.device());
    const Tokens t(ctx, rows);
    const Gradients g(ctx, m->parameters());
    const OwnedTensor loss(ctx, DType::f32, {1});
    zero(ctx, loss);
    TrainPass small(ctx, *m, {.batch = 1, .seq = 2});
    small.run(t.batch, {.gradients = g, .loss = loss, .scale = 1.0f / (2 * kSeq), .tokens_in_step = 2.0 * kSeq});
    EXPECT_TRUE(same_bits(on_host(ctx, g.arena), fitting.gradients)) << name_of(ctx.device());
  }
}

TEST(Parameters, PresetsCountToTheDigit) {
  const std::map<std::string, std::int64_t> expected{{"llama-374m", 374637568}, {"llama-1b", 1235814400}, {"llama-3b", 3212749824}};
  for (const auto& [name, count] : expected) {
    ModelConfig c;
    apply_preset(c, name);
    c.norm.method = "rmsnorm";
    std::int64_t n = 0;
    for (const Parameter& p : parameter_list(c)) n += p.size;
    EXPECT_EQ(n, count) << name;
  }
}

TEST(Parameters, InitialValuesDependOnSeedAndNameOnly) {
  const ModelConfig c = small_config("bhyt", 2);
  const Parameters a(test::context_on(Device::cpu(), 1), c, DType::f32), b(test::context_on(Device::cpu(), 3), c, DType::bf16);
  a.initialize(4);
  b.initialize(4);
  double sum = 0, square = 0, n = 0;
  for (std::size_t i = 0; i < a.list().size(); ++i) {
    const auto full = a.read_value(a.list()[i]), half = b.read_value(b.list()[i]);
    for (std::size_t j = 0; j < full.size(); ++j) EXPECT_NEAR(full[j], half[j], std::fabs(full[j]) * 0x1p-8);
    if (a.list()[i].init_std > 0)
      for (float v : full) sum += v, square += v * v, ++n;
  }
  EXPECT_NEAR(sum / n, 0, 5 * 0.3 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(square / n), 0.3, 0.02);
}

TEST(Parameters, DecayAndFrozenGroups) {
  const auto group = [](const std::string& method, const std::string& name) {
    return Parameters(test::context_on(Device::cpu()), small_config(method, 1), DType::f32).at(name);
  };
  EXPECT_TRUE(group("bhyt", "model.embed_tokens.weight").decays);
  EXPECT_TRUE(group("bhyt", "model.layers.0.mlp.down_proj.weight").decays);
  EXPECT_FALSE(group("bhyt", "model.layers.0.input_layernorm.weight").decays);
  EXPECT_FALSE(group("bhyt", "model.layers.0.input_layernorm.lam").decays);
  EXPECT_TRUE(group("seednorm", "model.norm.gate").decays);
  EXPECT_TRUE(group("seednorm", "model.norm.direction").decays);
  EXPECT_FALSE(group("derf", "model.norm.shift").decays);
}

}  // namespace
}  // namespace bhyt::testing
