#include "model/parameters.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>

#include "core/check.h"
#include "core/rng.h"

namespace bhyt {

namespace {

constexpr std::int64_t kAlign = 128;  // elements; also what shards are cut by

std::int64_t align_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

std::uint64_t hash_name(const std::string& name) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

// Makes the list: every parameter a model has, layer by layer; in a layer first vectors and scalars, then matrices.
struct Lister {
  const ModelConfig& c;
  const LoraConfig& lora;
  std::vector<Parameter> list = {};

  void matrix(Role role, const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t layer, bool joined = false) {
    list.push_back({.name = name,
                    .shape = {rows, cols},
                    .role = role,
                    .layer = layer,
                    .size = rows * cols,
                    .decays = true,
                    .joined = joined,
                    .init_std = c.init_std});
  }
  Parameter& vector(Role role, Site site, const std::string& name, std::vector<std::int64_t> shape, std::int64_t layer, double value) {
    std::int64_t size = 1;
    for (auto n : shape) size *= n;
    return list.emplace_back(
        Parameter{.name = name, .shape = std::move(shape), .role = role, .site = site, .layer = layer, .size = size, .init_value = value});
  }
  void site(Site place, const std::string& name, const SitePlan& s, std::int64_t layer) {
    vector(Role::gamma, place, name + ".weight", {c.d}, layer, s.gamma0);
    if (s.beta) vector(Role::beta, place, name + ".bias", {c.d}, layer, 0);
    // The reference keeps a frozen λ as a scalar.
    if (s.scale == ScaleKind::lambda)
      vector(Role::scale, place, name + ".lam", s.scale_frozen ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1}, layer,
             s.scale0)
          .frozen = s.scale_frozen;
    if (s.scale == ScaleKind::alpha) vector(Role::scale, place, name + ".alpha", {1}, layer, s.scale0);
    if (s.shift) vector(Role::shift, place, name + ".shift", {1}, layer, 0);
    if (s.seed) {
      vector(Role::gate, place, name + ".gate", {c.d}, layer, 1).decays = true;
      vector(Role::direction, place, name + ".direction", {c.d}, layer, 0).decays = true;
    }
  }
  void corrections(const std::string& block, const BlockPlan& b, std::int64_t layer) {
    const auto add = [&](Role role, const char* name, double value) {
      vector(role, Site::none, block + name, {}, layer, value).optional = !b.approximated;
    };
    switch (b.correction) {
      case Correction::none: return;
      case Correction::beta: return add(Role::constant_correction, "var_beta", 1);
      case Correction::eta: return add(Role::ms_correction, "var_eta", 0);
      case Correction::residual_aware: add(Role::constant_correction, "var_alpha", 1); add(Role::ms_correction, "var_cross_beta", 0);
    }
  }
  void block(std::int64_t i, const BlockPlan& b) {
    const std::string name = fmt::format("model.layers.{}.", i);
    const std::int64_t layer = i + 1;
    site(Site::site1, name + "input_layernorm", b.site1, layer);
    if (b.out1) site(Site::out1, name + "attn_out_norm", *b.out1, layer);
    corrections(name, b, layer);
    site(Site::site2, name + "post_attention_layernorm", b.site2, layer);
    if (b.out2) site(Site::out2, name + "mlp_out_norm", *b.out2, layer);
    matrix(Role::q, name + "self_attn.q_proj.weight", c.q_width(), c.d, layer);
    matrix(Role::k, name + "self_attn.k_proj.weight", c.kv_width(), c.d, layer, true);
    matrix(Role::v, name + "self_attn.v_proj.weight", c.kv_width(), c.d, layer, true);
    matrix(Role::o, name + "self_attn.o_proj.weight", c.d, c.q_width(), layer);
    matrix(Role::gate_projection, name + "mlp.gate_proj.weight", c.mlp, c.d, layer);
    matrix(Role::up_projection, name + "mlp.up_proj.weight", c.mlp, c.d, layer, true);
    matrix(Role::down, name + "mlp.down_proj.weight", c.d, c.mlp, layer);
    for (std::size_t i = 0; i < kProducts && lora.rank > 0; ++i) adapters(static_cast<Product>(i), name, layer);
  }
  // The A's of a product's targets side by side, so that they are one product too; then their B's.
  void adapters(Product product, const std::string& block, std::int64_t layer) {
    std::vector<Projection> targets;
    for (const Projection t : lora.targets)
      if (product_of(t) == product && lora.adapts(t, layer - 1)) targets.push_back(t);
    const auto add = [&](Role role, Projection t, const char* name, std::int64_t rows, std::int64_t cols, bool joined) {
      matrix(role, block + std::string(module_of(t)) + name, rows, cols, layer, joined);
      list.back().projection = t;
      list.back().init_std = 0;
    };
    for (const Projection t : targets) {
      add(Role::lora_a, t, ".lora_A.weight", lora.rank, inputs_of(t, c), t != targets.front());
      list.back().init_bound = 1 / std::sqrt(static_cast<double>(inputs_of(t, c)));
    }
    for (const Projection t : targets) add(Role::lora_b, t, ".lora_B.weight", outputs_of(t, c), lora.rank, false);
  }
  void all(const NormPlan& plan) {
    matrix(Role::embedding, "model.embed_tokens.weight", c.vocab, c.d, 0);
    if (c.embedding_scale == EmbeddingScaleKind::learned)
      vector(Role::embedding_scale, Site::none, "model.shared_scale", {1}, 0, std::sqrt(static_cast<double>(c.d)));
    for (std::size_t i = 0; i < plan.blocks.size(); ++i) block(static_cast<std::int64_t>(i), plan.blocks[i]);
    site(Site::last, "model.norm", plan.last, c.layers + 1);
    if (!c.tied) matrix(Role::head, "lm_head.weight", c.vocab, c.d, c.layers + 1);
  }
};

SiteWeights& site_of(Weights& w, const Parameter& p) {
  if (p.site == Site::last) return w.last;
  LayerWeights& layer = w.layers[static_cast<std::size_t>(p.layer - 1)];
  switch (p.site) {
    case Site::site1: return layer.site1;
    case Site::site2: return layer.site2;
    case Site::out1: return layer.out1;
    default: return layer.out2;
  }
}

// A parameter's place in the structure; q's and gate's hold what is joined to them.
Tensor& slot(Weights& w, const Parameter& p) {
  const auto layer = [&]() -> LayerWeights& { return w.layers[static_cast<std::size_t>(p.layer - 1)]; };
  switch (p.role) {
    case Role::embedding: return w.embedding;
    case Role::embedding_scale: return w.embedding_scale;
    case Role::head: return w.head;
    case Role::q:
    case Role::k:
    case Role::v: return layer().qkv;
    case Role::o: return layer().o;
    case Role::gate_projection:
    case Role::up_projection: return layer().gate_up;
    case Role::down: return layer().down;
    case Role::gamma: return site_of(w, p).gamma;
    case Role::beta: return site_of(w, p).beta;
    case Role::scale: return site_of(w, p).scale;
    case Role::shift: return site_of(w, p).shift;
    case Role::gate: return site_of(w, p).gate;
    case Role::direction: return site_of(w, p).direction;
    case Role::ms_correction: return layer().ms_correction;
    case Role::constant_correction: return layer().constant_correction;
    case Role::lora_a: return layer().lora[static_cast<std::size_t>(product_of(p.projection))].a;
    case Role::lora_b: return layer().lora[static_cast<std::size_t>(product_of(p.projection))].b[part_of(p.projection)];
  }
  throw Error("[parameters] expected a known role");
}

// The view of a parameter: matrices keep their shape, scalars become [1].
Tensor shaped(void* data, DType type, Device device, const Parameter& p) {
  if (p.shape.size() == 2) return Tensor(data, type, device, {p.shape[0], p.shape[1]});
  return Tensor(data, type, device, {p.size});
}

bool is_matrix(const Parameter& p) { return p.shape.size() == 2; }

DType stored_as(const Parameter& p, DType type) { return is_matrix(p) ? type : DType::f32; }

}  // namespace

