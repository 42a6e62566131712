// The complete block and a two-layer model, for every method and option: loss against a naive double reference, every gradient against
// differences of that reference; and what must not change a bit: recomputation, threads, caching.
#include "model/model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "core/error.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "tests/devices.h"
#include "tests/model/reference_model.h"

namespace bhyt::testing {
namespace {

constexpr int kSeq = 9;

ModelConfig small_config(const std::string& method, std::int64_t layers) {
  ModelConfig c;
  c.d = 12, c.layers = layers, c.heads = 4, c.kv_heads = 2, c.head_dim = 6, c.mlp = 10, c.vocab = 23;
  c.tied = layers % 2 == 0;
  c.rope_theta = 100;
  c.init_std = 0.3;
  c.norm.method = method;
  c.norm.seq_len = kSeq;
  return c;
}

std::vector<std::vector<int>> draw_rows(std::int64_t vocab, int rows) {
  Rng rng(3);
  std::vector<std::vector<int>> out(static_cast<std::size_t>(rows), std::vector<int>(kSeq + 1));
  for (auto& r : out)
    for (int& t : r) t = static_cast<int>(rng.below(static_cast<std::uint64_t>(vocab)));
  return out;
}

// Tokens and targets of some rows on the model's device.
struct Tokens {
  OwnedTensor tokens, targets;
  Batch batch;
  Tokens(const std::vector<std::vector<int>>& rows, Device device)
      : tokens(device, DType::i32, {static_cast<std::int64_t>(rows.size()), kSeq}),
        targets(device, DType::i32, {static_cast<std::int64_t>(rows.size()), kSeq}) {
    std::vector<std::int32_t> in, out;
    for (const auto& r : rows) in.insert(in.end(), r.begin(), r.end() - 1), out.insert(out.end(), r.begin() + 1, r.end());
    device_copy(device, tokens.t.data, Device::cpu(), in.data(), tokens.t.bytes());
    device_copy(device, targets.t.data, Device::cpu(), out.data(), targets.t.bytes());
    batch = {.batch = static_cast<std::int64_t>(rows.size()), .seq = kSeq, .tokens = tokens, .targets = targets};
  }
};

struct Result {
  double loss = 0;
  std::vector<float> gradients;
};

// With `overwrite` the gradients hold garbage before, which must not show.
Result run(Model& m, const std::vector<std::vector<int>>& rows, bool overwrite = false) {
  const Tokens t(rows, m.device());
  OwnedTensor g(m.device(), DType::f32, {m.parameters().arena_size()}), loss(m.device(), DType::f32, {1});
  zero(g);
  if (overwrite) {
    const std::vector<float> garbage(static_cast<std::size_t>(g.t.size()), NAN);
    device_copy(m.device(), g.t.data, Device::cpu(), garbage.data(), g.t.bytes());
  }
  zero(loss);
  const double n = static_cast<double>(rows.size() * kSeq);
  m.forward_backward(
      t.batch,
      {.gradients = g, .loss = loss, .scale = static_cast<float>(1 / n), .tokens_in_step = n, .with_aux = true, .accumulate = !overwrite});
  Result r;
  r.gradients.resize(static_cast<std::size_t>(g.t.size()));
  float sum = 0;
  device_copy(Device::cpu(), r.gradients.data(), m.device(), g.t.data, g.t.bytes());
  device_copy(Device::cpu(), &sum, m.device(), loss.t.data, 4);
  r.loss = sum / n;
  return r;
}

// Initial values, then everything that starts at a constant is moved off it, so that no gradient is tested at a special point.
Model make_model(const ModelConfig& c, Device device = Device::cpu(), DType type = DType::f32) {
  Model m(c, device, type);
  m.parameters().initialize(1);
  Rng rng(9);
  for (const Parameter& p : m.parameters().list()) {
    if (p.init_std > 0) continue;
    auto v = m.parameters().read_value(p);
    for (float& e : v) e += static_cast<float>(0.1 * rng.normal());
    m.parameters().write_value(p, v.data());
  }
  m.refresh_constants();
  return m;
}

Weights weights_of(const Model& m) {
  Weights w;
  for (const Parameter& p : m.parameters().list()) {
    const auto v = m.parameters().read_value(p);
    w[p.name].assign(v.begin(), v.end());
  }
  return w;
}

std::vector<double> constants_of(const Model& m) {
  std::vector<float> c(static_cast<std::size_t>(m.config().layers));
  device_copy(Device::cpu(), c.data(), m.device(), m.constants().data, c.size() * 4);
  return {c.begin(), c.end()};
}

// Loss and every parameter's gradient, along the gradient itself, along a random direction and at single elements.
void check_gradients(const ModelConfig& c, Device device) {
  SCOPED_TRACE(name_of(device));
  Model m = make_model(c, device);
  const auto rows = draw_rows(c.vocab, 2);
  const Result got = run(m, rows);
  const Weights w = weights_of(m);
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
        Weights moved = w;
        for (std::size_t i = 0; i < direction.size(); ++i) moved[p.name][i] += step * direction[i];
        return reference.loss(moved, rows);
      };
      const double expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      EXPECT_NEAR(along, expected, 5e-5 * (top + 1e-4) * std::sqrt(size) + 1e-6 * std::fabs(expected)) << p.name << " direction " << k;
    }
  }
}

