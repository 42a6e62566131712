#include "model/checkpoint.h"

#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/log.h"
#include "core/rng.h"
#include "io/hash.h"
#include "model/adapter.h"
#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/hf_files.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kHostBytes = 16 << 20;  // at a time between a device and a file

// Elements [first, first + n) of a parameter.
void put_values(Context& ctx, const Parameter& p, std::int64_t first, std::int64_t n, const float* values, const ValueSink& sink) {
  const std::size_t element = size_of(p.value.dtype);
  std::vector<char> raw(static_cast<std::size_t>(n) * element);
  encode_floats(values, n, p.value.dtype, raw.data());
  ctx.copy(ctx.device(), static_cast<char*>(p.value.data) + static_cast<std::size_t>(first) * element, Device::cpu(), raw.data(),
           raw.size());
  if (sink) sink(p, first, n, values);
}

// One parameter from its stored tensor, piece by piece. Returns how many values are not finite.
std::int64_t load_tensor(Context& ctx, const WeightFiles::Entry& entry, const Parameter& p, const ValueSink& sink, const Adapter* adapter) {
  std::int64_t non_finite = 0;
  each_merged(entry, p, adapter, [&](const float* values, std::int64_t first, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) non_finite += !std::isfinite(values[i]);
    put_values(ctx, p, first, n, values, sink);
  });
  return non_finite;
}

// The rows of an embedding or a head that its file lacks: the mean of those it has, and normal noise of variance 1/C.
void add_rows(Context& ctx, const WeightFiles::Entry& entry, const Parameter& p, std::uint64_t seed, const ValueSink& sink) {
  const std::int64_t width = p.shape[1], stored = entry.tensor->shape[0];
  std::vector<double> mean(static_cast<std::size_t>(width));
  each_piece(entry, [&](const float* values, std::int64_t first, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) mean[static_cast<std::size_t>((first + i) % width)] += static_cast<double>(values[i]);
  });
  std::vector<float> row(static_cast<std::size_t>(width));
  const double spread = 1 / std::sqrt(static_cast<double>(width));
  Hash64 stream;
  stream.update(p.name);
  for (std::int64_t r = stored; r < p.shape[0]; ++r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const double noise = normal(seed, stream.digest(), static_cast<std::uint64_t>(r * width + c));
      row[static_cast<std::size_t>(c)] =
          static_cast<float>(mean[static_cast<std::size_t>(c)] / static_cast<double>(stored) + spread * noise);
    }
    put_values(ctx, p, r * width, width, row.data(), sink);
  }
}

// Whether a file holds fewer rows of an embedding or a head than the model has.
bool lacks_rows(const WeightFiles::Entry* entry, const Parameter& p) {
  if (!entry || (p.role != Role::embedding && p.role != Role::head)) return false;
  const auto& shape = entry->tensor->shape;
  return shape.size() == 2 && shape[1] == p.shape[1] && shape[0] > 0 && shape[0] < p.shape[0];
}

std::vector<std::string> mismatches_but_rows(const WeightFiles& files, std::vector<Parameter> parameters, bool grow) {
  for (Parameter& p : parameters)
    if (const auto* entry = files.find(p.name); grow && lacks_rows(entry, p)) p.shape = entry->tensor->shape;
  return mismatches(files, parameters);
}

void check_fit(const fs::path& dir, const WeightFiles& files, const std::vector<Parameter>& parameters, bool grow = false) {
  const std::vector<std::string> wrong = mismatches_but_rows(files, parameters, grow);
  check(wrong.empty(), "{}: the weights do not fit config.json:\n  {}", dir.string(), fmt::join(wrong, "\n  "));
}

void load_from(const WeightFiles& files, const Parameters& into, const ValueSink& sink = {}, const Adapter* adapter = nullptr) {
  check_tied_head(files, into.list());
  for (const Parameter& p : into.list()) {
    if (p.adapter()) continue;
    const WeightFiles::Entry* entry = files.find(p.name);
    if (!entry) {  // optional: keeps its initial value
      const std::vector<float> initial(static_cast<std::size_t>(p.size), static_cast<float>(p.init_value));
      into.write_value(p, initial.data());
      if (sink) sink(p, 0, p.size, initial.data());
      continue;
    }
    if (const std::int64_t count = load_tensor(into.context(), *entry, p, sink, adapter))
      log::warning("{}: tensor {} holds {} values that are not finite", entry->file->path().filename().string(), p.name, count);
  }
}

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

std::vector<std::string> weight_mismatches(const fs::path& dir, const ModelConfig& config, bool grow) {
  require_checkpoint(dir);
  return mismatches_but_rows(WeightFiles(dir), parameter_list(config), grow);
}

void load_weights(const fs::path& dir, const Parameters& into, const ValueSink& sink, std::optional<std::uint64_t> grow) {
  require_checkpoint(dir);
  const WeightFiles files(dir);
  check_fit(dir, files, into.list(), grow.has_value());
  load_from(files, into, sink);
  for (const Parameter& p : into.list())
    if (const auto* entry = files.find(p.name); grow && lacks_rows(entry, p)) add_rows(into.context(), *entry, p, *grow, sink);
}

std::unique_ptr<Model> load_model(Context& ctx, const fs::path& dir, DType type, const std::optional<Model::Repack>& for_generating,
                                  const Adapter* adapter) {
  require_checkpoint(dir);
  const ModelConfig config = read_model_config(dir / "config.json");
  const WeightFiles files(dir);
  check_fit(dir, files, parameter_list(config));  // before the memory is asked for: a wrong config may ask for anything
  if (adapter) adapter->check_fits(parameter_list(config));
  auto model = std::make_unique<Model>(ctx, config, type);
  load_from(files, model->parameters(), {}, adapter);
  model->refresh_constants();
  if (for_generating) model->repack(*for_generating);
  return model;
}

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
