#include "model/parameters.h"

#include <cmath>

#include "core/check.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace bhyt {

namespace {

constexpr std::int64_t kAlign = 64;  // elements; also what shards are cut by

std::int64_t align_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

std::uint64_t hash_name(const std::string& name) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

// Makes the list: every parameter a model has, in the order of the arena.
struct Lister {
  const ModelConfig& c;
  std::vector<Parameter> list;

  void matrix(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t layer, bool joined = false) {
    list.push_back({.name = name,
                    .shape = {rows, cols},
                    .layer = layer,
                    .size = rows * cols,
                    .decays = true,
                    .joined = joined,
                    .init_std = c.init_std});
  }
  Parameter& vector(const std::string& name, std::vector<std::int64_t> shape, std::int64_t layer, double value) {
    std::int64_t size = 1;
    for (auto n : shape) size *= n;
    return list.emplace_back(Parameter{.name = name, .shape = std::move(shape), .layer = layer, .size = size, .init_value = value});
  }
  void site(const std::string& name, const SitePlan& s, std::int64_t layer) {
    vector(name + ".weight", {c.d}, layer, s.gamma0);
    if (s.beta) vector(name + ".bias", {c.d}, layer, 0);
    // The reference keeps a frozen λ as a scalar.
    if (s.scale == ScaleKind::lambda)
      vector(name + ".lam", s.scale_frozen ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1}, layer, s.scale0).frozen =
          s.scale_frozen;
    if (s.scale == ScaleKind::alpha) vector(name + ".alpha", {1}, layer, s.scale0);
    if (s.shift) vector(name + ".shift", {1}, layer, 0);
    if (s.seed) {
      vector(name + ".gate", {c.d}, layer, 1).decays = true;
      vector(name + ".direction", {c.d}, layer, 0).decays = true;
    }
  }
  void corrections(const std::string& block, const BlockPlan& b, std::int64_t layer) {
    const auto add = [&](const char* name, double value) { vector(block + name, {}, layer, value).optional = !b.approximated; };
    switch (b.correction) {
      case Correction::none: return;
      case Correction::beta: return add("var_beta", 1);
      case Correction::eta: return add("var_eta", 0);
      case Correction::residual_aware: add("var_alpha", 1), add("var_cross_beta", 0);
    }
  }
  void block(std::int64_t i, const BlockPlan& b) {
    const std::string name = fmt::format("model.layers.{}.", i);
    const std::int64_t layer = i + 1;
    site(name + "input_layernorm", b.site1, layer);
    matrix(name + "self_attn.q_proj.weight", c.q_width(), c.d, layer);
    matrix(name + "self_attn.k_proj.weight", c.kv_width(), c.d, layer, true);
    matrix(name + "self_attn.v_proj.weight", c.kv_width(), c.d, layer, true);
    matrix(name + "self_attn.o_proj.weight", c.d, c.q_width(), layer);
    if (b.out1) site(name + "attn_out_norm", *b.out1, layer);
    corrections(name, b, layer);
    site(name + "post_attention_layernorm", b.site2, layer);
    matrix(name + "mlp.gate_proj.weight", c.mlp, c.d, layer);
    matrix(name + "mlp.up_proj.weight", c.mlp, c.d, layer, true);
    matrix(name + "mlp.down_proj.weight", c.d, c.mlp, layer);
    if (b.out2) site(name + "mlp_out_norm", *b.out2, layer);
  }
  void all(const NormPlan& plan) {
    matrix("model.embed_tokens.weight", c.vocab, c.d, 0);
    if (c.embedding_scale == EmbeddingScaleKind::learned) vector("model.shared_scale", {1}, 0, std::sqrt(static_cast<double>(c.d)));
    for (std::size_t i = 0; i < plan.blocks.size(); ++i) block(static_cast<std::int64_t>(i), plan.blocks[i]);
    site("model.norm", plan.last, c.layers + 1);
    if (!c.tied) matrix("lm_head.weight", c.vocab, c.d, c.layers + 1);
  }
};

// The view of a parameter: matrices keep their shape, scalars become [1].
Tensor shaped(void* data, DType type, Device device, const Parameter& p) {
  if (p.shape.size() == 2) return Tensor(data, type, device, {p.shape[0], p.shape[1]});
  return Tensor(data, type, device, {p.size});
}

}  // namespace

std::vector<Parameter> parameter_list(const ModelConfig& config) {
  Lister lister{config, {}};
  lister.all(plan_norms(config.norm, config.layers, config.d, config.eps));
  return std::move(lister.list);
}