void check_gradients(const ModelConfig& c) {
  for (const Device device : test::devices()) check_gradients(c, device);
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
  Model m = make_model(small_config(method, 2), device, type);
  const auto rows = draw_rows(23, 3);
  m.prepare(3, kSeq, true);
  const Result plain = run(m, rows);
  const auto expect_same = [&](const std::string& what) {
    const Result again = run(m, rows);
    EXPECT_EQ(plain.loss, again.loss) << what;
    EXPECT_EQ(0, std::memcmp(plain.gradients.data(), again.gradients.data(), plain.gradients.size() * 4)) << what;
  };
  expect_same("again");
  for (const Recompute r : {Recompute::norm, Recompute::swiglu, Recompute::block}) {
    m.prepare(3, kSeq, true, r);
    expect_same(fmt::format("recompute {}", static_cast<int>(r)));
  }
  set_num_threads(3);
  m.prepare(3, kSeq, true);
  expect_same("threads");
  set_num_threads(0);
}

TEST(Model, RecomputeAndThreadsChangeNoBit) {
  for (const Device device : test::devices())
    for (const char* method : {"bhyt", "peri", "seednorm"})
      for (const DType type : {DType::f32, DType::bf16}) check_recompute(method, device, type);
}

TEST(Model, GradientsAreAddedToOrOverwritten) {
  for (const Device device : test::devices())
    for (const Method& method : methods())
      for (const std::int64_t layers : {1, 2}) {  // head and embedding apart, and one
        Model m = make_model(small_config(std::string(method.name), layers), device);
        const auto rows = draw_rows(m.config().vocab, 2);
        const Result added = run(m, rows), written = run(m, rows, true);
        for (const Parameter& p : m.parameters().list())
          for (std::int64_t i = p.offset; i < p.offset + p.size; ++i) {
            const auto at = static_cast<std::size_t>(i);
            ASSERT_NEAR(added.gradients[at], written.gradients[at], 1e-6) << method.name << " " << p.name;
          }
      }
}

TEST(Model, EveryRecomputeNeedsLessMemory) {
  Model m = make_model(small_config("bhyt", 2));
  std::size_t before = SIZE_MAX;
  for (const Recompute r : {Recompute::none, Recompute::norm, Recompute::swiglu, Recompute::block}) {
    const std::size_t planned = m.planned_bytes(64, kSeq, r);
    m.prepare(64, kSeq, true, r);
    EXPECT_LT(m.memory().activations, before);
    EXPECT_EQ(m.memory().activations + m.memory().workspace, planned);
    before = m.memory().activations;
  }
}

