#include "model/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/hf_files.h"
#include "ops/norm/config.h"
#include "tests/devices.h"
#include "tests/model/helpers.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using schema::Json;
using test::has;
using test::message_of;
using test::TempDir;

Context& on_cpu() { return test::context_on(Device::cpu()); }

ModelConfig small(const std::string& method) {
  ModelConfig c;
  c.d = 12;
  c.layers = 3;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 4;
  c.mlp = 10;
  c.vocab = 17;
  c.max_positions = 64;
  c.norm.method = method;
  c.norm.seq_len = 16;
  return c;
}

Json llama(const Json& changes = Json::object()) {
  Json j = Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 17, "hidden_size": 12,
    "intermediate_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "hidden_act": "silu",
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float32", "unknown_key": [1, {"a": 2}]})");
  for (const auto& [key, value] : changes.items()) j[key] = value;
  return j;
}
ModelConfig read(const Json& changes) { return parse_model_config(llama(changes).dump(), "config.json"); }
std::string refusal(const Json& changes) {
  return message_of([&] { read(changes); });
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(schema::write(a.norm), schema::write(b.norm));
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(std::tie(a.d, a.layers, a.heads, a.kv_heads, a.head_dim, a.mlp, a.vocab, a.tied, a.rope_theta, a.eps, a.init_std),
            std::tie(b.d, b.layers, b.heads, b.kv_heads, b.head_dim, b.mlp, b.vocab, b.tied, b.rope_theta, b.eps, b.init_std));
  EXPECT_EQ(a.rope_scaling, b.rope_scaling);
  EXPECT_EQ(std::tie(a.max_positions, a.embedding_scale, a.bos, a.eos), std::tie(b.max_positions, b.embedding_scale, b.bos, b.eos));
}

