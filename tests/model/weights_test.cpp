// Where parameters lie: values and arenas, the structure they are bound to, what a backward adds to and what it writes; and parameters
// that are not trained.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "model/parameters.h"
#include "tests/devices.h"
#include "tests/model/helpers.h"
#include "tests/model/small_model.h"

namespace bhyt::testing {
namespace {

bool ends_with(const std::string& name, const std::string& end) { return name.size() >= end.size() && name.ends_with(end); }

Tensor part_of_site(const SiteWeights& s, const std::string& name) {
  if (ends_with(name, ".weight")) return s.gamma;
  if (ends_with(name, ".bias")) return s.beta;
  if (ends_with(name, ".lam") || ends_with(name, ".alpha")) return s.scale;
  if (ends_with(name, ".shift")) return s.shift;
  if (ends_with(name, ".gate")) return s.gate;
  return ends_with(name, ".direction") ? s.direction : Tensor{};
}

Tensor part_of_layer(const LayerWeights& w, const std::string& name, const ModelConfig& c) {
  const std::int64_t q = c.q_width(), kv = c.kv_width();
  const auto rows = [](const Tensor& t, std::int64_t first, std::int64_t n) { return t ? t.row_slice(first, n) : Tensor{}; };
  if (name.find("q_proj") != std::string::npos) return rows(w.qkv, 0, q);
  if (name.find("k_proj") != std::string::npos) return rows(w.qkv, q, kv);
  if (name.find("v_proj") != std::string::npos) return rows(w.qkv, q + kv, kv);
  if (name.find("o_proj") != std::string::npos) return w.o;
  if (name.find("gate_proj") != std::string::npos) return rows(w.gate_up, 0, c.mlp);
  if (name.find("up_proj") != std::string::npos) return rows(w.gate_up, c.mlp, c.mlp);
  if (name.find("down_proj") != std::string::npos) return w.down;
  if (name.find("input_layernorm") != std::string::npos) return part_of_site(w.site1, name);
  if (name.find("post_attention_layernorm") != std::string::npos) return part_of_site(w.site2, name);
  if (name.find("attn_out_norm") != std::string::npos) return part_of_site(w.out1, name);
  if (name.find("mlp_out_norm") != std::string::npos) return part_of_site(w.out2, name);
  return ends_with(name, "var_eta") || ends_with(name, "var_cross_beta") ? w.ms_correction : w.constant_correction;
}

// A parameter's place in the structure, by its name alone.
Tensor place_of(const Weights& w, const std::string& name, const ModelConfig& c) {
  if (name == "model.embed_tokens.weight") return w.embedding;
  if (name == "model.shared_scale") return w.embedding_scale;
  if (name == "lm_head.weight") return w.head;
  if (name.rfind("model.norm.", 0) == 0) return part_of_site(w.last, name);
  const auto layer = static_cast<std::size_t>(std::stoi(name.substr(std::string("model.layers.").size())));
  return part_of_layer(w.layers.at(layer), name, c);
}

// Every method with one and two layers (head apart, head tied), and what options add.
std::vector<ModelConfig> configs() {
  std::vector<ModelConfig> all;
  for (const Method& m : methods())
    for (const std::int64_t layers : {1, 2}) all.push_back(small_config(std::string(m.name), layers));
  for (const Correction correction : {Correction::beta, Correction::eta, Correction::residual_aware}) {
    all.push_back(small_config("bhyt", 3));
    all.back().norm.correction = correction;
    all.back().norm.learn_lambda = correction != Correction::eta;
    all.back().embedding_scale = EmbeddingScaleKind::learned;
  }
  return all;
}

std::string describe(const ModelConfig& c) { return fmt::format("{}, {} layers", c.norm.method, c.layers); }

void expect_same_view(const Tensor& a, const Tensor& b, const std::string& what) {
  EXPECT_EQ(a.data, b.data) << what;
  EXPECT_EQ(a.rows(), b.rows()) << what;
  EXPECT_EQ(a.cols(), b.cols()) << what;
  EXPECT_TRUE(!a || a.contiguous()) << what;
  EXPECT_EQ(a.dtype, b.dtype) << what;
}

TEST(Weights, TheStructureAndTheListAreTheSameMemory) {
  Context& ctx = test::context_on(Device::cpu());
  for (const ModelConfig& c : configs())
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(describe(c));
      const Parameters parameters(ctx, c, type);
      const OwnedTensor arena(ctx, DType::f32, {parameters.arena_size()});
      const Weights values = parameters.values(), bound = parameters.bind(arena);
      for (const Parameter& p : parameters.list()) {
        expect_same_view(place_of(values, p.name, c), p.value, p.name + "'s value");
        expect_same_view(place_of(bound, p.name, c), parameters.in_arena(arena, p), p.name + " in an arena");
        EXPECT_EQ(p.value.dtype, p.shape.size() == 2 ? type : DType::f32) << p.name;
        EXPECT_EQ(p.value.size(), p.size) << p.name;
      }
      if (c.tied) {
        EXPECT_EQ(values.head.data, values.embedding.data);
        EXPECT_EQ(bound.head.data, bound.embedding.data);
      }
      EXPECT_THROW(parameters.bind(OwnedTensor(ctx, DType::f32, {parameters.arena_size() + 1})), Error);
    }
}

// Arenas hold vectors and scalars first, then matrices, each in the order of the list; values never overlap.
TEST(Weights, MemoryHasTheListsOrder) {
  Context& ctx = test::context_on(Device::cpu());
  for (const ModelConfig& c : configs()) {
    SCOPED_TRACE(describe(c));
    const Parameters parameters(ctx, c, DType::bf16);
    std::int64_t end = 0;
    const char* value_end = nullptr;
    for (const bool matrices : {false, true}) {
      std::int64_t layer = 0;
      for (const Parameter& p : parameters.list()) {
        EXPECT_GE(p.layer, layer) << p.name;
        layer = p.layer;
        if ((p.shape.size() == 2) != matrices) continue;
        EXPECT_GE(p.value.as<char>(), value_end) << p.name;
        value_end = p.value.as<char>() + p.value.bytes();
        if (p.frozen) continue;
        EXPECT_EQ(p.offset, p.joined ? end : (end + 127) / 128 * 128) << p.name;
        end = p.offset + p.size;
      }
      EXPECT_EQ(layer, c.layers + 1);
      if (!matrices) {
        EXPECT_EQ(parameters.vectors_size(), (end + 127) / 128 * 128);
      }
    }
    EXPECT_GE(parameters.arena_size(), end);
    EXPECT_EQ(parameters.arena_size() % 1024, 0);
    EXPECT_LT(parameters.arena_size() - end, 1024);
  }
}

// Every matrix that is trained lies in its layer's section, at the same place in arenas and values; sections can be cut into shards.
TEST(Weights, SectionsAreOneStretchOfArenasAndValues) {
  Context& ctx = test::context_on(Device::cpu());
  for (const ModelConfig& c : configs())
    for (const DType type : {DType::f32, DType::bf16})
      for (const std::int64_t shards : {1, 3, 4}) {
        SCOPED_TRACE(fmt::format("{}, {} shards", describe(c), shards));
        const Parameters parameters(ctx, c, type, {}, {}, {}, shards);
        std::int64_t end = parameters.vectors_size(), inside = 0;
        const char* value_end = nullptr;
        for (const Parameters::Section& s : parameters.sections()) {
          EXPECT_EQ(s.offset, end);
          EXPECT_EQ(s.size % (shards * 128), 0);
          EXPECT_GE(s.values.as<char>(), value_end);
          end = s.offset + s.size;
          value_end = s.values.as<char>() + s.values.bytes();
          for (const Parameter& p : parameters.list()) {
            if (p.frozen || p.shape.size() < 2 || p.layer != s.layer) continue;
            ++inside;
            EXPECT_LE(p.offset + p.size, end) << p.name;
            EXPECT_EQ(p.value.as<char>() - s.values.as<char>(), (p.offset - s.offset) * static_cast<std::int64_t>(size_of(type))) << p.name;
          }
        }
        EXPECT_EQ(inside, std::count_if(parameters.list().begin(), parameters.list().end(),
                                        [](const Parameter& p) { return !p.frozen && p.shape.size() == 2; }));
        const Parameters::Sizes planned = Parameters::planned(c, type, {}, shards);
        EXPECT_EQ(planned.arena, parameters.arena_size());
        EXPECT_EQ(planned.value_bytes, parameters.value_bytes());
        EXPECT_GE(parameters.arena_size(), end);
      }
}

// What the arena held before does not show without `accumulate`; with it the gradients are added to what is there.
TEST(Weights, GradientsAreWrittenOrAddedTo) {
  for (Context& ctx : test::contexts())
    for (const ModelConfig& c : configs()) {
      SCOPED_TRACE(describe(c) + " on " + name_of(ctx.device()));
      const auto m = make_model(ctx, c);
      TrainingStep step(ctx, *m, draw_rows(c.vocab, 2));
      const Result clean = step.run();
      step.fill_gradients(NAN);
      const Result written = step.run();
      step.fill_gradients(1);
      const Result added = step.run(true);
      EXPECT_EQ(clean.loss, written.loss);
      for (const Parameter& p : m->parameters().list()) {
        if (p.frozen) continue;
        const std::vector<float> a = clean.of(p), b = written.of(p), plus_one = added.of(p);
        EXPECT_TRUE(same_bits(a, b)) << p.name;
        for (std::size_t i = 0; i < a.size(); ++i) {
          ASSERT_TRUE(std::isfinite(b[i])) << p.name;
          ASSERT_NEAR(plus_one[i] - 1, a[i], 1e-6 * std::max(1.0f, std::fabs(a[i]))) << p.name;
        }
      }
    }
}

// ---- frozen parameters

struct Freezing {
  const char* name;
  Frozen frozen;
};
std::vector<Freezing> freezings() {
  const auto has = [](std::string part) { return [part](const Parameter& p) { return p.name.find(part) != std::string::npos; }; };
  return {{"norms", [](const Parameter& p) { return p.site != Site::none; }},
          {"gains", [](const Parameter& p) { return p.role == Role::gamma; }},
          {"all but norms", [](const Parameter& p) { return p.site == Site::none; }},
          {"embedding", has("embed_tokens")},
          {"embedding's scale", has("shared_scale")},
          {"head", has("lm_head")},
          {"q, k and v of a layer",
           [](const Parameter& p) { return p.layer == 1 && (p.role == Role::q || p.joined) && p.role != Role::up_projection; }},
          {"gate and up", [](const Parameter& p) { return p.role == Role::gate_projection || p.role == Role::up_projection; }},
          {"down and o", [](const Parameter& p) { return p.role == Role::down || p.role == Role::o; }},
          {"scalars", [](const Parameter& p) { return p.size == 1; }},
          {"the first layer", [](const Parameter& p) { return p.layer == 1; }},
          {"all", [](const Parameter&) { return true; }}};
}

// Gradients in the middle of a larger piece of memory, which must stay as it was around them.
struct Fenced {
  static constexpr std::int64_t kFence = 4096;
  OwnedTensor memory;
  Gradients gradients;
  Fenced(Context& ctx, const Parameters& p) : memory(ctx, DType::f32, {p.arena_size() + 2 * kFence}), gradients(ctx, p) {
    gradients.arena.t.data = memory.t.as<float>() + kFence;
    gradients.vectors.data = gradients.arena.t.data;
    gradients.weights = p.bind(gradients.arena);
    const std::vector<float> before(static_cast<std::size_t>(memory.t.size()), 7);
    from_host(ctx, before.data(), memory);
  }
};

void check_frozen(Context& ctx, const ModelConfig& c, const Freezing& f) {
  const auto whole = make_model(ctx, c), part = make_model(ctx, c, DType::f32, f.frozen);
  const Parameters& parameters = part->parameters();
  std::int64_t trained = 0, padding = 1024;
  for (const Parameter& p : parameters.list()) {
    EXPECT_EQ(p.frozen, f.frozen(p) || whole->parameters().at(p.name).frozen) << p.name;
    EXPECT_EQ(p.offset < 0, p.frozen) << p.name;
    if (p.frozen) continue;
    trained += p.size;
    padding += 128;
  }
  EXPECT_GE(parameters.arena_size(), trained);
  EXPECT_LT(parameters.arena_size(), trained + padding);

  const auto rows = draw_rows(c.vocab, 2);
  const Tokens tokens(ctx, rows);
  const Result expected = TrainingStep(ctx, *whole, rows).run();
  const Fenced fenced(ctx, parameters);
  const OwnedTensor loss(ctx, DType::f32, {1});
  zero(ctx, loss);
  const float n = 2 * kSeq;
  TrainPass(ctx, *part, {.batch = 2, .seq = kSeq})
      .run(tokens.batch,
           {.gradients = fenced.gradients, .loss = loss, .scale = 1 / n, .tokens_in_step = static_cast<double>(n), .accumulate = false});
  EXPECT_EQ(on_host(ctx, loss)[0] / static_cast<double>(n), expected.loss);
  for (const Parameter& p : parameters.list()) {
    const Tensor g = parameters.in_arena(fenced.gradients.arena, p);
    const Tensor bound = place_of(fenced.gradients.weights, p.name, c);
    EXPECT_EQ(static_cast<bool>(g), !p.frozen) << p.name;
    EXPECT_EQ(static_cast<bool>(bound), !p.frozen) << p.name;
    const Parameter& same = whole->parameters().at(p.name);
    EXPECT_TRUE(same_bits(parameters.read_value(p), whole->parameters().read_value(same))) << p.name;
    EXPECT_TRUE(p.frozen || same_bits(on_host(ctx, g), expected.of(same))) << p.name;
  }
  const std::vector<float> after = on_host(ctx, fenced.memory);
  for (std::int64_t i = 0; i < Fenced::kFence; ++i) {
    ASSERT_EQ(after[static_cast<std::size_t>(i)], 7) << "before the arena";
    ASSERT_EQ(after[after.size() - 1 - static_cast<std::size_t>(i)], 7) << "behind the arena";
  }
}

TEST(FrozenParameters, TheOthersHaveTheirBitsAndNothingElseIsKept) {
  for (Context& ctx : test::contexts())
    for (const char* method : {"bhyt", "peri", "seednorm", "derf", "layernorm"})
      for (const std::int64_t layers : {2, 3})
        for (const Freezing& f : freezings()) {
          ModelConfig c = small_config(method, layers);
          c.embedding_scale = EmbeddingScaleKind::learned;
          if (c.norm.method == "bhyt") c.norm.correction = Correction::residual_aware;
          SCOPED_TRACE(fmt::format("{} on {}, frozen: {}", describe(c), name_of(ctx.device()), f.name));
          check_frozen(ctx, c, f);
        }
}

TEST(FrozenParameters, JoinedOnesGoTogether) {
  Context& ctx = test::context_on(Device::cpu());
  const auto message = [&](Role role) {
    return test::message_of(
        [&] { Parameters(ctx, small_config("bhyt", 2), DType::f32, [&](const Parameter& p) { return p.role == role; }); });
  };
  EXPECT_EQ(message(Role::q),
            "[parameters] expected model.layers.0.self_attn.q_proj.weight and model.layers.0.self_attn.k_proj.weight to be frozen together "
            "or not at all");
  EXPECT_TRUE(test::has(message(Role::v), "v_proj.weight to be frozen together"));
  EXPECT_TRUE(test::has(message(Role::up_projection), "up_proj.weight to be frozen together"));
}

}  // namespace
}  // namespace bhyt::testing
