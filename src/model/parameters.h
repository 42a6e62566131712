// All parameters of a model in one list, layer by layer, under Hugging Face names. Init, load, save, count, optimizers and the gradient
// norm all walk this one list; the model computes with the typed structure that it is bound to (weights.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory.h"
#include "model/config.h"
#include "model/lora.h"
#include "model/weights.h"

namespace bhyt {

// What a parameter is, and of which norm: together with its layer its place in Weights.
enum class Role : std::uint8_t {
  embedding,
  embedding_scale,
  q,
  k,
  v,
  o,
  gate_projection,
  up_projection,
  down,
  head,
  gamma,
  beta,
  scale,
  shift,
  gate,
  direction,
  ms_correction,
  constant_correction,
  lora_a,
  lora_b
};
enum class Site : std::uint8_t { none, site1, site2, out1, out2, last };

struct Parameter {
  std::string name;                 // model.layers.0.self_attn.q_proj.weight
  std::vector<std::int64_t> shape;  // as stored in files; [] is a scalar
  Role role = Role::gamma;
  Site site = Site::none;
  Projection projection = Projection::q;  // that lora_a and lora_b belong to
  std::int64_t layer = 0;                 // 0 = embedding, 1…L blocks, L+1 = after
  std::int64_t size = 0;                  // elements
  std::int64_t offset = -1;               // elements from the start of an arena; -1 when frozen: arenas hold nothing for it
  Tensor value = {};                      // what the model computes with (matrices in the run's type, vectors and scalars in fp32)
  bool decays = false, frozen = false;
  bool borrowed = false;  // its value lies in memory of others, and is never written
  bool joined = false;    // lies right behind the one before it: q,k,v and gate,up are one matrix each
  bool optional = false;  // a file may lack it (corrections of exact layers): it keeps its initial value
  double init_std = 0;    // normal; 0: filled with init_value
  double init_value = 0;
  double init_bound = 0;  // uniform in (−bound, bound)

  bool adapter() const { return role == Role::lora_a || role == Role::lora_b; }  // not of the model itself: no checkpoint holds it
};

// Told of values in fp32 while they are at hand, before the parameter's own type takes bits from them: elements [first, first + n).
using ValueSink = std::function<void(const Parameter& p, std::int64_t first, std::int64_t n, const float* values)>;

using Frozen = std::function<bool(const Parameter&)>;

bool of_norm(const Parameter& p);  // γ, λ, … and the corrections of a statistic

// Values that lie in memory of others, which `lender` keeps: find gives their place, or null. Those that are joined must be one stretch.
struct Borrowed {
  std::shared_ptr<const void> lender;
  std::function<void*(const Parameter&)> find;
  bool rest_is_written = false;  // whoever asks for them writes all other values next: they need not be zero first
};

// Every parameter a model has, in order, without memory behind it.
std::vector<Parameter> parameter_list(const ModelConfig& config, const LoraConfig& lora = {});

class Parameters {
 public:
  Parameters() = default;
  // frozen: further parameters that are not trained; q, k and v of a layer, and gate and up, go together. With lora the model's own weights
  // are frozen anyway. shards: so many equal parts every section can be cut into.
  Parameters(Context& context, const ModelConfig& config, DType type, const Frozen& frozen = {}, const LoraConfig& lora = {},
             const Borrowed& borrowed = {}, std::int64_t shards = 1);

  // What a model will take, before there is one.
  struct Sizes {
    std::size_t value_bytes = 0;
    std::int64_t arena = 0;  // elements
  };
  static Sizes planned(const ModelConfig& config, DType type, const LoraConfig& lora = {}, std::int64_t shards = 1);
  // The order of everything without memory behind it, for plans.
  static Parameters layout(const ModelConfig& config, DType type, const LoraConfig& lora = {}, std::int64_t shards = 1);

  const std::vector<Parameter>& list() const { return list_; }
  const Parameter* find(const std::string& name) const;
  const Parameter& at(const std::string& name) const;
  std::int64_t count() const;    // weights, without padding
  std::int64_t trained() const;  // those of them that are not frozen
  Context& context() const { return *context_; }
  Device device() const { return context_->device(); }
  DType type() const { return type_; }
  std::size_t value_bytes() const { return values_.bytes(); }
  Weights values() const;

  // Arenas: what training keeps beside the values (gradients and moments in fp32, low bits of masters as uint16), arena_size() elements
  // each: first all vectors and scalars, which a backward adds to, then the matrices, layer by layer.
  std::int64_t arena_size() const { return arena_size_; }
  std::int64_t vectors_size() const { return vectors_; }
  Tensor in_arena(const Tensor& arena, const Parameter& p) const;  // a parameter's stretch in its shape; empty when frozen
  Weights bind(const Tensor& arena) const;
  // The same for parameters that lie apart: where each begins.
  using Place = std::function<void*(const Parameter&)>;
  Weights bind(DType type, const Place& place) const;

  // The matrices of a layer that are trained: one stretch of every arena and, in the same order, of the values. Behind the last matrix
  // there may be room that belongs to none, so that the size can be cut into shards.
  struct Section {
    std::int64_t layer = 0, offset = 0, size = 0;
    Tensor values = {};  // [size]
  };
  const std::vector<Section>& sections() const { return sections_; }
  std::int64_t shards() const { return shards_; }

  // Draws every parameter from (seed, its name): the same on any device and in any type.
  void initialize(std::uint64_t seed, const ValueSink& sink = {}) const;
  // The same for adapters alone, where the model itself was loaded: A uniform, B zero.
  void initialize_adapters(std::uint64_t seed, const ValueSink& sink = {}) const;

  // The memory of values that nobody will read again, to the system (on the CPU).
  void give_back(const Tensor& values) const;

  // Whole values in fp32 on the host: what files and optimizers exchange.
  std::vector<float> read_value(const Parameter& p) const;
  void write_value(const Parameter& p, const float* data) const;

 private:
  std::vector<std::size_t> places(std::size_t& bytes);  // of the values, one behind the other; and the end of all
  void lay_values(const Borrowed& borrowed);
  void lay_arena();
  Tensor whole(void* data, DType type, std::size_t i) const;  // of the i-th with what is joined to it: q with k and v, gate with up
  void draw(const Parameter& p, std::uint64_t seed, const ValueSink& sink) const;

  std::vector<Parameter> list_;
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<Section> sections_;
  Buffer values_;
  std::shared_ptr<const void> lender_;
  std::int64_t arena_size_ = 0, vectors_ = 0, shards_ = 1;
  Context* context_ = nullptr;
  DType type_ = DType::f32;
  ModelConfig config_;
};

}  // namespace bhyt
