// What a Llama-style model is: shapes, RoPE, norm. Presets, and the keys of the `model:` section.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/norm/methods.h"
#include "ops/rope/rope.h"

namespace bhyt {

enum class EmbeddingScaleKind : std::uint8_t { none, sqrt_d, learned };

struct ModelConfig {
  std::string preset;  // "" when given by shapes
  std::int64_t d = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp = 0, vocab = 0;
  bool tied = true;
  double rope_theta = 500000;
  RopeScaling rope_scaling;
  double eps = 1e-5;
  double init_std = 0.02;
  std::int64_t max_positions = 8192;
  EmbeddingScaleKind embedding_scale = EmbeddingScaleKind::none;
  std::int64_t bos = -1;  // -1 = none
  std::vector<std::int64_t> eos;
  NormConfig norm;

  std::int64_t q_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

// tiny, small, llama-374m, llama-1b, llama-3b; UsageError naming the nearest. Sets the shapes, tied, RoPE and eps; not norm.
void apply_preset(ModelConfig& c, const std::string& name);
std::vector<std::string> preset_names();

// What messages call the numbers of a model.
struct ModelKeys {
  const char *d = "model.d", *layers = "model.layers", *heads = "model.heads", *kv_heads = "model.kv_heads", *head_dim = "model.head_dim",
             *mlp = "model.mlp", *vocab = "model.vocab", *max_positions = "model.max_positions", *theta = "model.rope.theta",
             *eps = "model.eps", *init_std = "model.init_std", *factor = "model.rope.scaling.factor", *low = "model.rope.scaling.low",
             *high = "model.rope.scaling.high", *original = "model.rope.scaling.original";
};

constexpr std::int64_t kMostPositions = 1 << 30;

// Every shape positive, heads divisible by kv_heads, head_dim even, …; UsageError with the key.
void validate(const ModelConfig& c, const ModelKeys& keys = {});

// The length of the rows that the model was trained on where that is known, else the longest it is meant for.
inline std::int64_t trained_length(const ModelConfig& c) { return c.norm.seq_len > 0 ? c.norm.seq_len : c.max_positions; }

// Training FLOPs per token: 6 per matrix weight (LM head included, embedding look-up not) + causal attention.
double flops_per_token(const ModelConfig& c, std::int64_t seq);

}  // namespace bhyt