Parameters::Parameters(const ModelConfig& config, Device device, DType type)
    : list_(parameter_list(config)), device_(device), type_(type), config_(config) {
  // Offsets: the weights of products first. An embedding that is not the head's too is read, not multiplied by.
  const auto multiplied = [&](const Parameter& p) { return p.shape.size() == 2 && (p.layer > 0 || config.tied); };
  for (const bool products : {true, false}) {
    for (Parameter& p : list_) {
      if (multiplied(p) != products) continue;
      p.offset = p.joined ? arena_size_ : align_up(arena_size_, kAlign);
      arena_size_ = p.offset + p.size;
    }
    if (products) product_elements_ = align_up(arena_size_, kAlign);
  }
  std::size_t bytes = 0;
  std::vector<std::size_t> places(list_.size());
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const Parameter& p = list_[i];
    index_[p.name] = i;
    if (type == DType::f32) {
      places[i] = static_cast<std::size_t>(p.offset) * sizeof(float);
      continue;
    }
    const std::size_t size = static_cast<std::size_t>(p.size) * size_of(p.shape.size() == 2 ? type : DType::f32);
    places[i] = p.joined ? bytes : (bytes + 255) / 256 * 256;
    bytes = places[i] + size;
  }
  arena_size_ = align_up(arena_size_, 1024);
  if (type == DType::f32) bytes = static_cast<std::size_t>(arena_size_) * sizeof(float);
  values_ = Buffer(device, bytes);
  device_zero(device, values_.data(), bytes);
  for (std::size_t i = 0; i < list_.size(); ++i)
    list_[i].value =
        shaped(static_cast<char*>(values_.data()) + places[i], list_[i].shape.size() == 2 ? type : DType::f32, device, list_[i]);
}

const Parameter* Parameters::find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &list_[it->second];
}

const Parameter& Parameters::at(const std::string& name) const {
  const Parameter* p = find(name);
  check(p != nullptr, "[parameters] expected a parameter named {}, the model has none", name);
  return *p;
}

std::int64_t Parameters::count() const {
  std::int64_t n = 0;
  for (const Parameter& p : list_) n += p.size;
  return n;
}

void Parameters::initialize(std::uint64_t seed, const ValueSink& sink) {
  std::vector<float> host;
  for (const Parameter& p : list_) {
    host.assign(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value));
    if (p.init_std > 0) {
      const std::uint64_t stream = hash_name(p.name);
      parallel_for((p.size + 1) / 2, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const auto pair = normal_pair(seed, stream, static_cast<std::uint64_t>(i));
          for (std::int64_t k = 2 * i; k < std::min(2 * i + 2, p.size); ++k)
            host[static_cast<std::size_t>(k)] = static_cast<float>(p.init_std * pair[static_cast<std::size_t>(k - 2 * i)]);
        }
      });
    }
    write_value(p, host.data());
    if (sink) sink(p, 0, p.size, host.data());
  }
}

std::vector<float> Parameters::read_value(const Parameter& p) const {
  std::vector<float> out(static_cast<std::size_t>(p.size));
  if (p.value.dtype == DType::f32) {
    device_copy(Device::cpu(), out.data(), device_, p.value.data, p.value.bytes());
    return out;
  }
  std::vector<bf16> raw(out.size());
  device_copy(Device::cpu(), raw.data(), device_, p.value.data, p.value.bytes());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(raw[i]);
  return out;
}

void Parameters::write_value(const Parameter& p, const float* data) const {
  if (p.value.dtype == DType::f32) {
    device_copy(device_, p.value.data, Device::cpu(), data, p.value.bytes());
    device_synchronize(device_);
    return;
  }
  std::vector<bf16> raw(static_cast<std::size_t>(p.size));
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = to_bf16(data[i]);
  device_copy(device_, p.value.data, Device::cpu(), raw.data(), p.value.bytes());
  device_synchronize(device_);
}

Tensor Parameters::qkv(std::int64_t layer) const {
  const Parameter& q = at(fmt::format("model.layers.{}.self_attn.q_proj.weight", layer));
  return Tensor(q.value.data, q.value.dtype, device_, {config_.qkv_width(), config_.d});
}

Tensor Parameters::gate_up(std::int64_t layer) const {
  const Parameter& g = at(fmt::format("model.layers.{}.mlp.gate_proj.weight", layer));
  return Tensor(g.value.data, g.value.dtype, device_, {2 * config_.mlp, config_.d});
}

Tensor Parameters::in_arena(const Tensor& arena, const Parameter& p) const {
  return shaped(static_cast<char*>(arena.data) + static_cast<std::size_t>(p.offset) * size_of(arena.dtype), arena.dtype, arena.device, p);
}

Tensor Parameters::qkv_in(const Tensor& arena, std::int64_t layer) const {
  const Parameter& q = at(fmt::format("model.layers.{}.self_attn.q_proj.weight", layer));
  return Tensor(arena.as<float>() + q.offset, DType::f32, arena.device, {config_.qkv_width(), config_.d});
}

Tensor Parameters::gate_up_in(const Tensor& arena, std::int64_t layer) const {
  const Parameter& g = at(fmt::format("model.layers.{}.mlp.gate_proj.weight", layer));
  return Tensor(arena.as<float>() + g.offset, DType::f32, arena.device, {2 * config_.mlp, config_.d});
}

std::vector<ArenaSpan> Parameters::spans() const {
  std::vector<ArenaSpan> out;
  for (const Parameter& p : list_)
    out.push_back({.offset = p.offset, .size = p.size, .value = p.value, .decays = p.decays, .frozen = p.frozen});
  return out;
}

}  // namespace bhyt
