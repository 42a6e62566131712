#include "model/model.h"

#include <cmath>
#include <string>
#include <utility>

#include "core/check.h"
#include "model/block.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"

namespace bhyt {

namespace {

// Lays tensors one behind the other in a buffer; with a null base it only measures.
struct Layout {
  char* base = nullptr;
  Device device;
  std::size_t bytes = 0;

  Tensor take(DType type, std::initializer_list<std::int64_t> dims) {
    Tensor t(nullptr, type, device, dims);
    t.data = base ? base + bytes : nullptr;
    bytes += (t.bytes() + 255) / 256 * 256;
    return t;
  }
};

// Everything a pass over N tokens writes.
struct Activations {
  std::vector<Kept> kept;
  Scratch scratch;
  Kept shared;                 // recomputed or unkept parts, one for all blocks
  Tensor last, last_stats, z;  // the final norm: what it saw, its statistics, its output
  Tensor workspace;            // of the cross entropy
};

}  // namespace

class Model::Cache {
 public:
  Buffer memory;
  std::vector<Tensor> keys_values;  // per block [capacity, 2·K·D]
  std::int64_t length = 0, capacity = 0;
};

struct Model::Impl {
  ModelConfig config;
  NormPlan plan;
  Device device;
  DType type;
  Parameters parameters;
  OwnedTensor c_attn, constants;  // fp32 [L] each
  OwnedTensor rope;
  std::vector<Block> blocks;
  NormSite last;
  Observer observer;

  std::int64_t max_batch = 0, max_seq = 0;
  bool backward = false;
  Recompute recompute = Recompute::none;
  Buffer memory;
  Activations act;
  std::int64_t tokens = 0;  // of the last forward

  Impl(const ModelConfig& c, Device d, DType t)
      : config(c),
        plan(plan_norms(c.norm, c.layers, c.d, c.eps)),
        device(d),
        type(t),
        parameters(c, d, t),
        c_attn(d, DType::f32, {c.layers}),
        constants(d, DType::f32, {c.layers}) {
    zero(c_attn);
    zero(constants);
    for (std::int64_t l = 0; l < c.layers; ++l) {
      const auto one = [&](const OwnedTensor& all) { return Tensor(all.t.as<float>() + l, DType::f32, d, {1}); };
      blocks.emplace_back(config, plan.blocks[static_cast<std::size_t>(l)], plan, parameters, l, one(c_attn), one(constants));
    }
    last = make_site(plan.last, parameters, "model.norm");
  }

  Tensor head() const { return parameters.at(config.tied ? "model.embed_tokens.weight" : "lm_head.weight").value; }
  Tensor embedding_table() const { return parameters.at("model.embed_tokens.weight").value; }

  EmbeddingScale embedding_scale(const Tensor& gradients) const {
    EmbeddingScale s;
    if (config.embedding_scale == EmbeddingScaleKind::sqrt_d) s.constant = static_cast<float>(std::sqrt(static_cast<double>(config.d)));
    if (config.embedding_scale == EmbeddingScaleKind::learned) {
      const Parameter& p = parameters.at("model.shared_scale");
      s.learned = p.value;
      if (gradients) s.dlearned = parameters.in_arena(gradients, p);
    }
    return s;
  }

  void ensure_positions(std::int64_t n) {
    if (rope.t && rope.t.rows() >= n) return;
    rope = rope_table(n, config.head_dim, config.rope_theta, config.rope_scaling, device);
  }

  bool keeps_z() const { return backward && recompute == Recompute::none; }
  bool keeps_h() const { return backward && (recompute == Recompute::none || recompute == Recompute::norm); }
  bool keeps_block() const { return backward && recompute != Recompute::block; }

  // The parts of Kept that a block's backward recomputes, or that no backward asks for, are one set for all blocks.
  Kept lay_block(Layout& at, std::int64_t n, std::int64_t batch, std::int64_t seq, const BlockPlan* p, bool body, bool z, bool h) const {
    Kept k;
    const auto act = [&](std::int64_t cols) { return at.take(type, {n, cols}); };
    const auto stats = [&] { return at.take(DType::f32, {2, n}); };
    if (body) {
      k.stats1 = stats();
      k.stats2 = stats();
      if (plan.aux_loss > 0) k.exact = at.take(DType::f32, {n});
      k.qkv = act(config.qkv_width());
      k.att = act(config.q_width());
      k.lse = at.take(DType::f32, {batch, config.heads, seq});
      k.x2 = act(config.d);
      k.gate_up = act(2 * config.mlp);
      const bool out = p ? p->out1.has_value() : any_out();
      if (out) k.out1 = act(config.d), k.out2 = act(config.d), k.stats_out1 = stats(), k.stats_out2 = stats();
    }
    if (z) k.z1 = act(config.d), k.z2 = act(config.d);
    if (h) k.h = act(config.mlp);
    return k;
  }
  bool any_out() const {
    for (const BlockPlan& b : plan.blocks)
      if (b.out1) return true;
    return false;
  }

