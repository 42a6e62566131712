// All parameters of a model in one list, ordered by layer, under Hugging Face names; gradients, moments and masters are arenas beside it.
// Load, save, init, count, AdamW and the gradient norm all walk this one list.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory.h"
#include "model/config.h"
#include "ops/adamw/adamw.h"

namespace bhyt {

struct Parameter {
  std::string name;                   // model.layers.0.self_attn.q_proj.weight
  std::vector<std::int64_t> shape;    // as stored in files; [] is a scalar
  std::int64_t layer = 0;             // 0 = embedding, 1…L blocks, L+1 = after
  std::int64_t offset = 0, size = 0;  // elements in the arenas
  Tensor value = {};                  // what the model computes with (matrices in the run's type, vectors and scalars in fp32)
  bool decays = false, frozen = false;
  bool joined = false;    // lies right behind the one before it: q,k,v and gate,up are one matrix each
  bool optional = false;  // a file may lack it (corrections of exact layers): it keeps its initial value
  double init_std = 0;    // normal; 0: filled with init_value
  double init_value = 0;
};

// Told of values in fp32 while they are at hand, before the parameter's own type takes bits from them: elements [first, first + n).
using ValueSink = std::function<void(const Parameter& p, std::int64_t first, std::int64_t n, const float* values)>;

// Every parameter a model has, in the order of the arena, without memory behind it.
std::vector<Parameter> parameter_list(const ModelConfig& config);

class Parameters {
 public:
  Parameters() = default;
  Parameters(const ModelConfig& config, Device device, DType type);

  const std::vector<Parameter>& list() const { return list_; }
  const Parameter* find(const std::string& name) const;
  const Parameter& at(const std::string& name) const;
  std::int64_t count() const;  // weights, without padding
  std::int64_t arena_size() const { return arena_size_; }
  // The first elements of the arena belong to the weights of products: a backward writes their gradients whole. To the rest it adds.
  std::int64_t product_elements() const { return product_elements_; }
  Device device() const { return device_; }
  DType type() const { return type_; }
  std::size_t value_bytes() const { return values_.bytes(); }

  // Draws every parameter from (seed, its name): the same on any device and in any type.
  void initialize(std::uint64_t seed, const ValueSink& sink = {});

  // Whole values in fp32 on the host, in list order: what files and optimizers exchange.
  std::vector<float> read_value(const Parameter& p) const;
  void write_value(const Parameter& p, const float* data) const;

  // The stored q,k,v (and gate,up) of a layer lie side by side: one matrix for one product.
  Tensor qkv(std::int64_t layer) const;      // [(H+2K)·D, C], layer from 0
  Tensor gate_up(std::int64_t layer) const;  // [2F, C]

  // A parameter's stretch of an arena of arena_size() elements (gradients and moments, fp32; rests of the masters, uint16), in its shape.
  Tensor in_arena(const Tensor& arena, const Parameter& p) const;
  Tensor qkv_in(const Tensor& arena, std::int64_t layer) const;
  Tensor gate_up_in(const Tensor& arena, std::int64_t layer) const;
  std::vector<ArenaSpan> spans() const;

 private:
  std::vector<Parameter> list_;
  std::unordered_map<std::string, std::size_t> index_;
  Buffer values_;
  std::int64_t arena_size_ = 0, product_elements_ = 0;
  Device device_;
  DType type_ = DType::f32;
  ModelConfig config_;
};

}  // namespace bhyt