// A factor outside the map is nothing a plain Llama loader or the reference knows: neither may take the checkpoint for its own.
std::string refusal_of_json(const std::string& text) {
  try {
    (void)parse_json(text, "x.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(JsonText, NestingHasAnEnd) {
  const auto nested = [](std::size_t levels) {
    return "{\"x\":" + std::string(levels, '[') + std::string(levels, ']') + ",\"y\":1,\"z\":2}";
  };
  EXPECT_EQ(refusal_of_json(nested(499)), "");
  EXPECT_EQ(refusal_of_json(nested(500)), "x.json: nested more than 500 deep");
  EXPECT_EQ(refusal_of_json(nested(50000)), "x.json: nested more than 500 deep");
  EXPECT_TRUE(json_or_discarded(nested(50000)).is_discarded());
  EXPECT_TRUE(json_or_discarded<nlohmann::json>(nested(50000)).is_discarded());
  EXPECT_TRUE(json_or_discarded("{").is_discarded());
  EXPECT_EQ(json_or_discarded("{\"b\":1,\"a\":2}").dump(), "{\"b\":1,\"a\":2}");
  EXPECT_EQ(refusal_of_json("{\"\\\"[" + std::string(1000, '[') + "\":1}"), "");  // inside a text
  EXPECT_EQ(refusal_of_json(std::string("{}\0", 3)), "x.json: not JSON (it holds a zero byte)");
  EXPECT_EQ(refusal_of_json("{").find("x.json: not JSON (parse error"), 0u);
}

TEST(ModelConfigJson, ConstantFactorsAreNobodyElses) {
  ModelConfig c = small("rmsnorm");
  c.norm.depth_factor = Depth::inv_sqrt;
  EXPECT_FALSE(is_plain_llama(c));
  EXPECT_FALSE(Json::parse(model_config_json(c, DType::f32)).contains("norm_type"));
  c = small("bhyt");
  EXPECT_TRUE(Json::parse(model_config_json(c, DType::f32)).contains("norm_type"));
  c.norm.gain = Gain::fixed_unit;
  EXPECT_FALSE(Json::parse(model_config_json(c, DType::f32)).contains("norm_type"));
}

// The Python code beside a checkpoint has every row of the table, and no place left open.
TEST(ModelConfigJson, PythonCodeHasEveryMethod) {
  std::string python;
  for (const auto& [name, text] : hf_files())
    if (name == "modeling_bhyt.py") python = text;
  EXPECT_EQ(python.find("# rows of METHODS"), std::string::npos);
  for (const Method& m : methods()) EXPECT_NE(python.find(fmt::format("\"{}\": Method(", m.name)), std::string::npos) << m.name;
}

TEST(ModelConfigJson, RoundTripsEveryMethodAndOption) {
  using Change = std::function<void(ModelConfig&)>;
  const std::vector<Change> changes = {
      [](auto&) {},
      [](auto& c) {
        c.norm.kappa = 1 / std::sqrt(1 - 0.973), c.norm.lambda = {0.1, 1.0 / 3};
      },
      [](auto& c) { c.norm.learn_lambda = false, c.norm.lambda_last = 2.5; },
      [](auto& c) {
        if (method(c.norm.method).scale == ScaleKind::lambda) c.norm.gain = Gain::unit;
        c.norm.depth_gain = Depth::inv_sqrt;
      },
      [](auto& c) {
        if (method(c.norm.method).scale == ScaleKind::lambda) c.norm.gain = Gain::fixed_unit;
        if (method(c.norm.method).depth == Depth::none) c.norm.depth_factor = Depth::inv_sqrt;
      },
      [](auto& c) { c.norm.kappa_schedule = KappaSchedule::decay, c.norm.exact_first = 2; },
      [](auto& c) {
        c.norm.kappa_schedule = KappaSchedule::mild_grow, c.norm.exact_list = {1, 3};
      },
      [](auto& c) { c.norm.refresh = 7, c.norm.stop_gradient = true, c.norm.aux_every = 5; },
      [](auto& c) {
        c.norm.gamma_in_constant = true, c.norm.calibration = {1.25, 0.1, 3};
      },
      [](auto& c) { c.norm.first_layer = 2, c.norm.last_layer = 3, c.norm.elsewhere = "peri"; },
      [](auto& c) { c.norm.first_layer = 1, c.norm.last_layer = 2; },
      [](auto& c) {
        c.norm.alpha = std::array<double, 3>{0.7, 0.2, 0.3};
      },
      [](auto& c) { c.embedding_scale = EmbeddingScaleKind::learned, c.tied = false, c.bos = 3, c.eos = {4}; },
      [](auto& c) {
        c.embedding_scale = EmbeddingScaleKind::sqrt_d, c.eos = {4, 5}, c.eps = 1e-6, c.init_std = 0.01;
      },
      [](auto& c) { c.rope_scaling = {.kind = RopeScaling::Kind::llama3, .factor = 8, .original = 32}, c.rope_theta = 1e6; },
  };
  for (const Method& m : methods()) {
    for (std::size_t i = 0; i < changes.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} {}", m.name, i));
      ModelConfig c = small(std::string(m.name));
      changes[i](c);
      const std::string text = model_config_json(c, DType::bf16);
      expect_same(parse_model_config(text, "config.json"), c);
      const Json j = Json::parse(text);
      EXPECT_EQ(j["model_type"], is_plain_llama(c) ? "llama" : "bhyt");
      EXPECT_EQ(j.contains("auto_map"), !is_plain_llama(c));
      EXPECT_EQ(j["torch_dtype"], "bfloat16");
    }
    if (m.site2 == SiteStat::approximate)
      for (const Correction correction : {Correction::beta, Correction::eta, Correction::residual_aware}) {
        ModelConfig c = small(std::string(m.name));
        c.norm.correction = correction;
        c.norm.aux_loss = 0.25;
        expect_same(parse_model_config(model_config_json(c, DType::f32), "config.json"), c);
      }
  }
}

TEST(ModelConfigJson, PlainLlamaOnlyWhereAPlainLoaderIsRight) {
  ModelConfig c = small("rmsnorm");
  EXPECT_TRUE(is_plain_llama(c));
  c.embedding_scale = EmbeddingScaleKind::sqrt_d;
  EXPECT_FALSE(is_plain_llama(c));
  c = small("rmsnorm");
  c.norm.first_layer = 1, c.norm.last_layer = 2, c.norm.elsewhere = "lns";
  EXPECT_FALSE(is_plain_llama(c));
  for (const char* method : {"lns", "bhyt", "rmsnorm_shared", "layernorm"}) EXPECT_FALSE(is_plain_llama(small(method)));
}

// What we write for methods that the reference has, its reader (here: ours, without the norm object) takes for the same.
TEST(ModelConfigJson, FlatKeysSayTheSameAsTheNormObject) {
  const auto through_flat_keys = [](const ModelConfig& c) {
    Json j = Json::parse(model_config_json(c, DType::f32));
    j.erase("norm");
    j.erase("embedding_scale");
    return parse_model_config(j.dump(), "config.json");
  };
  ModelConfig c = small("bhyt");
  c.norm.kappa = 7, c.norm.lambda = {1.5, 0.5}, c.norm.lambda_last = 1.25, c.norm.learn_lambda = false;
  c.norm.kappa_schedule = KappaSchedule::grow, c.norm.correction = Correction::eta, c.norm.gamma_in_constant = true;
  c.norm.exact_list = {1, 3}, c.norm.calibration = {1, 2, 3}, c.norm.first_layer = 1, c.norm.last_layer = 2;
  c.embedding_scale = EmbeddingScaleKind::learned;
  expect_same(through_flat_keys(c), c);
  expect_same(through_flat_keys(small("bhyt_exact")), small("bhyt_exact"));
  expect_same(through_flat_keys(small("rmsnorm")), small("rmsnorm"));
  for (const char* method : {"lns", "bhyt_star", "rmsnorm_approx"})
    EXPECT_FALSE(Json::parse(model_config_json(small(method), DType::f32)).contains("norm_type")) << method;
  c = small("bhyt_exact");
  c.norm.lambda_last = 1;  // always RMSNorm at the end there
  EXPECT_FALSE(Json::parse(model_config_json(c, DType::f32)).contains("norm_type"));
}

TEST(ModelConfigJson, ReadsBothSpellingsOfHuggingFace) {
  ModelConfig c = read({{"head_dim", nullptr}, {"num_key_value_heads", nullptr}, {"eos_token_id", {7, 8}}, {"bos_token_id", 6}});
  EXPECT_EQ(c.head_dim, 6);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_FALSE(c.tied);
  EXPECT_EQ(c.eos, (std::vector<std::int64_t>{7, 8}));
  EXPECT_EQ(c.bos, 6);
  EXPECT_EQ(c.norm.method, "rmsnorm");
  EXPECT_EQ(read({{"eos_token_id", 7}}).eos, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(read({{"eos_token_id", nullptr}}).eos, std::vector<std::int64_t>{});
  const RopeScaling scaled{.kind = RopeScaling::Kind::llama3, .factor = 8, .low = 1, .high = 4, .original = 32};
  const Json keys = {{"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  Json old = keys, oldest = keys, fresh = keys;
  old["rope_type"] = "llama3";
  oldest["type"] = "llama3";
  fresh["rope_type"] = "llama3";
  fresh["rope_theta"] = 5e5;
  EXPECT_EQ(read({{"rope_scaling", old}}).rope_scaling, scaled);
  EXPECT_EQ(read({{"rope_scaling", oldest}}).rope_scaling, scaled);
  EXPECT_EQ(read({{"rope_scaling", old}}).rope_theta, 10000);
  EXPECT_EQ(read({{"rope_theta", nullptr}, {"rope_parameters", fresh}}).rope_scaling, scaled);
  EXPECT_EQ(read({{"rope_theta", nullptr}, {"rope_parameters", fresh}}).rope_theta, 5e5);
  EXPECT_EQ(read({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}}}).rope_theta, 7);
  // Both: transformers takes rope_scaling alone.
  const ModelConfig both = read({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}}, {"rope_scaling", old}});
  EXPECT_EQ(both.rope_scaling, scaled);
  EXPECT_EQ(both.rope_theta, 10000);
  EXPECT_THROW(read({{"rope_parameters", fresh}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}), Error);
  EXPECT_THROW(read({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}), Error);
  EXPECT_EQ(read({{"hidden_act", "swish"}}).mlp, 10);
}

