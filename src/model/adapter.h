// Adapter folders in PEFT's layout: adapter_config.json and adapter_model.safetensors, whose tensors have the parameters' names behind
// "base_model.model.". Norms that were trained with the adapter stand in the same file under their own names.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/checkpoint_folders.h"
#include "model/checkpoint_files.h"
#include "model/model.h"
#include "model/safetensors.h"

namespace bhyt {

constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kAdapterWeights = "adapter_model.safetensors";

bool is_adapter(const std::filesystem::path& dir);
// The adapter folder that a user means: the one named or, of a run directory, best/ where there is one, else the newest that can be used.
std::filesystem::path named_adapter(const std::filesystem::path& named, Verify verify);

// A folder that was read: what it asks for is known and its tensors belong together. Error for what we do not compute (rsLoRA, DoRA,
// biases, ranks by pattern, whole modules) and for what is damaged.
class Adapter {
 public:
  explicit Adapter(const std::filesystem::path& dir);

  const std::filesystem::path& path() const { return dir_; }
  const SafeTensors& file() const { return file_; }
  double scale() const { return rank_ > 0 ? alpha_ / static_cast<double>(rank_) : 0; }
  // What a model of this description needs for the adapter to be loaded into it (load_adapter). Error where layers differ in what they
  // adapt: such an adapter can only be merged.
  LoraConfig config(const ModelConfig& model) const;

  // Error naming what has no place in a model with these parameters, with both shapes.
  void check_fits(const std::vector<Parameter>& base) const;
  // values, elements [first, first + n) of a model's own parameter in fp32: W becomes W + (α/r)·B A, a norm that was trained takes the
  // adapter's values. What the adapter does not touch stays.
  void merge(const Parameter& p, std::int64_t first, std::int64_t n, float* values) const;
  bool touches(const Parameter& p) const;

 private:
  struct Pair {
    std::vector<float> a, b;  // [r, in], [out, r]
    std::int64_t in = 0, out = 0;
  };
  void read_tensors();

  std::filesystem::path dir_;
  SafeTensors file_;
  std::int64_t rank_ = 0;
  double alpha_ = 0, dropout_ = 0;
  std::map<std::string, Pair> pairs_;                  // by the weight that they adapt: model.layers.0.self_attn.q_proj.weight
  std::map<std::string, const SafeTensor*> replaced_;  // norms by name
};

// each_piece with the adapter merged into what it touches; null: none.
void each_merged(const WeightFiles::Entry& entry, const Parameter& p, const Adapter* adapter,
                 const std::function<void(const float*, std::int64_t first, std::int64_t n)>& f);

// A parameter's whole values in fp32, from wherever the most exact ones are (masters).
using ValueSource = std::function<std::vector<float>(const Parameter&)>;

// Writes both files into dir, which must exist (the caller owns the atomicity of its folder, as with save_model). base: what
// base_model_name_or_path says, for people and for PEFT's own loaders. Values that are not finite are refused.
void save_adapter(const std::filesystem::path& dir, const Model& model, const std::string& base, const ValueSource& values);

// An adapter's values into a model that was built with the same rank, α, targets and layers (UsageError naming both otherwise); Error where
// it belongs to another model. The model's own weights stay as they are, but for norms that the adapter holds.
void load_adapter(const Adapter& adapter, const Model& into, const ValueSink& sink = {});

// A whole checkpoint of a model with adapters, W + (α/r)·B A, in its run type, into dir, which must exist. bhyt convert --merge makes the
// same out of two folders, without a model (checkpoint_convert.h).
void save_merged(const std::filesystem::path& dir, const Model& model, const ValueSource& values);

}  // namespace bhyt
