#include "model/model.h"

#include <cmath>

#include "core/check.h"

namespace bhyt {

namespace {

const ModelConfig& checked(const ModelConfig& config, DType type) {
  validate(config);
  check(type == DType::f32 || type == DType::bf16, "[model] expected fp32 or bf16, got {}", name_of(type));
  return config;
}

}  // namespace

Model::Model(Context& context, const ModelConfig& config, DType type, const Frozen& frozen)
    : config_(checked(config, type)),
      plan_(plan_norms(config.norm, config.layers, config.d, config.eps)),
      parameters_(context, config, type, frozen),
      weights_(parameters_.values()),
      c_attn_(context, DType::f32, {config.layers}),
      last_(make_site(plan_.last, weights_.last)) {
  zero(context, c_attn_);
  for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
    const Tensor own(c_attn_.t.as<float>() + l, DType::f32, context.device(), {1});
    blocks_.emplace_back(config_, plan_, static_cast<std::int64_t>(l) + 1, weights_.layers[l], own);
  }
}

void Model::refresh_constants() {
  bool needed = false;
  for (const BlockPlan& b : plan_.blocks) needed |= b.has_constant;
  if (!needed) return;
  check(config_.norm.seq_len > 0, "[model] the method {} needs norm.seq_len, the sequence length of its constant c_attn",
        config_.norm.method);
  for (const Block& b : blocks_) b.refresh_constant(context(), config_.norm.seq_len);
}

EmbeddingScale Model::embedding_scale() const {
  EmbeddingScale s;
  if (config_.embedding_scale == EmbeddingScaleKind::sqrt_d) s.constant = static_cast<float>(std::sqrt(static_cast<double>(config_.d)));
  s.learned = weights_.embedding_scale;
  return s;
}

}  // namespace bhyt