TEST(ModelConfigJson, RefusesWhatItCannotCompute) {
  EXPECT_TRUE(has(refusal({{"model_type", "mistral"}}), "config.json: model_type must be llama or bhyt, got \"mistral\""));
  EXPECT_TRUE(has(refusal({{"attention_bias", true}}), "attention_bias must be false"));
  EXPECT_TRUE(has(refusal({{"mlp_bias", true}}), "mlp_bias must be false"));
  EXPECT_TRUE(has(refusal({{"hidden_act", "gelu"}}), "hidden_act must be \"silu\""));
  EXPECT_TRUE(has(refusal({{"rope_scaling", {{"rope_type", "yarn"}}}}), "rope_scaling.rope_type must be default or llama3, got \"yarn\""));
  EXPECT_TRUE(has(refusal({{"rope_scaling", 3}}), "rope_scaling must be an object"));
  EXPECT_TRUE(has(refusal({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}), "partial_rotary_factor"));
  EXPECT_TRUE(has(refusal({{"quantization_config", {{"bits", 4}}}}), "quantized"));
  EXPECT_TRUE(has(refusal({{"hidden_size", nullptr}}), "hidden_size is missing"));
  EXPECT_TRUE(has(refusal({{"hidden_size", "wide"}}), "hidden_size must be a whole number"));
  EXPECT_TRUE(has(refusal({{"num_hidden_layers", 1e12}}), "num_hidden_layers must be between"));
  EXPECT_TRUE(has(refusal({{"num_key_value_heads", 0}}), "num_key_value_heads must be"));
  EXPECT_TRUE(has(refusal({{"head_dim", nullptr}, {"num_attention_heads", 0}}), "num_attention_heads"));
  EXPECT_TRUE(has(refusal({{"norm", {{"method", "rmsnrm"}}}}), "did you mean rmsnorm"));
  EXPECT_TRUE(has(refusal({{"norm", {{"methd", "bhyt"}}}}), "unknown key norm.methd"));
  EXPECT_TRUE(has(refusal({{"norm", {{"calibration", {1.0}}}}}), "norm.calibration must have one factor per layer"));
  EXPECT_TRUE(has(refusal({{"norm", 7}}), "norm must be a map of keys"));
  EXPECT_TRUE(has(refusal({{"embedding_scale", "big"}}), "embedding_scale must be one of none, sqrt_d, learned"));
  EXPECT_TRUE(has(refusal({{"norm_type", "layer"}}), "norm_type must be one of rms"));
  EXPECT_TRUE(has(refusal({{"norm_type", "bhyt"}, {"bhyt_kappa", -1}}), "bhyt_kappa must be greater than 0"));
  EXPECT_TRUE(has(refusal({{"norm_type", "bhyt"}, {"var_approx_exact_layer_list", "0,x"}}), "var_approx_exact_layer_list"));
  EXPECT_TRUE(has(refusal({{"norm_type", "bhyt"}, {"var_approx_exact_layer_list", "7"}}), "norm.exact_layers"));
  EXPECT_TRUE(has(refusal({{"norm_type", "bhyt"}, {"bhyt_layer_range", {1}}}), "bhyt_layer_range"));
  EXPECT_TRUE(has(refusal({{"norm_type", "bhyt"}, {"bhyt_layer_range", {0, 1}}, {"fallback_norm_type", "layer"}}), "fallback_norm_type"));
  const auto parse = [](const std::string& text) { return message_of([&] { parse_model_config(text, "c"); }); };
  EXPECT_TRUE(has(parse("["), "c: not JSON"));
  EXPECT_TRUE(has(parse("[]"), "c: must be a JSON object"));
  EXPECT_TRUE(has(parse("{}"), "hidden_size is missing"));
  EXPECT_TRUE(has(parse(std::string(100000, '[')), "nested"));
}