  Activations lay(Layout& at, std::int64_t batch, std::int64_t seq) const {
    const std::int64_t n = batch * seq;
    const auto act = [&](std::int64_t cols) { return at.take(type, {n, cols}); };
    Activations a;
    a.shared = lay_block(at, n, batch, seq, nullptr, !keeps_block(), !keeps_z(), !keeps_h());
    Tensor stream;  // without a backward the stream lives in one place
    for (const BlockPlan& p : plan.blocks) {
      Kept k = lay_block(at, n, batch, seq, &p, keeps_block(), keeps_z(), keeps_h());
      if (backward || !stream) stream = act(config.d);
      k.x = stream;
      if (!keeps_block()) {
        const Tensor x = k.x;
        const Kept own = k;
        k = a.shared;
        k.x = x;
        if (own.z1) k.z1 = own.z1, k.z2 = own.z2;
        if (own.h) k.h = own.h;
        if (!backward) k.x2 = stream;
      }
      if (!keeps_z()) k.z1 = a.shared.z1, k.z2 = a.shared.z2;
      if (!keeps_h()) k.h = a.shared.h;
      if (!p.out1) k.out1 = k.out2 = Tensor{};
      a.kept.push_back(k);
    }
    a.last = backward ? act(config.d) : stream;
    a.last_stats = at.take(DType::f32, {2, n});
    a.z = act(config.d);
    // The blocks' scratch and the loss's workspace are never in use at the same time.
    const std::size_t shared = at.bytes;
    const std::size_t room = cross_entropy_workspace(n, config.d, config.vocab, type, device);
    a.workspace = at.take(DType::u8, {static_cast<std::int64_t>(room)});
    const std::size_t end = std::exchange(at.bytes, shared);
    a.scratch.branch = act(config.d);
    if (backward) {
      a.scratch.dx = act(config.d);
      if (any_out()) a.scratch.dbranch = act(config.d);
      a.scratch.dqkv = act(config.qkv_width());
      a.scratch.datt = act(config.q_width());
      a.scratch.dms = at.take(DType::f32, {n});
    }
    at.bytes = std::max(at.bytes, end);
    return a;
  }

  std::size_t activation_bytes(std::int64_t batch, std::int64_t seq) const {
    Layout measure{nullptr, device, 0};
    lay(measure, batch, seq);
    return measure.bytes;
  }

  void prepare(std::int64_t batch, std::int64_t seq, bool with_backward, Recompute r) {
    check(batch > 0 && seq > 0, "[model] expected at least one token, got {} × {}", batch, seq);
    backward = with_backward;
    recompute = r;
    max_batch = batch;
    max_seq = seq;
    memory = Buffer();
    memory = Buffer(device, activation_bytes(batch, seq));
    ensure_positions(seq);
  }

  // Lays the activations out for this batch's shape, inside what prepare() took; asks for more where that is too small.
  void bind(const Batch& b, bool with_backward) {
    if (!memory.data() || (with_backward && !backward)) prepare(b.batch, b.seq, with_backward, recompute);
    if (activation_bytes(b.batch, b.seq) > memory.bytes()) prepare(b.batch, b.seq, backward, recompute);
    ensure_positions(b.seq);
    Layout at{static_cast<char*>(memory.data()), device, 0};
    act = lay(at, b.batch, b.seq);
    tokens = b.batch * b.seq;
  }

  Positions positions(const Batch& b) const {
    Positions at{.batch = b.batch, .seq = b.seq, .start = 0, .table = rope.t, .positions = b.positions, .first = b.first};
    return at;
  }

  void see(std::string_view what, std::int64_t layer, const Tensor& x) const {
    if (observer) observer(what, layer, x);
  }