bool of_norm(const Parameter& p) { return p.site != Site::none || p.role == Role::ms_correction || p.role == Role::constant_correction; }

std::vector<Parameter> parameter_list(const ModelConfig& config, const LoraConfig& lora) {
  Lister lister{config, lora};
  lister.all(plan_norms(config.norm, config.layers, config.d, config.eps));
  if (lora.active())
    for (Parameter& p : lister.list) p.frozen |= !p.adapter() && !(lora.train_norms && of_norm(p));
  return std::move(lister.list);
}

Parameters::Parameters(Context& context, const ModelConfig& config, DType type, const Frozen& frozen, const LoraConfig& lora,
                       const Borrowed& borrowed, std::int64_t shards)
    : list_(parameter_list(config, lora)), lender_(borrowed.lender), shards_(shards), context_(&context), type_(type), config_(config) {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    Parameter& p = list_[i];
    index_[p.name] = i;
    if (frozen && frozen(p)) p.frozen = true;
    check(!p.joined || p.frozen == list_[i - 1].frozen, "[parameters] expected {} and {} to be frozen together or not at all",
          list_[i - 1].name, p.name);
  }
  lay_arena();
  lay_values(borrowed);
}

Parameters Parameters::layout(const ModelConfig& config, DType type, const LoraConfig& lora, std::int64_t shards) {
  Parameters p;
  p.list_ = parameter_list(config, lora);
  p.type_ = type;
  p.config_ = config;
  p.shards_ = shards;
  p.lay_arena();
  return p;
}

