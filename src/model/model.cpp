#include "model/model.h"

#include <cmath>

#include "core/check.h"
#include "core/memory.h"
#include "model/few_rows_pass.h"
#include "ops/gemm/bytes.h"
#include "ops/gemm/int8.h"
#include "ops/linear/linear.h"
#include "ops/norm/statistic.h"

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

Model::Model(Context& context, const ModelConfig& config, DType type, const Frozen& frozen, const LoraConfig& lora,
             const Borrowed& borrowed, std::int64_t shards)
    : config_(checked(config, type)),
      lora_(checked(lora, config)),
      plan_(plan_norms(config.norm, config.layers, config.d, config.eps)),
      parameters_(context, config, type, frozen, lora, borrowed, shards),
      weights_(parameters_.values()),
      few_(weights_),
      c_attn_(context, DType::f32, {config.layers}),
      last_(make_site(plan_.last, weights_.last)) {
  sums_.site1.resize(weights_.layers.size());
  sums_.site2.resize(weights_.layers.size());
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

Tensor Model::to_int8(const Tensor& w, const NormSite* folded) {
  std::vector<float> by;
  if (folded)
    for (std::int64_t i = 0; i < w.cols(); ++i) by.push_back(folded->gamma.as<float>()[i] * folded->out_factor);
  const Tensor factors = folded ? Tensor(by.data(), DType::f32, Device::cpu(), {w.cols()}) : Tensor{};
  const Buffer& memory = made_.emplace_back(context(), static_cast<std::size_t>(w.rows() * int8_distance(w.cols())));
  const Tensor out = int8_matrix(memory.data(), w.rows(), w.cols());
  quantize_rows(context(), w, factors, out);
  if (w.data != weights_.embedding.data) parameters_.give_back(w);
  return out;
}

// The site as it is once its gain is in the product behind it, if that can be: β, measured in γ, stays (γ·f + β = γ·(f + β/γ)), unless its
// mean square is more than `most`.
std::optional<NormSite> Model::without_gain(const NormSite& site, double most) {
  if (!site.gamma || site.gate || (site.beta && site.map != Map::id)) return {};
  NormSite bare = site;
  bare.gamma = {};
  bare.out_factor = 1;
  if (!site.beta) return bare;
  std::vector<float> gamma(static_cast<std::size_t>(site.gamma.size())), beta(gamma.size());
  to_host(context(), site.gamma, gamma.data());
  to_host(context(), site.beta, beta.data());
  double square = 0;
  for (std::size_t i = 0; i < beta.size(); ++i) {
    beta[i] /= gamma[i];
    square += static_cast<double>(beta[i]) * static_cast<double>(beta[i]);
  }
  if (!(square <= most * static_cast<double>(beta.size()))) return {};  // a γ of zero, too
  bare.beta = Tensor(made_.emplace_back(context(), site.beta.bytes()).data(), DType::f32, device(), {site.beta.size()});
  from_host(context(), beta.data(), bare.beta);
  return bare;
}

// Of a product that holds a site's gain; w as few rows multiply by it, bytes row by row.
WeightSums Model::sums_of(const Tensor& w, const NormSite& site) {
  WeightSums f;
  if (site.map != Map::id || type() != DType::bf16 || !FewRowsPass::takes(context(), config_, w.dtype)) return f;
  const auto room = [&] {
    return Tensor(made_.emplace_back(context(), static_cast<std::size_t>(w.rows()) * sizeof(float)).data(), DType::f32, device(),
                  {w.rows()});
  };
  if (is_centred(site.stat)) f.rows = room();
  if (site.beta) f.bias = room();
  if (f.rows || f.bias) few_rows_sum_weights(context(), w, site.beta, f);
  return f;
}

Model::Repacked Model::to_bytes(const Tensor& w, std::int64_t span, const Fold& fold, DType type) {
  const std::size_t size = byte_matrix_size(w.rows(), w.cols());
  const Buffer memory(context(), size);
  const Tensor rows = byte_matrix(memory.data(), type, device(), w.rows(), w.cols());
  round_to_bytes(context(), w, fold.bare ? fold.site.gamma : Tensor{}, fold.bare ? fold.site.out_factor : 1, rows);
  Tensor many = w;
  if (w.data == weights_.embedding.data) many.data = made_.emplace_back(context(), w.bytes()).data();  // the embedding stays what it is
  widen(context(), rows, many);
  if (!FewRowsPass::takes(context(), config_, type)) return {many, many, fold.bare ? sums_of(many, *fold.bare) : WeightSums{}};
  const Tensor few = byte_matrix(made_.emplace_back(context(), size).data(), type, device(), w.rows(), w.cols());
  few_rows_tiles(context(), rows, span, few);
  return {many, few, fold.bare ? sums_of(rows, *fold.bare) : WeightSums{}};
}

Model::Repacked Model::repack_matrix(const Tensor& w, std::int64_t span, const Fold& fold, std::optional<DType> type) {
  if (type && device().is_cuda()) return to_bytes(w, span, fold, *type);
  if (type) {
    const Tensor out = to_int8(w, fold.bare ? &fold.site : nullptr);
    return {out, out, {}};
  }
  if (!fold.bare) return {w, w, {}};
  scale_columns(context(), w, fold.site.gamma, fold.site.out_factor);
  return {w, w, sums_of(w, *fold.bare)};
}

void Model::repack(const Repack& how) {
  check(!repacked(), "[model] expected a model that is not repacked yet");
  check(lora_.rank == 0, "[model] expected a model without adapters, or with adapters merged into it, to be repacked");
  if (how.weights) {
    check(how.weights == DType::i8 || how.weights == DType::f8, "[model] expected weights in int8 or fp8, got {}", name_of(*how.weights));
    check_usage(how.weights == DType::i8 || device().is_cuda(),
                "weights in fp8 are for a GPU, the model is on {}: int8 is there for any device", device());
    check_usage(type() == DType::bf16 || !device().is_cuda(), "weights in {} on a GPU go with dtype=bf16, got {}", name_of(*how.weights),
                name_of(type()));
  }
  constants_ = OwnedTensor(context(), DType::f32, {config_.layers});
  zero(context(), constants_);
  // Each goes on as what it becomes.
  const auto take = [&](Tensor& many, Tensor& few, const Fold& fold, std::int64_t span = kTileRows) {
    const Repacked made = repack_matrix(many, span, fold, how.weights);
    many = made.many;
    few = made.few;
    return made.sums;
  };
  // β/γ multiplies how far off a weight is. int8 has one step for a row; in fp8 what is below a 450,000th of a row's largest is zero.
  const double most = how.weights == DType::i8 ? 1 : how.weights ? 1e6 : 1e12;
  const auto fold_of = [&](const NormSite& site, bool possible = true) {
    return Fold{site, how.fold && possible ? without_gain(site, most) : std::nullopt};
  };
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    Block& block = blocks_[l];
    const Tensor constant(constants_.t.as<float>() + l, DType::f32, device(), {1});
    block.compute_constant(context(), constant);
    const Fold first = fold_of(block.site1()), second = fold_of(block.site2());
    LayerWeights &w = weights_.layers[l], &few = few_.layers[l];
    sums_.site1[l] = take(w.qkv, few.qkv, first, config_.head_dim);
    take(w.o, few.o, {});
    sums_.site2[l] = take(w.gate_up, few.gate_up, second, 2 * config_.mlp);
    take(w.down, few.down, {});
    block.repack(
        {.weights = w, .site1 = first.bare.value_or(first.site), .site2 = second.bare.value_or(second.site), .constant = constant});
  }
  // A tied head is the embedding, which has to stay what it is, unless it becomes a matrix of its own.
  const Fold last = fold_of(last_, !config_.tied || how.weights);
  sums_.last = take(weights_.head, few_.head, last);
  last_ = last.bare.value_or(last_);
}

EmbeddingScale Model::embedding_scale() const {
  EmbeddingScale s;
  if (config_.embedding_scale == EmbeddingScaleKind::sqrt_d) s.constant = static_cast<float>(std::sqrt(static_cast<double>(config_.d)));
  s.learned = weights_.embedding_scale;
  return s;
}

}  // namespace bhyt
