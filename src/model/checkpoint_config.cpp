// config.json → ModelConfig. Three dialects: plain Hugging Face Llama, the reference's flat norm keys, our `norm` object.
#include <algorithm>
#include <charconv>
#include <set>

#include "core/check.h"
#include "core/log.h"
#include "model/checkpoint.h"
#include "model/checkpoint_json.h"
#include "model/config_keys.h"
#include "ops/norm/config.h"

namespace bhyt {

namespace {

using schema::Json;
using schema::Range;

// Reads keys of a flat object that others wrote: what is not asked for is ignored, null counts as absent.
class Keys {
 public:
  explicit Keys(const Json& j, std::string path = "") : json_(j), path_(std::move(path)) {}
  std::string full(const char* key) const { return path_.empty() ? key : path_ + "." + key; }
  const Json* find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  // The reference's keys may hold the word None.
  const Json* find_some(const char* key) const {
    const Json* j = find(key);
    return j && j->is_string() && (*j == "None" || *j == "") ? nullptr : j;
  }
  std::int64_t integer(const char* key, std::int64_t otherwise, Range range = {}) const {
    const Json* j = find_some(key);
    return j ? schema::Reader::as_integer(full(key), *j, range) : otherwise;
  }
  std::int64_t integer(const char* key) const {
    check(find(key) != nullptr, "{} is missing", full(key));
    return integer(key, 0);
  }
  double number(const char* key, double otherwise, Range range = {}) const {
    const Json* j = find_some(key);
    return j ? schema::Reader::as_number(full(key), *j, range) : otherwise;
  }
  double number(const char* key, Range range) const {
    check(find(key) != nullptr, "{} is missing", full(key));
    return number(key, 0, range);
  }
  bool boolean(const char* key, bool otherwise) const {
    const Json* j = find_some(key);
    if (!j) return otherwise;
    if (!j->is_boolean()) schema::wrong(full(key), "true or false", *j);
    return j->get<bool>();
  }
  std::string text(const char* key, const char* otherwise) const {
    const Json* j = find_some(key);
    if (!j) return otherwise;
    if (!j->is_string()) schema::wrong(full(key), "a text", *j);
    return j->get<std::string>();
  }
  // What must hold one value, or be absent, for us to compute the right thing.
  void require(const char* key, const Json& value) const {
    const Json* j = find_some(key);
    if (j && *j != value) schema::wrong(full(key), schema::show(value) + " (other models are not supported)", *j);
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string path_;
};

// --- plain Llama ---------------------------------------------------------------------------------------------------------------------

void read_rope(ModelConfig& c, const Keys& k) {
  // transformers 5 writes rope_parameters, with theta in it; where rope_scaling is there too, it reads that instead.
  const Json none = Json::object();
  const auto object = [&](const char* key) -> const Json& {
    const Json* j = k.find_some(key);
    if (j && !j->is_object()) schema::wrong(key, "an object or null", *j);
    return j ? *j : none;
  };
  const Json &parameters = object("rope_parameters"), &scaling = object("rope_scaling");
  const bool old = !scaling.empty();
  const Keys rope(old ? scaling : parameters, old ? "rope_scaling" : "rope_parameters");
  c.rope_theta = rope.number("rope_theta", k.number("rope_theta", 10000, {.above = 0}), {.above = 0});
  k.require("partial_rotary_factor", 1.0);
  rope.require("partial_rotary_factor", 1.0);
  const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
  if (type == "default") return;
  check(type == "llama3", "{} must be default or llama3, got \"{}\" (other scalings are not supported)", rope.full("rope_type"), type);
  c.rope_scaling = {.kind = RopeScaling::Kind::llama3,
                    .factor = rope.number("factor", {.above = 0}),
                    .low = rope.number("low_freq_factor", {.above = 0}),
                    .high = rope.number("high_freq_factor", {.above = 0}),
                    .original = rope.number("original_max_position_embeddings", static_cast<double>(c.max_positions), {.above = 0})};
}

std::vector<std::int64_t> read_ids(const Keys& k, const char* key) {
  const Json* j = k.find(key);
  if (!j) return {};
  if (!j->is_array()) return {k.integer(key, 0)};
  std::vector<std::int64_t> ids;
  for (const auto& id : *j) ids.push_back(schema::Reader::as_integer(key, id, {}));
  return ids;
}

void read_llama(ModelConfig& c, const Keys& k) {
  const std::string type = k.text("model_type", "llama");
  check(type == "llama" || type == "bhyt", "model_type must be llama or bhyt, got \"{}\" (other models are not supported)", type);
  if (k.text("hidden_act", "silu") != "swish") k.require("hidden_act", "silu");  // two names of one function
  k.require("attention_bias", false);
  k.require("mlp_bias", false);
  check(!k.find("quantization_config"), "quantization_config: quantized checkpoints are not supported");
  c.d = k.integer("hidden_size");
  c.mlp = k.integer("intermediate_size");
  c.layers = k.integer("num_hidden_layers");
  c.heads = k.integer("num_attention_heads");
  c.vocab = k.integer("vocab_size");
  c.kv_heads = k.integer("num_key_value_heads", c.heads);
  check(k.find("head_dim") || (c.heads > 0 && c.d % c.heads == 0),
        "hidden_size must be a multiple of num_attention_heads unless head_dim is given, got {} and {}", c.d, c.heads);
  c.head_dim = k.find("head_dim") ? k.integer("head_dim") : c.d / c.heads;
  // Absent keys take the defaults of transformers' LlamaConfig.
  c.tied = k.boolean("tie_word_embeddings", false);
  c.eps = k.number("rms_norm_eps", 1e-6);
  c.init_std = k.number("initializer_range", 0.02);
  c.max_positions = k.integer("max_position_embeddings", 2048);
  read_rope(c, k);
  const auto bos = read_ids(k, "bos_token_id");
  c.bos = bos.empty() ? -1 : bos[0];
  c.eos = read_ids(k, "eos_token_id");
}

// --- the reference's flat keys (docs/checkpoints.md, "config.json, key by key") ----------------------------------------------------------

double read_lambda(const Keys& k, const char* key, double otherwise, Range range) {
  const Json* j = k.find_some(key);
  return j ? schema::Reader::as_number(key, *j, range) : otherwise;
}

// "0,8": layers from 0. A JSON list is taken too.
std::set<std::int64_t> read_exact_list(const Keys& k, const char* key) {
  std::set<std::int64_t> layers;
  const Json* j = k.find_some(key);
  if (!j) return layers;
  if (j->is_array()) {
    for (const auto& l : *j) layers.insert(schema::Reader::as_integer(key, l, {.at_least = 0, .at_most = 1e6}) + 1);
    return layers;
  }
  if (!j->is_string()) schema::wrong(key, "a text such as \"0,8\"", *j);
  const auto text = j->get<std::string>();
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    if (*at == ',' || *at == ' ') {
      ++at;
      continue;
    }
    std::int64_t layer = 0;
    const auto [next, error] = std::from_chars(at, end, layer);
    if (error != std::errc{} || layer < 0 || layer > 1'000'000) schema::wrong(key, "a text such as \"0,8\"", *j);
    layers.insert(layer + 1);
    at = next;
  }
  return layers;
}

template <class E>
E read_choice(const Keys& k, const char* key, const schema::Names<E>& names) {
  E value = names.front().second;
  const Json* j = k.find_some(key);
  if (!j) return value;
  schema::Reader r(k.json(), "");
  r.choice(key, value, names, "");
  return value;
}

void read_exact_layers(NormConfig& n, const Keys& k) {
  n.exact_first = k.integer("var_approx_exact_layers", 0, {.at_least = 0, .at_most = 1 << 14});  // the most layers a model may have
  std::set<std::int64_t> list = read_exact_list(k, "var_approx_exact_layer_list");
  if (list.empty()) return;
  for (std::int64_t l = 1; l <= n.exact_first; ++l) list.insert(l);  // both given: the layers of either
  n.exact_first = 0;
  n.exact_list.assign(list.begin(), list.end());
}

void read_layer_range(NormConfig& n, const Keys& k) {
  const Json* range = k.find_some("bhyt_layer_range");
  if (!range) return;
  if (!range->is_array() || range->size() != 2) schema::wrong("bhyt_layer_range", "two layers counted from 0, or null", *range);
  n.first_layer = schema::Reader::as_integer("bhyt_layer_range[0]", (*range)[0], {.at_least = 0, .at_most = 1e6}) + 1;
  n.last_layer = schema::Reader::as_integer("bhyt_layer_range[1]", (*range)[1], {.at_least = 0, .at_most = 1e6}) + 1;
  k.require("fallback_norm_type", "rms");
  n.elsewhere = "rmsnorm";
}

NormConfig read_reference_norm(const Keys& k) {
  NormConfig n;
  enum class Type { rms, bhyt, exact };
  const Type type =
      read_choice<Type>(k, "norm_type", {{"rms", Type::rms}, {"bhyt", Type::bhyt}, {"bhytline", Type::bhyt}, {"bhytstar", Type::exact}});
  n.method = type == Type::rms ? "rmsnorm" : type == Type::bhyt ? "bhyt" : "bhyt_exact";
  n.seq_len = k.find_some("seq_len") ? k.integer("seq_len", 0, {.at_least = 1}) : 0;
  if (type == Type::rms) return n;
  n.lambda = {read_lambda(k, "input_layer_lam", n.lambda[0], {.above = 0}), read_lambda(k, "post_layer_lam", n.lambda[1], {.above = 0})};
  n.learn_lambda = k.boolean("learnable_lam", false);
  n.kappa = k.number("bhyt_kappa", 10, {.above = 0});
  n.kappa_schedule = read_choice<KappaSchedule>(k, "bhyt_kappa_schedule",
                                                {{"constant", KappaSchedule::constant},
                                                 {"decay", KappaSchedule::decay},
                                                 {"grow", KappaSchedule::grow},
                                                 {"mild_grow", KappaSchedule::mild_grow}});
  read_layer_range(n, k);
  if (type == Type::exact) return n;  // ends in RMSNorm whatever last_layer_lam, and approximates nothing
  n.lambda_last = read_lambda(k, "last_layer_lam", 0, {.at_least = 0});
  n.correction = read_choice<Correction>(k, "var_approx_method",
                                         {{"baseline", Correction::none},
                                          {"beta", Correction::beta},
                                          {"eta", Correction::eta},
                                          {"residual_aware", Correction::residual_aware}});
  n.gamma_in_constant = k.boolean("use_gamma_var", false);
  read_exact_layers(n, k);
  if (const Json* list = k.find_some("var_approx_calibration")) {
    if (!list->is_array()) schema::wrong("var_approx_calibration", "a list of numbers or null", *list);
    for (const auto& f : *list) n.calibration.push_back(schema::Reader::as_number("var_approx_calibration", f, {.above = 0}));
  }
  return n;
}

constexpr ModelKeys kKeys = {.d = "hidden_size",
                             .layers = "num_hidden_layers",
                             .heads = "num_attention_heads",
                             .kv_heads = "num_key_value_heads",
                             .head_dim = "head_dim",
                             .mlp = "intermediate_size",
                             .vocab = "vocab_size",
                             .max_positions = "max_position_embeddings",
                             .theta = "rope_theta",
                             .eps = "rms_norm_eps",
                             .init_std = "initializer_range",
                             .factor = "factor",
                             .low = "low_freq_factor",
                             .high = "high_freq_factor",
                             .original = "original_max_position_embeddings"};

ModelConfig read_tree(const Json& json, const std::string& name) {
  check(json.is_object(), "must be a JSON object");
  const Keys k(json);
  ModelConfig c;
  read_llama(c, k);
  c.norm = read_reference_norm(k);
  c.embedding_scale = k.boolean("use_shared_scale", false) ? EmbeddingScaleKind::learned : EmbeddingScaleKind::none;
  if (const Json* own = k.find("norm")) {
    c.norm = NormConfig{};
    schema::read(c.norm, *own, "norm");
  }
  if (k.find("embedding_scale")) {
    schema::Reader r(json, "");
    r.choice("embedding_scale", c.embedding_scale, kEmbeddingScales, "");
  }
  validate(c, kKeys);
  const NormPlan plan = plan_norms(c.norm, c.layers, c.d, c.eps);
  const bool needs_length = std::any_of(plan.blocks.begin(), plan.blocks.end(), [](const BlockPlan& b) { return b.has_constant; });
  if (needs_length && c.norm.seq_len == 0) {
    c.norm.seq_len = c.max_positions;
    log::warning("{}: seq_len is missing; c_attn is computed with max_position_embeddings, {}", name, c.max_positions);
  }
  return c;
}

// A broken file is no wrong usage: the error becomes one of the work, with the file's name.
ModelConfig read_named(const Json& json, const std::string& name) try { return read_tree(json, name); } catch (const Error& e) {
  throw Error(fmt::format("{}: {}", name, e.what()));
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& name) { return read_named(parse_json(text, name), name); }

ModelConfig read_model_config(const std::filesystem::path& config_json) { return read_named(read_json(config_json), config_json.string()); }

}  // namespace bhyt
