#include "model/config_keys.h"

namespace bhyt {

const schema::Names<EmbeddingScaleKind> kEmbeddingScales = {
    {"none", EmbeddingScaleKind::none}, {"sqrt_d", EmbeddingScaleKind::sqrt_d}, {"learned", EmbeddingScaleKind::learned}};

namespace {

using schema::Json;

struct ScalingSection {
  RopeScaling& scaling;
};
template <class V>
void fields(ScalingSection& s, V& v) {
  v.number("factor", s.scaling.factor, "how much longer the positions reach", {.above = 0});
  v.number("low", s.scaling.low, "wavelengths over original/low are stretched fully", {.above = 0});
  v.number("high", s.scaling.high, "wavelengths under original/high are kept", {.above = 0});
  v.number("original", s.scaling.original, "positions of the first training", {.above = 0});
}

struct RopeSection {
  double& theta;
  RopeScaling& scaling;
};

void read_scaling(RopeScaling& scaling, const Json& j, const std::string& key) {
  if (j == "none") {
    scaling = {};
  } else if (j == "llama3" || j.is_object()) {
    scaling = {.kind = RopeScaling::Kind::llama3};
    ScalingSection section{scaling};
    if (j.is_object()) schema::read(section, j, key);
  } else {
    schema::wrong(key, "none, llama3 or {factor, low, high, original}", j);
  }
}

Json write_scaling(RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::none) return "none";
  ScalingSection section{scaling};
  return schema::write(section);
}

template <class V>
void fields(RopeSection& s, V& v) {
  v.number("theta", s.theta, "base of the rotary frequencies", {.above = 0});
  v.custom(
      "scaling", "none, llama3, or {factor, low, high, original}",
      [&](const Json& j, const std::string& key) { read_scaling(s.scaling, j, key); }, [&] { return write_scaling(s.scaling); });
}

template <class V>
void walk(ModelSection& s, V& v) {
  ModelConfig& c = s.config;
  const schema::Range positive{.at_least = 1};
  const auto shown = [](const std::string& text) { return text.empty() ? Json(Json::value_t::discarded) : Json(text); };
  v.custom(
      "preset", "tiny, small, llama-374m, llama-1b, llama-3b; the keys below override it",
      [&](const Json& j, const std::string& key) { apply_preset(c, schema::Reader::as_text(key, j)); }, [&] { return shown(c.preset); });
  v.integer("d", c.d, "width of the residual stream", positive);
  v.integer("layers", c.layers, "number of blocks", positive);
  v.integer("heads", c.heads, "query heads", positive);
  v.integer("kv_heads", c.kv_heads, "key/value heads; default: heads", positive);
  v.integer("head_dim", c.head_dim, "width of a head; default: d/heads", positive);
  v.integer("mlp", c.mlp, "width of the MLP", positive);
  v.custom(
      "vocab", "size of the vocabulary; default: the tokenizer's",
      [&](const Json& j, const std::string& key) {
        c.vocab = schema::Reader::as_integer(key, j, {.at_least = 1});
        s.vocab_given = true;
      },
      [&] { return c.vocab ? Json(c.vocab) : Json(Json::value_t::discarded); });
  v.boolean("tied", c.tied, "the LM head is the embedding");
  RopeSection rope{c.rope_theta, c.rope_scaling};
  v.section("rope", rope, "rotary positions");
  v.number("eps", c.eps, "inside the norms' square roots (the BHyT family has its own 1e-6)", {.above = 0});
  v.number("init_std", c.init_std, "standard deviation of the initial matrices", {.at_least = 0});
  v.integer("max_positions", c.max_positions, "longest sequence the model is meant for; data.seq_len where that is more", positive);
  v.choice("embedding_scale", c.embedding_scale, kEmbeddingScales, "factor on the embedding's output");
  v.custom(
      "init", "start from this checkpoint folder", [&](const Json& j, const std::string& key) { s.init = schema::Reader::as_text(key, j); },
      [&] { return shown(s.init); });
}

}  // namespace

void fields(ModelSection& s, schema::Reader& v) {
  walk(s, v);
  ModelConfig& c = s.config;
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0 && c.heads > 0) {
    check_usage(c.d % c.heads == 0, "model.d must be a multiple of model.heads unless model.head_dim is given, got {} and {}", c.d,
                c.heads);
    c.head_dim = c.d / c.heads;
  }
}
void fields(ModelSection& s, schema::Writer& v) { walk(s, v); }
void fields(ModelSection& s, schema::Lister& v) { walk(s, v); }

}  // namespace bhyt
