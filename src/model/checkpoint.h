// Checkpoint folders: config.json and safetensors, in Hugging Face's layout, the reference's and our own (docs/checkpoints.md).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace bhyt {

class Adapter;

// config.json → ModelConfig: plain Llama, the reference's flat norm keys, or our `norm` object (which wins).
ModelConfig read_model_config(const std::filesystem::path& config_json);
// The same from its text; `name` stands for the file in messages.
ModelConfig parse_model_config(std::string_view text, const std::string& name);
// The config.json of a checkpoint: plain Llama for rmsnorm; model_type bhyt with auto_map otherwise; the reference's flat keys where it
// has the method.
std::string model_config_json(const ModelConfig& config, DType weights);
// Whether a plain Llama loader computes the same function.
bool is_plain_llama(const ModelConfig& config);

// copied: into memory of the model's own. mapped: matrices that lie in the files as the model needs them stay there (on the CPU, for
// generating, without folding); the system reads and drops their pages as it sees fit, and processes share them.
enum class Load : std::uint8_t { copied, mapped };

// Opens a checkpoint folder for computing: reads config, loads weights (any file dtype → `type`), computes c_attn.
// for_generating: repacked (Model::repack), as no other use of a model allows. adapter: merged into the weights in fp32, before they become
// `type`; null: none.
std::unique_ptr<Model> load_model(Context& ctx, const std::filesystem::path& dir, DType type,
                                  const std::optional<Model::Repack>& for_generating = {}, Load load = Load::copied,
                                  const Adapter* adapter = nullptr);
// What keeps the weights of a checkpoint from serving a config, a line per tensor.
std::vector<std::string> weight_mismatches(const std::filesystem::path& dir, const ModelConfig& config, bool grow = false);
// Loads weights into parameters that exist already, adapters left as they are; missing and unexpected tensors are all named at once. grow:
// an embedding and a head may have more rows than their files; a new row is the mean of the others and noise drawn from this seed.
void load_weights(const std::filesystem::path& dir, const Parameters& into, const ValueSink& sink = {},
                  std::optional<std::uint64_t> grow = {});
// Writes config.json and model.safetensors (parameters in their run type) into dir, which must exist. Weights that are not finite are
// refused.
void save_model(const std::filesystem::path& dir, const Model& model);
// Everything of a checkpoint folder but the weights: config.json, generation_config.json and, for what a plain Llama loader would get
// wrong, the Python that computes it.
void save_model_files(const std::filesystem::path& dir, const ModelConfig& config, DType weights);

}  // namespace bhyt
