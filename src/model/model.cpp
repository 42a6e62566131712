#include "model/model.h"

#include <cmath>

#include "core/check.h"
#include "ops/gemm/int8.h"
#include "ops/linear/linear.h"

namespace bhyt {

namespace {

const ModelConfig& checked(const ModelConfig& config, DType type) {
  validate(config);
  check(type == DType::f32 || type == DType::bf16, "[model] expected fp32 or bf16, got {}", name_of(type));
  return config;
}

const LoraConfig& checked(const LoraConfig& lora, const ModelConfig& config) {
  validate(lora, config);
  return lora;
}

}  // namespace

Model::Model(Context& context, const ModelConfig& config, DType type, const Frozen& frozen, const LoraConfig& lora)
    : config_(checked(config, type)),
      lora_(checked(lora, config)),
      plan_(plan_norms(config.norm, config.layers, config.d, config.eps)),
      parameters_(context, config, type, frozen, lora),
      weights_(parameters_.values()),
      c_attn_(context, DType::f32, {config.layers}),
      last_(make_site(plan_.last, weights_.last)) {
  zero(context, c_attn_);
  for (std::size_t l = 0; l < weights_.layers.size(); ++l) {
    const Tensor own(c_attn_.t.as<float>() + l, DType::f32, context.device(), {1});
    blocks_.emplace_back(config_, plan_, static_cast<std::int64_t>(l) + 1, weights_.layers[l], own, static_cast<float>(lora_.scale()));
  }
}

void Model::refresh_constants() {
  check(!repacked(), "[model] expected a model that is not repacked yet");
  bool needed = false;
  for (const BlockPlan& b : plan_.blocks) needed |= b.has_constant;
  if (!needed) return;
  check(config_.norm.seq_len > 0, "[model] the method {} needs norm.seq_len, the sequence length of its constant c_attn",
        config_.norm.method);
  for (const Block& b : blocks_) b.refresh_constant(context(), config_.norm.seq_len);
}

Tensor Model::repack_matrix(const Tensor& w, const NormSite* folded, bool int8) {
  if (!int8) {
    if (folded) scale_columns(context(), w, folded->gamma, folded->out_factor);
    return w;
  }
  std::vector<float> by;
  if (folded)
    for (std::int64_t i = 0; i < w.cols(); ++i) by.push_back(folded->gamma.as<float>()[i] * folded->out_factor);
  const Tensor factors = folded ? Tensor(by.data(), DType::f32, Device::cpu(), {w.cols()}) : Tensor{};
  const Buffer& memory = int8_.emplace_back(context(), static_cast<std::size_t>(w.rows() * int8_distance(w.cols())));
  const Tensor out = int8_matrix(memory.data(), w.rows(), w.cols());
  quantize_rows(context(), w, factors, out);
  if (w.data != weights_.embedding.data) parameters_.give_back(w);
  return out;
}

void Model::repack(const Repack& how) {
  check(!repacked(), "[model] expected a model that is not repacked yet");
  check(lora_.rank == 0, "[model] expected a model without adapters, or with adapters merged into it, to be repacked");
  check_usage(!how.int8 || !device().is_cuda(), "weights in int8 are for the CPU, the model is on {}", name_of(device()));
  constants_ = OwnedTensor(context(), DType::f32, {config_.layers});
  zero(context(), constants_);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    Block& block = blocks_[l];
    const Tensor constant(constants_.t.as<float>() + l, DType::f32, device(), {1});
    block.compute_constant(context(), constant);
    const bool fold1 = how.fold && can_fold(block.site1()), fold2 = how.fold && can_fold(block.site2());
    LayerWeights& w = weights_.layers[l];
    w.qkv = repack_matrix(w.qkv, fold1 ? &block.site1() : nullptr, how.int8);
    w.o = repack_matrix(w.o, nullptr, how.int8);
    w.gate_up = repack_matrix(w.gate_up, fold2 ? &block.site2() : nullptr, how.int8);
    w.down = repack_matrix(w.down, nullptr, how.int8);
    block.repack({.weights = w, .folded1 = fold1, .folded2 = fold2, .constant = constant});
  }
  // A tied head is the embedding, which has to stay what it is, unless it becomes a matrix of its own.
  const bool fold_last = how.fold && can_fold(last_) && (!config_.tied || how.int8);
  weights_.head = repack_matrix(weights_.head, fold_last ? &last_ : nullptr, how.int8);
  if (fold_last) drop_gain(last_);
}

EmbeddingScale Model::embedding_scale() const {
  EmbeddingScale s;
  if (config_.embedding_scale == EmbeddingScaleKind::sqrt_d) s.constant = static_cast<float>(std::sqrt(static_cast<double>(config_.d)));
  s.learned = weights_.embedding_scale;
  return s;
}

}  // namespace bhyt