TEST(ModelConfigJson, ReadsEveryKeyOfTheReference) {
  const NormConfig n = read({{"norm_type", "bhytline"},
                             {"seq_len", 2048},
                             {"input_layer_lam", 3.0},
                             {"post_layer_lam", "None"},
                             {"last_layer_lam", 1.5},
                             {"bhyt_kappa", 5},
                             {"bhyt_kappa_schedule", "mild_grow"},
                             {"var_approx_method", "residual_aware"},
                             {"use_gamma_var", true},
                             {"var_approx_exact_layers", 1},
                             {"var_approx_exact_layer_list", "2, 0"},
                             {"var_approx_calibration", {1.0, 1.5, 2.0}},
                             {"bhyt_layer_range", {1, 2}},
                             {"fallback_norm_type", "rms"},
                             {"inference_var_dtype", "float32"}})
                           .norm;
  EXPECT_EQ(n.method, "bhyt");
  EXPECT_EQ(n.seq_len, 2048);
  EXPECT_EQ(n.lambda, (std::array<double, 2>{3.0, 1.0}));
  EXPECT_EQ(n.lambda_last, 1.5);
  EXPECT_FALSE(n.learn_lambda);
  EXPECT_EQ(n.kappa, 5);
  EXPECT_EQ(n.kappa_schedule, KappaSchedule::mild_grow);
  EXPECT_EQ(n.correction, Correction::residual_aware);
  EXPECT_TRUE(n.gamma_in_constant);
  EXPECT_EQ(n.exact_list, (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(n.calibration, (std::vector<double>{1, 1.5, 2}));
  EXPECT_EQ(n.first_layer, 2);
  EXPECT_EQ(n.last_layer, 3);
  const NormConfig star = read({{"norm_type", "bhytstar"}, {"last_layer_lam", 2.0}, {"var_approx_method", "beta"}}).norm;
  EXPECT_EQ(star.method, "bhyt_exact");
  EXPECT_EQ(star.lambda_last, 0);
  EXPECT_EQ(read({{"norm_type", "rms"}, {"input_layer_lam", "None"}, {"last_layer_lam", nullptr}}).norm.method, "rmsnorm");
  EXPECT_EQ(
      read({{"norm_type", "bhyt"}, {"bhyt_kappa", "None"}, {"learnable_lam", "None"}, {"var_approx_exact_layers", "None"}}).norm.kappa, 10);
  EXPECT_EQ(read({{"use_shared_scale", true}}).embedding_scale, EmbeddingScaleKind::learned);
  EXPECT_EQ(read({{"norm_type", "bhyt"}}).norm.seq_len, 64);  // with a warning
  EXPECT_EQ(read({{"norm_type", "bhyt"}, {"norm", {{"method", "lns"}}}}).norm.method, "lns");
}

// --- folders -------------------------------------------------------------------------------------------------------------------------

// Stored tensors, to be changed and written as one file.
std::map<std::string, SafeTensorOut> tensors_of(const ModelConfig& c, const char* dtype = "F32") {
  std::map<std::string, SafeTensorOut> out;
  std::int64_t at = 0;
  for (const Parameter& p : parameter_list(c)) {
    std::vector<float> values(static_cast<std::size_t>(p.size));
    for (auto& v : values) v = static_cast<float>(++at % 97) / 64 - 0.75f;  // exact in every type
    out[p.name] = {p.name, dtype, p.shape, [values, dtype = std::string(dtype)](const auto& put) {
                     const DType t = dtype == "F32" ? DType::f32 : dtype == "BF16" ? DType::bf16 : dtype == "F16" ? DType::f16 : DType::f64;
                     std::vector<char> raw(values.size() * size_of(t));
                     encode_floats(values.data(), static_cast<std::int64_t>(values.size()), t, raw.data());
                     put(raw.data(), raw.size());
                   }};
  }
  return out;
}

void write_checkpoint(const fs::path& dir, const ModelConfig& c, const std::map<std::string, SafeTensorOut>& tensors) {
  test::write_file(dir / "config.json", model_config_json(c, DType::f32));
  std::vector<SafeTensorOut> list;
  for (const auto& [name, t] : tensors) list.push_back(t);
  write_safetensors(dir / "model.safetensors", list);
}

std::vector<std::vector<float>> values_of(const Model& m) {
  std::vector<std::vector<float>> out;
  for (const Parameter& p : m.parameters().list()) out.push_back(m.parameters().read_value(p));
  return out;
}

TEST(Checkpoint, EveryFileTypeGivesTheSameWeights) {
  const ModelConfig c = small("bhyt");
  std::vector<std::vector<float>> first;
  for (const char* dtype : {"F32", "BF16", "F16", "F64"}) {
    TempDir dir;
    write_checkpoint(dir.path(), c, tensors_of(c, dtype));
    const auto model = load_model(on_cpu(), dir.path(), DType::f32);
    if (first.empty()) first = values_of(*model);
    EXPECT_EQ(values_of(*model), first) << dtype;
    EXPECT_GT(model->constants().as<float>()[0], 0);
    EXPECT_EQ(values_of(*load_model(on_cpu(), dir.path(), DType::bf16)), first);
  }
  EXPECT_EQ(first[0][1], 2.0f / 64 - 0.75f);
}

TEST(Checkpoint, SaveAndLoadKeepEveryBit) {
  for (const char* method : {"rmsnorm", "bhyt", "derf", "peri", "seednorm"})
    for (const DType type : {DType::f32, DType::bf16}) {
      TempDir dir;
      ModelConfig c = small(method);
      c.norm.learn_lambda = false;
      c.embedding_scale = EmbeddingScaleKind::learned;
      Model model(on_cpu(), c, type);
      model.parameters().initialize(7);
      save_model(dir.path(), model);
      for (const Device device : test::devices()) {
        const auto again = load_model(test::context_on(device), dir.path(), type);
        EXPECT_EQ(values_of(*again), values_of(model)) << method;
        TempDir copy;
        save_model(copy.path(), *again);
        EXPECT_TRUE(test::read_file(copy / "model.safetensors") == test::read_file(dir / "model.safetensors"))
            << method << " " << name_of(device);
      }
      EXPECT_TRUE(fs::exists(dir / "generation_config.json"));
      EXPECT_TRUE(fs::exists(dir / "modeling_bhyt.py"));
      const SafeTensors file(dir / "model.safetensors");
      EXPECT_EQ(file.find("lm_head.weight"), nullptr);
      EXPECT_EQ(file.metadata().at("format"), "pt");
      const SafeTensor* lam = file.find("model.layers.0.input_layernorm.lam");
      EXPECT_TRUE(!lam || lam->shape.empty());
    }
}

TEST(Checkpoint, ShardsAreOneCheckpoint) {
  const ModelConfig c = small("rmsnorm");
  TempDir whole, parts;
  const auto tensors = tensors_of(c);
  write_checkpoint(whole.path(), c, tensors);
  test::write_file(parts / "config.json", model_config_json(c, DType::f32));
  std::vector<SafeTensorOut> shard[2];
  Json map;
  int i = 0;
  for (const auto& [name, t] : tensors) {
    shard[i % 2].push_back(t);
    map[name] = i++ % 2 ? "model-00002-of-00002.safetensors" : "model-00001-of-00002.safetensors";
  }
  write_safetensors(parts / "model-00001-of-00002.safetensors", shard[0]);
  write_safetensors(parts / "model-00002-of-00002.safetensors", shard[1]);
  const auto index = [&](const Json& m) { test::write_file(parts / "model.safetensors.index.json", Json{{"weight_map", m}}.dump()); };
  const auto load = [&] { return load_model(on_cpu(), parts.path(), DType::f32); };
  index(map);
  EXPECT_EQ(values_of(*load()), values_of(*load_model(on_cpu(), whole.path(), DType::f32)));
  Json broken = map;
  broken["model.norm.weight"] = "../secret.safetensors";
  index(broken);
  EXPECT_TRUE(has(message_of(load), "is not a file name"));
  broken["model.norm.weight"] = "model-00003-of-00003.safetensors";
  index(broken);
  EXPECT_TRUE(has(message_of(load), "names model-00003-of-00003.safetensors, which is missing"));
  broken = map;
  broken["ghost"] = "model-00001-of-00002.safetensors";
  index(broken);
  EXPECT_TRUE(has(message_of(load), "ghost is not in model-00001-of-00002.safetensors"));
  index(Json::object());
  EXPECT_TRUE(has(message_of(load), "weight_map is missing"));
}

TEST(Checkpoint, EverythingThatDoesNotFitIsNamedAtOnce) {
  const ModelConfig c = small("bhyt");
  TempDir dir;
  auto tensors = tensors_of(c);
  tensors.erase("model.norm.weight");
  tensors.erase("model.layers.1.input_layernorm.lam");
  auto& up = tensors["model.layers.2.mlp.up_proj.weight"];
  up.shape = {12, 10};
  auto& gate = tensors["model.layers.0.mlp.gate_proj.weight"];
  gate.dtype = "I32";
  tensors["extra"] = {"extra", "F32", {0}, [](const auto&) {}};
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
      "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {0}, [](const auto&) {}};
  write_checkpoint(dir.path(), c, tensors);
  const std::string message = message_of([&] { load_model(on_cpu(), dir.path(), DType::f32); });
  EXPECT_TRUE(has(message, "model.safetensors: tensor model.norm.weight is missing, config.json asks for [12]"));
  EXPECT_TRUE(has(message, "tensor model.layers.1.input_layernorm.lam is missing, config.json asks for [1]"));
  EXPECT_TRUE(has(message, "tensor model.layers.2.mlp.up_proj.weight has shape [12, 10], config.json asks for [10, 12]"));
  EXPECT_TRUE(has(message, "tensor model.layers.0.mlp.gate_proj.weight is I32"));
  EXPECT_TRUE(has(message, "tensor extra [0] is unexpected"));
  EXPECT_FALSE(has(message, "inv_freq"));
}

TEST(Checkpoint, ScalarsMayHaveEitherShape) {
  for (const bool learn : {true, false}) {
    ModelConfig c = small("bhyt");
    c.norm.learn_lambda = learn;
    TempDir dir;
    auto tensors = tensors_of(c);
    for (auto& [name, t] : tensors)
      if (name.ends_with(".lam")) t.shape = learn ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1};
    write_checkpoint(dir.path(), c, tensors);
    EXPECT_NO_THROW(load_model(on_cpu(), dir.path(), DType::f32));
  }
}

TEST(Checkpoint, TiedHeadMustBeACopy) {
  const ModelConfig c = small("rmsnorm");
  TempDir dir;
  auto tensors = tensors_of(c);
  SafeTensorOut head = tensors["model.embed_tokens.weight"];
  head.name = "lm_head.weight";
  tensors[head.name] = head;
  write_checkpoint(dir.path(), c, tensors);
  EXPECT_NO_THROW(load_model(on_cpu(), dir.path(), DType::f32));
  tensors[head.name].fill = [](const auto& put) {
    const std::vector<float> other(17 * 12, 0.5f);
    put(other.data(), other.size() * 4);
  };
  write_checkpoint(dir.path(), c, tensors);
  EXPECT_TRUE(has(message_of([&] { load_model(on_cpu(), dir.path(), DType::f32); }), "lm_head.weight differs"));
}

TEST(Checkpoint, WeightsThatAreNotFiniteAreLoadedWithAWarning) {
  const ModelConfig c = small("rmsnorm");
  TempDir dir;
  auto tensors = tensors_of(c);
  tensors["model.norm.weight"].fill = [](const auto& put) {
    std::vector<float> v(12, 1.0f);
    v[3] = std::numeric_limits<float>::quiet_NaN();
    put(v.data(), 48);
  };
  write_checkpoint(dir.path(), c, tensors);
  ::testing::internal::CaptureStderr();
  load_model(on_cpu(), dir.path(), DType::f32);
  EXPECT_TRUE(has(::testing::internal::GetCapturedStderr(), "tensor model.norm.weight holds 1 values that are not finite"));
}

TEST(Checkpoint, SaysWhatAFolderLacks) {
  TempDir dir;
  const auto load = [&](const fs::path& p) { return message_of([&] { load_model(on_cpu(), p, DType::f32); }); };
  EXPECT_TRUE(has(load(dir / "none"), "no such folder"));
  EXPECT_TRUE(has(load(dir.path()), "looked for config.json (missing) and model.safetensors or model.safetensors.index.json (missing)"));
  test::write_file(dir / "config.json", "{}");
  EXPECT_TRUE(has(load(dir.path()), "config.json (found)"));
  EXPECT_TRUE(has(load(dir / "config.json"), "not a folder"));
  test::write_file(dir / "pytorch_model.bin", "");
  EXPECT_TRUE(has(load(dir.path()), "pickle"));
  fs::create_directories(dir / "checkpoint-20");
  fs::create_directories(dir / "checkpoint-100");
  const std::string unusable = message_of([&] { named_checkpoint(dir.path(), Verify::yes); });
  EXPECT_TRUE(has(unusable, "no checkpoint of this run can be used:\n  checkpoint-100: it holds no model\n  checkpoint-20:"));
  EXPECT_TRUE(has(message_of([&] { save_model_files(dir / "none", small("rmsnorm"), DType::f32); }), "No such file"));
}

}  // namespace
}  // namespace bhyt