  // Embedding, blocks and final norm; the last norm's output is act.z.
  void forward(const Batch& b, float aux) {
    const Positions at = positions(b);
    embedding(b.tokens, embedding_table(), act.kept[0].x, embedding_scale({}));
    see("embedding", 0, act.kept[0].x);
    Stream stream{act.kept[0].x, {}};
    for (std::size_t l = 0; l < blocks.size(); ++l) {
      if (l > 0 && observer) observe_pending(stream, static_cast<std::int64_t>(l));
      blocks[l].forward(stream, act.kept[l], act.scratch, at, aux);
    }
    if (observer) observe_pending(stream, config.layers);
    norm(last, {.x = stream.x, .add = stream.pending, .sum = act.last, .z = act.z, .stats = act.last_stats});
  }

  // A block's output exists only inside the next norm's kernel; for an observer it is made here.
  void observe_pending(const Stream& stream, std::int64_t layer) {
    OwnedTensor sum(device, type, {tokens, config.d}), z(device, type, {tokens, config.d});
    norm(last, {.x = stream.x, .add = stream.pending, .sum = sum, .z = z});
    see("block", layer, sum);
  }

  void backward_pass(const Batch& b, const Step& step, float aux) {
    const Positions at = positions(b);
    const Tensor& g = step.gradients;
    norm_backward(last, site_grads(parameters, g, "model.norm"),
                  {.x = act.last, .stats = act.last_stats, .dz = act.z, .dx = act.scratch.dx, .accumulate = false});
    for (std::size_t l = blocks.size(); l-- > 0;) {
      const Kept& k = act.kept[l];
      if (recompute == Recompute::block) {
        Stream stream{k.x, {}};
        blocks[l].forward(stream, k, act.scratch, at, aux);
      } else {
        if (!keeps_z()) blocks[l].recompute_norms(k);
      }
      blocks[l].backward(k, act.scratch, at, g,
                         {.aux = aux, .accumulate = step.accumulate, .h_was_kept = keeps_h() || recompute == Recompute::block});
    }
    embedding_backward(b.tokens, embedding_table(), act.scratch.dx, parameters.in_arena(g, parameters.at("model.embed_tokens.weight")),
                       embedding_scale(g));
  }

