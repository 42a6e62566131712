// ModelConfig → config.json.
#include <algorithm>
#include <cmath>

#include "model/checkpoint.h"
#include "model/config_keys.h"
#include "ops/norm/config.h"

namespace bhyt {

namespace {

using schema::Json;

const char* torch_name(DType t) { return t == DType::bf16 ? "bfloat16" : t == DType::f16 ? "float16" : "float32"; }

bool is_plain(const SitePlan& s, double eps) {
  return s.stat == Stat::rms && s.map == Map::id && s.factor == 1 && s.out_factor == 1 && s.eps == static_cast<float>(eps) && !s.beta &&
         !s.shift && !s.seed && s.scale == ScaleKind::none;
}

bool is_plain(const ModelConfig& c, const NormPlan& plan) {
  return is_plain(plan.last, c.eps) && std::all_of(plan.blocks.begin(), plan.blocks.end(), [&](const BlockPlan& b) {
           return is_plain(b.site1, c.eps) && is_plain(b.site2, c.eps) && !b.out1 && !b.out2;
         });
}

// Positions are whole numbers to everyone else.
Json whole(double v) { return v == std::floor(v) && std::fabs(v) < 1e15 ? Json(static_cast<std::int64_t>(v)) : Json(v); }

Json or_null(bool given, Json value) { return given ? std::move(value) : Json(nullptr); }

std::string from_zero(const std::vector<std::int64_t>& layers) {
  std::string s;
  for (auto l : layers) s += (s.empty() ? "" : ",") + std::to_string(l - 1);
  return s;
}

// The reference's keys, where it has the method with these options. What only training sees (initial gains, refresh, auxiliary loss) is no
// obstacle.
void add_reference_keys(Json& j, const ModelConfig& c, bool plain) {
  const NormConfig& n = c.norm;
  if (c.embedding_scale == EmbeddingScaleKind::sqrt_d) return;
  if (n.gain == Gain::fixed_unit || n.depth_factor != Depth::none) return;  // it has no factors outside the map
  const bool approximate = n.method == "bhyt", exact = n.method == "bhyt_exact" && n.lambda_last == 0;
  if (!plain && !approximate && !exact) return;
  if (!plain && n.last_layer != 0 && n.elsewhere != "rmsnorm") return;
  j["norm_type"] = plain ? "rms" : approximate ? "bhyt" : "bhytstar";
  j["use_shared_scale"] = c.embedding_scale == EmbeddingScaleKind::learned;
  if (n.seq_len > 0) j["seq_len"] = n.seq_len;
  if (plain) return;
  j["input_layer_lam"] = n.lambda[0];
  j["post_layer_lam"] = n.lambda[1];
  j["last_layer_lam"] = n.lambda_last;
  j["learnable_lam"] = n.learn_lambda;
  j["bhyt_kappa"] = n.kappa;
  const char* const schedules[] = {"constant", "decay", "grow", "mild_grow"};
  j["bhyt_kappa_schedule"] = or_null(n.kappa_schedule != KappaSchedule::constant, schedules[static_cast<int>(n.kappa_schedule)]);
  const char* const corrections[] = {"baseline", "beta", "eta", "residual_aware"};
  j["var_approx_method"] = corrections[static_cast<int>(n.correction)];
  j["use_gamma_var"] = n.gamma_in_constant;
  j["var_approx_exact_layers"] = n.exact_first;
  j["var_approx_exact_layer_list"] = or_null(!n.exact_list.empty(), from_zero(n.exact_list));
  j["var_approx_calibration"] = or_null(!n.calibration.empty(), n.calibration);
  j["bhyt_layer_range"] = or_null(n.last_layer != 0, {n.first_layer - 1, n.last_layer - 1});
  j["fallback_norm_type"] = "rms";
}

}  // namespace

bool is_plain_llama(const ModelConfig& c) {
  return c.norm.method == "rmsnorm" && c.embedding_scale == EmbeddingScaleKind::none &&
         is_plain(c, plan_norms(c.norm, c.layers, c.d, c.eps));
}

std::string model_config_json(const ModelConfig& c, DType weights) {
  const bool plain = is_plain_llama(c);
  Json j;
  j["architectures"] = {plain ? "LlamaForCausalLM" : "BhytForCausalLM"};
  j["model_type"] = plain ? "llama" : "bhyt";
  if (!plain) j["auto_map"] = {{"AutoConfig", "configuration_bhyt.BhytConfig"}, {"AutoModelForCausalLM", "modeling_bhyt.BhytForCausalLM"}};
  j["vocab_size"] = c.vocab;
  j["hidden_size"] = c.d;
  j["intermediate_size"] = c.mlp;
  j["num_hidden_layers"] = c.layers;
  j["num_attention_heads"] = c.heads;
  j["num_key_value_heads"] = c.kv_heads;
  j["head_dim"] = c.head_dim;
  j["hidden_act"] = "silu";
  j["max_position_embeddings"] = c.max_positions;
  j["initializer_range"] = c.init_std;
  j["rms_norm_eps"] = c.eps;
  j["tie_word_embeddings"] = c.tied;
  j["attention_bias"] = false;
  j["mlp_bias"] = false;
  j["rope_theta"] = c.rope_theta;
  j["rope_scaling"] = nullptr;
  if (const RopeScaling& s = c.rope_scaling; s.kind == RopeScaling::Kind::llama3)
    j["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", s.factor},
                         {"low_freq_factor", s.low},
                         {"high_freq_factor", s.high},
                         {"original_max_position_embeddings", whole(s.original)}};
  j["bos_token_id"] = or_null(c.bos >= 0, c.bos);
  j["eos_token_id"] = or_null(!c.eos.empty(), c.eos.size() == 1 ? Json(c.eos[0]) : Json(c.eos));
  j["torch_dtype"] = torch_name(weights);
  j["use_cache"] = true;
  j["embedding_scale"] = "none";
  for (const auto& [name, kind] : kEmbeddingScales)
    if (kind == c.embedding_scale) j["embedding_scale"] = name;
  j["norm"] = schema::write(c.norm);
  add_reference_keys(j, c, c.norm.method == "rmsnorm" && is_plain(c, plan_norms(c.norm, c.layers, c.d, c.eps)));
  return j.dump(2) + "\n";
}

}  // namespace bhyt