Parameters::Sizes Parameters::planned(const ModelConfig& config, DType type, const LoraConfig& lora, std::int64_t shards) {
  Parameters p = layout(config, type, lora, shards);
  Sizes sizes{.arena = p.arena_size_};
  p.places(sizes.value_bytes);
  return sizes;
}

// Vectors and scalars first, then the matrices; those of a section lie as they do in arenas, unless some values are borrowed.
std::vector<std::size_t> Parameters::places(std::size_t& bytes) {
  constexpr std::size_t kLine = 256;
  std::vector<std::size_t> out(list_.size());
  bytes = 0;
  const auto next_line = [&] { return (bytes + kLine - 1) / kLine * kLine; };
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (is_matrix(list_[i])) continue;
    out[i] = next_line();
    if (!list_[i].borrowed) bytes = out[i] + static_cast<std::size_t>(list_[i].size) * sizeof(float);
  }
  const std::size_t element = size_of(type_);
  const bool borrows = std::ranges::any_of(list_, &Parameter::borrowed);
  auto section = sections_.begin();
  std::size_t begin = 0;  // of the section
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const Parameter& p = list_[i];
    if (!is_matrix(p)) continue;
    if (p.frozen || borrows) {
      out[i] = p.joined ? bytes : next_line();
      if (!p.borrowed) bytes = out[i] + static_cast<std::size_t>(p.size) * element;
      continue;
    }
    if (p.layer != section->layer) ++section;
    if (p.offset == section->offset) {
      begin = next_line();
      bytes = begin + static_cast<std::size_t>(section->size) * element;
    }
    out[i] = begin + static_cast<std::size_t>(p.offset - section->offset) * element;
  }
  return out;
}

void Parameters::lay_values(const Borrowed& borrowed) {
  std::vector<void*> elsewhere(list_.size());
  for (std::size_t i = 0; borrowed.find && i < list_.size(); ++i) {
    elsewhere[i] = borrowed.find(list_[i]);
    list_[i].borrowed = elsewhere[i] != nullptr;
  }
  std::size_t bytes = 0;
  const std::vector<std::size_t> at = places(bytes);
  values_ = Buffer(*context_, bytes);
  if (!borrowed.rest_is_written) context_->zero(values_.data(), bytes);
  for (std::size_t i = 0; i < list_.size(); ++i)
    list_[i].value = shaped(list_[i].borrowed ? elsewhere[i] : static_cast<char*>(values_.data()) + at[i], stored_as(list_[i], type_),
                            device(), list_[i]);
  if (std::ranges::any_of(list_, &Parameter::borrowed)) return;  // for no training
  for (Section& s : sections_)
    for (const Parameter& p : list_)
      if (p.offset == s.offset) s.values = Tensor(p.value.data, type_, device(), {s.size});
}

