#include "model/checkpoint.h"

#include <cstring>

#include "core/check.h"
#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/hf_files.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kHostBytes = 16 << 20;  // at a time between a device and a file

// Whether values of a float type are all finite: none has every bit of its exponent set.
bool all_finite(const void* data, std::size_t bytes, DType type) {
  const auto scan = [&](auto exponent) {
    bool found = false;
    for (std::size_t at = 0; at < bytes; at += sizeof exponent) {
      auto word = exponent;
      std::memcpy(&word, static_cast<const char*>(data) + at, sizeof word);
      found |= (word & exponent) == exponent;
    }
    return !found;
  };
  return type == DType::bf16 ? scan(std::uint16_t{0x7F80}) : scan(std::uint32_t{0x7F800000});
}

SafeTensorOut tensor_out(Context& ctx, const Parameter& p) {
  return {p.name, safetensors_dtype(p.value.dtype), p.shape, [p, &ctx](const auto& put) {
            const Device device = ctx.device();
            std::vector<char> copy(device.is_cuda() ? std::min(kHostBytes, p.value.bytes()) : 0);
            for (std::size_t at = 0; at < p.value.bytes(); at += kHostBytes) {
              const std::size_t n = std::min(kHostBytes, p.value.bytes() - at);
              const char* piece = static_cast<const char*>(p.value.data) + at;
              if (device.is_cuda()) {
                ctx.copy(Device::cpu(), copy.data(), device, piece, n);
                piece = copy.data();
              }
              check(all_finite(piece, n, p.value.dtype), "{} holds values that are not finite: its last update was too large", p.name);
              put(piece, n);
            }
          }};
}

}  // namespace

void save_model_files(const fs::path& dir, const ModelConfig& config, DType weights) {
  write_text_synced(dir / "config.json", model_config_json(config, weights));
  schema::Json generation = {{"_from_model_config", true}};
  if (config.bos >= 0) generation["bos_token_id"] = config.bos;
  if (config.eos.size() == 1) generation["eos_token_id"] = config.eos[0];
  if (config.eos.size() > 1) generation["eos_token_id"] = config.eos;
  write_text_synced(dir / "generation_config.json", generation.dump(2) + "\n");
  if (is_plain_llama(config)) return;
  for (const auto& [name, text] : hf_files()) write_text_synced(dir / name, text);
}

void save_model(const fs::path& dir, const Model& model) {
  check(!model.repacked(), "[save] expected a model as it was loaded, got one that is repacked for generating");
  check(model.lora().rank == 0, "[save] expected a model without adapters (save_adapter, save_merged)");
  save_model_files(dir, model.config(), model.type());
  std::vector<SafeTensorOut> tensors;
  for (const Parameter& p : model.parameters().list()) tensors.push_back(tensor_out(model.context(), p));
  write_safetensors(dir / "model.safetensors", std::move(tensors));
}

}  // namespace bhyt