TEST(Model, Bf16StaysNearFp32) {
  for (const Method& method : methods()) {
    const ModelConfig c = small_config(std::string(method.name), 2);
    Model full = make_model(c);
    const auto rows = draw_rows(c.vocab, 2);
    for (const Device device : test::devices()) {
      Model half = make_model(c, device, DType::bf16);
      EXPECT_NEAR(run(full, rows).loss, run(half, rows).loss, 0.05) << method.name << " " << name_of(device);
    }
  }
}

void check_decoding(const std::string& method, Device device) {
  SCOPED_TRACE(fmt::format("{} {}", method, name_of(device)));
  Model m = make_model(small_config(method, 2), device);
  const auto rows = draw_rows(23, 1);
  const Tokens t(rows, m.device());
  m.forward(t.batch);
  const OwnedTensor all(m.device(), DType::f32, {kSeq, 23}), host(Device::cpu(), DType::f32, {kSeq, 23});
  m.logits(0, kSeq, all);
  copy(all, host);
  std::vector<std::int32_t> ids(rows[0].begin(), rows[0].end());
  for (const std::int64_t prompt : {1, 4}) {
    const auto cache = m.make_cache(kSeq);
    std::vector<float> logits;
    for (std::int64_t at = 0; at < kSeq;) {
      const std::int64_t n = at == 0 ? prompt : 1;
      m.decode(*cache, ids.data() + at, n, logits);
      at += n;
      for (std::int64_t v = 0; v < 23; ++v)
        EXPECT_NEAR(logits[static_cast<std::size_t>(v)], host.t.as<float>()[(at - 1) * 23 + v], 2e-5) << "position " << at - 1;
    }
    EXPECT_THROW(m.decode(*cache, ids.data(), 1, logits), Error);
  }
}

TEST(Model, DecodingEqualsTheForward) {
  for (const Device device : test::devices())
    for (const Method& method : methods()) check_decoding(std::string(method.name), device);
}

TEST(Model, ScoreEqualsTheTrainingLoss) {
  for (const Device device : test::devices()) {
    Model m = make_model(small_config("bhyt", 2), device);
    const auto rows = draw_rows(23, 3);
    const Tokens t(rows, m.device());
    const OwnedTensor loss(m.device(), DType::f32, {1}), host(Device::cpu(), DType::f32, {1});
    zero(loss);
    m.score(t.batch, {.loss = loss});
    copy(loss, host);
    EXPECT_NEAR(*host.t.as<float>() / (3.0 * kSeq), run(m, rows).loss, 1e-6) << name_of(device);
  }
}

TEST(Model, ASmallerBatchFitsWhatWasPrepared) {
  for (const Device device : test::devices()) {
    Model m = make_model(small_config("bhyt", 2), device);
    m.prepare(5, kSeq, true);
    const auto rows = draw_rows(23, 2);
    const Result inside = run(m, rows);
    Model other = make_model(small_config("bhyt", 2), device);
    EXPECT_EQ(inside.loss, run(other, rows).loss) << name_of(device);
  }
}

TEST(Model, ObserverSeesEveryBlock) {
  Model m = make_model(small_config("bhyt", 2));
  std::vector<std::string> seen;
  m.set_observer(
      [&](std::string_view what, std::int64_t layer, const Tensor& x) { seen.push_back(fmt::format("{} {} {}", what, layer, x.rows())); });
  m.forward(Tokens(draw_rows(23, 1), m.device()).batch);
  EXPECT_EQ(seen, (std::vector<std::string>{"embedding 0 9", "block 1 9", "block 2 9"}));
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
  Parameters a(c, Device::cpu(), DType::f32), b(c, Device::cpu(), DType::bf16);
  a.initialize(4);
  set_num_threads(3);
  b.initialize(4);
  set_num_threads(0);
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
    return Parameters(small_config(method, 1), Device::cpu(), DType::f32).at(name);
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
