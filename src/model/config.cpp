#include "model/config.h"

#include "core/check.h"
#include "core/schema.h"

namespace bhyt {

namespace {

struct Preset {
  const char* name;
  std::int64_t d, layers, heads, kv_heads, head_dim, mlp, vocab;
  RopeScaling::Kind scaling;
  std::int64_t max_positions;
};
constexpr auto kNone = RopeScaling::Kind::none, kLlama3 = RopeScaling::Kind::llama3;
constexpr Preset kPresets[] = {
    {"tiny", 128, 4, 4, 2, 32, 352, 1024, kNone, 4096},
    {"small", 512, 16, 8, 4, 64, 1408, 8192, kNone, 4096},
    {"llama-374m", 1024, 16, 16, 4, 64, 4096, 128256, kLlama3, 131072},
    {"llama-1b", 2048, 16, 32, 8, 64, 8192, 128256, kLlama3, 131072},
    {"llama-3b", 3072, 28, 24, 8, 128, 8192, 128256, kLlama3, 131072},
};

// Bounds that keep every product of shapes far from overflow.
void check_size(const char* key, std::int64_t value, std::int64_t most) {
  check_usage(value >= 1 && value <= most, "{} must be between 1 and {}, got {}", key, most, value);
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.emplace_back(p.name);
  return names;
}

void apply_preset(ModelConfig& c, const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    c.preset = name;
    c.d = p.d;
    c.layers = p.layers;
    c.heads = p.heads;
    c.kv_heads = p.kv_heads;
    c.head_dim = p.head_dim;
    c.mlp = p.mlp;
    c.vocab = p.vocab;
    c.tied = true;
    c.rope_theta = 500000;
    c.rope_scaling = {.kind = p.scaling};
    c.eps = 1e-5;
    c.max_positions = p.max_positions;
    return;
  }
  const std::string near = schema::nearest(name, preset_names());
  throw UsageError(fmt::format("model.preset must be one of {}, got \"{}\"{}", fmt::join(preset_names(), ", "), name,
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
}

void validate(const ModelConfig& c, const ModelKeys& keys) {
  check_usage(c.d || c.layers || c.heads || c.mlp, "model: give preset ({}), or the shapes: d, layers, heads, mlp",
              fmt::join(preset_names(), ", "));
  check_size(keys.d, c.d, 1 << 22);
  check_size(keys.layers, c.layers, 1 << 14);
  check_size(keys.heads, c.heads, 1 << 14);
  check_size(keys.kv_heads, c.kv_heads, c.heads);
  check_size(keys.head_dim, c.head_dim, 1 << 14);
  check_size(keys.mlp, c.mlp, 1 << 24);
  check_size(keys.vocab, c.vocab, 1 << 28);
  check_size(keys.max_positions, c.max_positions, kMostPositions);
  check_usage(c.heads % c.kv_heads == 0, "{} must be a multiple of {}, got {} and {}", keys.heads, keys.kv_heads, c.heads, c.kv_heads);
  check_usage(c.head_dim % 2 == 0, "{} must be even (RoPE rotates pairs), got {}", keys.head_dim, c.head_dim);
  schema::check_range(keys.theta, c.rope_theta, {.above = 0});
  schema::check_range(keys.eps, c.eps, {.above = 0});
  schema::check_range(keys.init_std, c.init_std, {.at_least = 0});
  if (c.rope_scaling.kind == RopeScaling::Kind::llama3) {
    const RopeScaling& s = c.rope_scaling;
    schema::check_range(keys.factor, s.factor, {.above = 0});
    schema::check_range(keys.low, s.low, {.above = 0});
    schema::check_range(keys.original, s.original, {.above = 0});
    schema::check_range(keys.high, s.high, {.above = s.low});
  }
}

double flops_per_token(const ModelConfig& c, std::int64_t seq) {
  const double d = static_cast<double>(c.d), layers = static_cast<double>(c.layers);
  const double block = d * static_cast<double>(c.qkv_width() + c.q_width() + 3 * c.mlp);
  // Q·Kᵀ and P·V: 2·2·T·width forward, three times that with the backward, half of it under the causal mask.
  const double attention = 6.0 * static_cast<double>(seq) * static_cast<double>(c.q_width());
  return 6.0 * (layers * block + d * static_cast<double>(c.vocab)) + layers * attention;
}

}  // namespace bhyt