void Parameters::lay_arena() {
  std::int64_t end = 0;
  for (Parameter& p : list_) {
    if (p.frozen || is_matrix(p)) continue;
    p.offset = align_up(end, kAlign);
    end = p.offset + p.size;
  }
  vectors_ = align_up(end, kAlign);
  end = vectors_;
  const auto close = [&] {  // the section that is open
    if (sections_.empty()) return;
    Section& s = sections_.back();
    s.size = align_up(end - s.offset, shards_ * kAlign);
    end = s.offset + s.size;
  };
  for (Parameter& p : list_) {
    if (p.frozen || !is_matrix(p)) continue;
    if (sections_.empty() || sections_.back().layer != p.layer) {
      close();
      sections_.push_back({.layer = p.layer, .offset = end});
    }
    p.offset = p.joined ? end : align_up(end, kAlign);
    end = p.offset + p.size;
  }
  close();
  arena_size_ = align_up(end, 1024);
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

std::int64_t Parameters::trained() const {
  std::int64_t n = 0;
  for (const Parameter& p : list_) n += p.frozen ? 0 : p.size;
  return n;
}

Tensor Parameters::whole(void* data, DType type, std::size_t i) const {
  Tensor t = shaped(data, type, device(), list_[i]);
  while (++i < list_.size() && list_[i].joined) t.shape[0] += list_[i].shape[0];
  return t;
}

Weights Parameters::values() const {
  Weights w;
  w.layers.resize(static_cast<std::size_t>(config_.layers));
  for (std::size_t i = 0; i < list_.size(); ++i)
    if (const Parameter& p = list_[i]; !p.joined) slot(w, p) = whole(p.value.data, p.value.dtype, i);
  if (config_.tied) w.head = w.embedding;
  return w;
}

Weights Parameters::bind(DType type, const Place& place) const {
  Weights w;
  w.layers.resize(static_cast<std::size_t>(config_.layers));
  for (std::size_t i = 0; i < list_.size(); ++i)
    if (const Parameter& p = list_[i]; !p.joined && !p.frozen) slot(w, p) = whole(place(p), type, i);
  if (config_.tied) w.head = w.embedding;
  return w;
}

Weights Parameters::bind(const Tensor& arena) const {
  check(arena.size() == arena_size_, "[parameters] expected an arena of {} elements, got {}", arena_size_, arena.size());
  return bind(arena.dtype, [&](const Parameter& p) {
    return static_cast<char*>(arena.data) + static_cast<std::size_t>(p.offset) * size_of(arena.dtype);
  });
}

Tensor Parameters::in_arena(const Tensor& arena, const Parameter& p) const {
  if (p.frozen) return {};
  return shaped(static_cast<char*>(arena.data) + static_cast<std::size_t>(p.offset) * size_of(arena.dtype), arena.dtype, arena.device, p);
}

void Parameters::initialize(std::uint64_t seed, const ValueSink& sink) const {
  for (const Parameter& p : list_) draw(p, seed, sink);
}

void Parameters::initialize_adapters(std::uint64_t seed, const ValueSink& sink) const {
  for (const Parameter& p : list_)
    if (p.adapter()) draw(p, seed, sink);
}

void Parameters::draw(const Parameter& p, std::uint64_t seed, const ValueSink& sink) const {
  std::vector<float> host(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value));
  if (p.init_std > 0 || p.init_bound > 0) {
    const std::uint64_t stream = hash_name(p.name);
    const auto pair_at = [&](std::uint64_t i) -> std::array<double, 2> {
      if (p.init_std > 0) {
        const auto z = normal_pair(seed, stream, i);
        return {p.init_std * z[0], p.init_std * z[1]};
      }
      const Philox r = philox(seed, stream, i);
      return {p.init_bound * (2 * uniform53(r.v[0], r.v[1]) - 1), p.init_bound * (2 * uniform53(r.v[2], r.v[3]) - 1)};
    };
    parallel_for(context_->threads(), (p.size + 1) / 2, 1 << 13, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto pair = pair_at(static_cast<std::uint64_t>(i));
        for (std::int64_t k = 2 * i; k < std::min(2 * i + 2, p.size); ++k)
          host[static_cast<std::size_t>(k)] = static_cast<float>(pair[static_cast<std::size_t>(k - 2 * i)]);
      }
    });
  }
  write_value(p, host.data());
  if (sink) sink(p, 0, p.size, host.data());
}

void Parameters::give_back(const Tensor& values) const {
  if (device().is_cuda()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)), at = reinterpret_cast<std::uintptr_t>(values.data);
  const std::uintptr_t first = (at + page - 1) / page * page, last = (at + values.bytes()) / page * page;  // whole pages
  if (last > first) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

std::vector<float> Parameters::read_value(const Parameter& p) const {
  std::vector<float> out(static_cast<std::size_t>(p.size));
  if (p.value.dtype == DType::f32) {
    to_host(*context_, p.value, out.data());
    return out;
  }
  std::vector<bf16> raw(out.size());
  to_host(*context_, p.value, raw.data());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(raw[i]);
  return out;
}

void Parameters::write_value(const Parameter& p, const float* data) const {
  check(!p.borrowed, "[parameters] expected values of its own to write, {} lies in memory of others", p.name);
  if (p.value.dtype == DType::f32) return from_host(*context_, data, p.value);
  std::vector<bf16> raw(static_cast<std::size_t>(p.size));
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = to_bf16(data[i]);
  from_host(*context_, raw.data(), p.value);
}

}  // namespace bhyt
