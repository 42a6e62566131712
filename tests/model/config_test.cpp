#include "model/config.h"

#include <gtest/gtest.h>

#include "model/config_keys.h"
#include "model/parameters.h"
#include "tests/model/helpers.h"

namespace bhyt {
namespace {

using schema::Json;
using test::has;
using test::message_of;

ModelConfig preset(const std::string& name, const std::string& method = "rmsnorm") {
  ModelConfig c;
  apply_preset(c, name);
  c.norm.method = method;
  return c;
}

std::int64_t parameters_of(const ModelConfig& c) {
  std::int64_t n = 0;
  for (const Parameter& p : parameter_list(c)) n += p.size;
  return n;
}

TEST(Presets, CountTheParametersOfThePaper) {
  EXPECT_EQ(parameters_of(preset("llama-374m")), 374'637'568);
  EXPECT_EQ(parameters_of(preset("llama-1b")), 1'235'814'400);
  EXPECT_EQ(parameters_of(preset("llama-3b")), 3'212'749'824);
  EXPECT_EQ(parameters_of(preset("llama-1b", "bhyt")), 1'235'814'400 + 2 * 16);
  EXPECT_EQ(parameters_of(preset("llama-1b", "peri")), 1'235'814'400 + 2 * 16 * 2048);
}

TEST(Presets, AreValidAndNearNamesAreProposed) {
  for (const auto& name : preset_names()) EXPECT_NO_THROW(validate(preset(name)));
  EXPECT_EQ(preset("tiny").d, 128);
  EXPECT_EQ(preset("small").mlp, 1408);
  EXPECT_EQ(preset("llama-3b").rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(preset("tiny").rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_TRUE(has(message_of([] { preset("llama1b"); }), "did you mean llama-1b"));
}

TEST(ModelConfig, ValidateNamesTheKey) {
  const auto broken = [](auto&& change) {
    ModelConfig c = preset("tiny");
    change(c);
    return message_of([&] { validate(c); });
  };
  EXPECT_TRUE(has(message_of([] { validate(ModelConfig{}); }), "give preset (tiny"));
  EXPECT_TRUE(has(broken([](auto& c) { c.d = 0; }), "model.d must be between 1"));
  EXPECT_TRUE(has(broken([](auto& c) { c.layers = -1; }), "model.layers"));
  EXPECT_TRUE(has(broken([](auto& c) { c.kv_heads = 3; }), "multiple of model.kv_heads, got 4 and 3"));
  EXPECT_TRUE(has(broken([](auto& c) { c.kv_heads = 8; }), "model.kv_heads must be between 1 and 4"));
  EXPECT_TRUE(has(broken([](auto& c) { c.head_dim = 7; }), "model.head_dim must be even"));
  EXPECT_TRUE(has(broken([](auto& c) { c.vocab = 0; }), "model.vocab"));
  EXPECT_TRUE(has(broken([](auto& c) { c.mlp = std::int64_t{1} << 60; }), "model.mlp"));
  EXPECT_TRUE(has(broken([](auto& c) { c.rope_theta = 0; }), "model.rope.theta must be greater than 0"));
  EXPECT_TRUE(has(broken([](auto& c) { c.eps = -1; }), "model.eps"));
  EXPECT_TRUE(has(broken([](auto& c) { c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .low = 4, .high = 4}; }), "scaling.high"));
}

TEST(ModelConfig, FlopsCountMatricesAndCausalAttention) {
  ModelConfig c = preset("tiny");
  const double matrices = 4 * (128.0 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 352) + 1024 * 128;
  EXPECT_DOUBLE_EQ(flops_per_token(c, 256), 6 * matrices + 4 * 6.0 * 256 * 128);
}

ModelSection section(const char* json) {
  ModelSection s;
  schema::read(s, Json::parse(json), "model");
  return s;
}

TEST(ModelKeys, PresetComesFirstWhereverItStands) {
  const ModelSection s = section(R"({"layers": 2, "preset": "tiny", "embedding_scale": "sqrt_d", "init": "runs/a"})");
  EXPECT_EQ(s.config.layers, 2);
  EXPECT_EQ(s.config.d, 128);
  EXPECT_EQ(s.config.embedding_scale, EmbeddingScaleKind::sqrt_d);
  EXPECT_EQ(s.init, "runs/a");
  EXPECT_FALSE(s.vocab_given);
  EXPECT_TRUE(section(R"({"preset": "tiny", "vocab": 300})").vocab_given);
}

TEST(ModelKeys, HeadsDefaultFromTheShapes) {
  const ModelSection s = section(R"({"d": 96, "layers": 2, "heads": 6, "mlp": 128})");
  EXPECT_EQ(s.config.kv_heads, 6);
  EXPECT_EQ(s.config.head_dim, 16);
  EXPECT_FALSE(s.vocab_given);
  EXPECT_TRUE(has(message_of([] { section(R"({"d": 100, "heads": 6})"); }), "multiple of model.heads"));
}

TEST(ModelKeys, RopeScalingInItsThreeForms) {
  EXPECT_EQ(section(R"({"rope": {"theta": 1e4, "scaling": "none"}})").config.rope_theta, 10000);
  EXPECT_EQ(section(R"({"rope": {"scaling": "llama3"}})").config.rope_scaling, (RopeScaling{.kind = RopeScaling::Kind::llama3}));
  EXPECT_EQ(section(R"({"rope": {"scaling": {"factor": 8, "original": 64}}})").config.rope_scaling,
            (RopeScaling{.kind = RopeScaling::Kind::llama3, .factor = 8, .original = 64}));
  EXPECT_EQ(section(R"({"preset": "llama-1b", "rope": {"scaling": "none"}})").config.rope_scaling, RopeScaling{});
  EXPECT_TRUE(has(message_of([] { section(R"({"rope": {"scaling": {"fctor": 8}}})"); }), "did you mean model.rope.scaling.factor"));
  EXPECT_TRUE(has(message_of([] { section(R"({"rope": {"scaling": "yarn"}})"); }), "model.rope.scaling must be"));
}

TEST(ModelKeys, WrittenKeysReadBackTheSame) {
  for (const char* json :
       {R"({"preset": "llama-1b", "d": 1024, "init": "x"})", R"({"d": 96, "layers": 2, "heads": 6, "mlp": 128, "tied": false})"}) {
    ModelSection first = section(json), second;
    const Json written = schema::write(first);
    schema::read(second, written, "model");
    EXPECT_EQ(schema::write(second), written);
  }
  schema::Lister lister("model");
  ModelSection s;
  fields(s, lister);
  EXPECT_EQ(lister.entries.front().key, "model.preset");
  EXPECT_TRUE(has(message_of([] { section(R"({"layer": 2})"); }), "did you mean model.layers"));
  EXPECT_TRUE(has(message_of([] { section(R"({"d": "wide"})"); }), "model.d must be a whole number"));
}

}  // namespace
}  // namespace bhyt