  // A cached decode of n tokens: activations for them alone.
  void decode(Cache& cache, const std::int32_t* ids, std::int64_t n, std::vector<float>& logits) {
    check(cache.length + n <= cache.capacity, "[generate] expected at most {} tokens, got {}", cache.capacity, cache.length + n);
    OwnedTensor on_device(device, DType::i32, {1, n});
    device_copy(device, on_device.t.data, Device::cpu(), ids, on_device.t.bytes());
    const Batch b{.batch = 1, .seq = n, .tokens = on_device.t, .targets = {}, .weights = {}, .positions = {}, .first = {}};
    bind(b, false);
    ensure_positions(cache.capacity);
    Positions at = positions(b);
    at.start = cache.length;
    embedding(b.tokens, embedding_table(), act.kept[0].x, embedding_scale({}));
    Stream stream{act.kept[0].x, {}};
    for (std::size_t l = 0; l < blocks.size(); ++l) blocks[l].decode(stream, act.kept[l], act.scratch, at, cache.keys_values[l]);
    norm(last, {.x = stream.x, .add = stream.pending, .sum = act.last, .z = act.z, .stats = act.last_stats});
    cache.length += n;
    OwnedTensor out(device, DType::f32, {1, config.vocab});
    gemm(act.z.row_slice(n - 1, 1), head(), out, {.trans_b = true});
    logits.resize(static_cast<std::size_t>(config.vocab));
    device_copy(Device::cpu(), logits.data(), device, out.t.data, out.t.bytes());
  }
};

Model::Model(const ModelConfig& config, Device device, DType type) {
  validate(config);
  check(type == DType::f32 || type == DType::bf16, "[model] expected fp32 or bf16, got {}", name_of(type));
  impl_ = std::make_unique<Impl>(config, device, type);
}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const ModelConfig& Model::config() const { return impl_->config; }
const NormPlan& Model::norms() const { return impl_->plan; }
Parameters& Model::parameters() { return impl_->parameters; }
const Parameters& Model::parameters() const { return impl_->parameters; }
Device Model::device() const { return impl_->device; }
DType Model::type() const { return impl_->type; }
Tensor Model::constants() const { return impl_->c_attn.t; }
void Model::set_observer(Observer observer) { impl_->observer = std::move(observer); }

void Model::refresh_constants() {
  bool needed = false;
  for (const BlockPlan& b : impl_->plan.blocks) needed |= b.has_constant;
  if (!needed) return;
  const std::int64_t seq_len = impl_->config.norm.seq_len;
  check(seq_len > 0, "[model] the method {} needs norm.seq_len, the sequence length of its constant c_attn", impl_->config.norm.method);
  for (const Block& b : impl_->blocks) b.refresh_constant(seq_len);
}

void Model::prepare(std::int64_t batch, std::int64_t seq, bool backward, Recompute recompute) {
  impl_->prepare(batch, seq, backward, recompute);
}

std::size_t Model::planned_bytes(std::int64_t batch, std::int64_t seq, Recompute recompute) const {
  const bool backward = std::exchange(impl_->backward, true);
  const Recompute before = std::exchange(impl_->recompute, recompute);
  const std::size_t bytes = impl_->activation_bytes(batch, seq);
  impl_->backward = backward;
  impl_->recompute = before;
  return bytes;
}

MemoryUse Model::memory() const {
  MemoryUse use;
  use.weights = impl_->parameters.value_bytes();
  use.workspace =
      cross_entropy_workspace(impl_->max_batch * impl_->max_seq, impl_->config.d, impl_->config.vocab, impl_->type, impl_->device);
  use.activations = impl_->memory.bytes() - std::min(impl_->memory.bytes(), use.workspace);
  return use;
}

void Model::forward_backward(const Batch& b, const Step& step) {
  Impl& m = *impl_;
  m.bind(b, true);
  const double per_token =
      m.plan.approximated > 0 && step.tokens_in_step > 0 ? m.plan.aux_loss / (step.tokens_in_step * m.plan.approximated) : 0;
  const float aux = step.with_aux ? static_cast<float>(per_token) : 0;
  m.forward(b, aux);
  if (!step.accumulate) {
    const std::int64_t written = m.parameters.product_elements(), all = m.parameters.arena_size();
    zero(Tensor(step.gradients.as<float>() + written, DType::f32, step.gradients.device, {all - written}));
  }
  const std::string head = m.config.tied ? "model.embed_tokens.weight" : "lm_head.weight";
  cross_entropy({.x = m.act.z,
                 .w = m.head(),
                 .targets = b.targets,
                 .weights = b.weights,
                 .scale = step.scale,
                 .loss = step.loss,
                 .losses = {},
                 .greedy = {},
                 .dx = m.act.z,
                 .dw = m.parameters.in_arena(step.gradients, m.parameters.at(head)),
                 .accumulate = step.accumulate,
                 .workspace = m.act.workspace});
  m.backward_pass(b, step, aux);
}

void Model::forward(const Batch& b) {
  impl_->bind(b, false);
  impl_->forward(b, 0);
}

void Model::score(const Batch& b, const Score& out) {
  forward(b);
  cross_entropy({.x = impl_->act.z,
                 .w = impl_->head(),
                 .targets = b.targets,
                 .weights = b.weights,
                 .scale = 1,
                 .loss = out.loss,
                 .losses = out.losses,
                 .greedy = out.greedy,
                 .dx = {},
                 .dw = {},
                 .workspace = impl_->act.workspace});
}

void Model::logits(std::int64_t first, std::int64_t rows, const Tensor& out) {
  check(first >= 0 && first + rows <= impl_->tokens, "[model] expected rows within the last forward's {}, got {} + {}", impl_->tokens,
        first, rows);
  gemm(impl_->act.z.row_slice(first, rows), impl_->head(), out, {.trans_b = true});
}

std::unique_ptr<Model::Cache, void (*)(Model::Cache*)> Model::make_cache(std::int64_t max_tokens) const {
  std::unique_ptr<Cache, void (*)(Cache*)> cache(new Cache, [](Cache* c) { delete c; });
  const std::int64_t width = 2 * impl_->config.kv_width();
  const auto place = [&](Layout& at) {
    cache->keys_values.clear();
    for (std::int64_t l = 0; l < impl_->config.layers; ++l) cache->keys_values.push_back(at.take(impl_->type, {max_tokens, width}));
  };
  Layout measure{nullptr, impl_->device, 0};
  place(measure);
  cache->memory = Buffer(impl_->device, measure.bytes);
  Layout at{static_cast<char*>(cache->memory.data()), impl_->device, 0};
  place(at);
  cache->capacity = max_tokens;
  return cache;
}

void Model::decode(Cache& cache, const std::int32_t* tokens, std::int64_t n, std::vector<float>& logits) {
  impl_->decode(cache, tokens, n, logits);
}

}  // namespace bhyt
