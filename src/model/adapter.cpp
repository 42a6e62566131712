#include "model/adapter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/check.h"
#include "core/log.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/checkpoint_json.h"
#include "model/low_rank.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

using schema::Json;

constexpr std::string_view kPrefix = "base_model.model.", kA = ".lora_A.weight", kB = ".lora_B.weight";

const Json& key_of(const Json& config, const char* key) {
  static const Json none;
  const auto it = config.find(key);
  return it == config.end() ? none : *it;
}

// What PEFT can do and we do not: a key that may only be absent, null, empty, or have this value.
struct Plain {
  const char* key;
  Json value;
  const char* otherwise;
};

void check_plain(const Json& config, const std::string& where) {
  static const std::vector<Plain> plain{
      {"bias", "none", "biases are not trained here"},
      {"use_dora", false, "DoRA is not computed"},
      {"use_rslora", false, "rsLoRA is not computed; an adapter with lora_alpha = α·√r and use_rslora false is the same"},
      {"fan_in_fan_out", false, "weights are [out, in]"},
      {"rank_pattern", nullptr, "every adapter has the same rank"},
      {"alpha_pattern", nullptr, "every adapter has the same α"},
      {"modules_to_save", nullptr, "whole modules (embed_tokens, lm_head) do not belong to an adapter here; merge it with PEFT first"},
      {"layer_replication", nullptr, "layers are not repeated"},
      {"lora_bias", false, "adapters have no biases"},
      {"trainable_token_indices", nullptr, "rows of the embedding are not adapted"},
      {"target_parameters", nullptr, "only projections are adapted"}};
  const auto empty = [](const Json& j) { return j.is_null() || ((j.is_array() || j.is_object()) && j.empty()); };
  for (const Plain& p : plain) {
    const Json& is = key_of(config, p.key);
    check(empty(is) || is == p.value, "{}: {} is {}: {}", where, p.key, schema::show(is), p.otherwise);
  }
  // These start by taking something out of the model's own weights: what is trained then does not belong to the weights as they are.
  const Json& init = key_of(config, "init_lora_weights");
  if (!init.is_string()) return;
  const auto name = init.get<std::string>();
  for (const char* changes : {"pissa", "olora", "corda", "loftq", "lora_ga"})
    check(!name.starts_with(changes), "{}: init_lora_weights is {}: it belongs to weights that this start has changed", where, name);
}

double number(const Json& config, const char* key, double least, const std::string& where) {
  const Json& j = key_of(config, key);
  check(j.is_number() && j.get<double>() >= least, "{}: expected {} to be a number from {}, got {}", where, key, least, schema::show(j));
  return j.get<double>();
}

std::vector<float> floats_of(const SafeTensor& t, const std::string& where) {
  check(is_float_dtype(t.dtype), "{}: tensor {} is {}, expected F32, BF16, F16 or F64", where, t.name, t.dtype);
  std::vector<float> out(static_cast<std::size_t>(t.size()));
  SafeTensors::to_float(t, 0, t.size(), out.data());
  return out;
}

bool is_projection(const Parameter& p) {
  switch (p.role) {
    case Role::q:
    case Role::k:
    case Role::v:
    case Role::o:
    case Role::gate_projection:
    case Role::up_projection:
    case Role::down: return true;
    default: return false;
  }
}

// model.layers.3.self_attn.q_proj.weight → 3 and q; false for any other name.
bool parse_place(std::string_view name, std::int64_t& layer, Projection& projection) {
  constexpr std::string_view kLayers = "model.layers.", kWeight = ".weight";
  if (!name.starts_with(kLayers) || !name.ends_with(kWeight)) return false;
  name.remove_prefix(kLayers.size());
  name.remove_suffix(kWeight.size());
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || stop == name.data() + name.size() || *stop != '.') return false;
  name.remove_prefix(static_cast<std::size_t>(stop - name.data()) + 1);
  for (const Projection p : all_projections())
    if (module_of(p) == name) {
      projection = p;
      return true;
    }
  return false;
}

fs::path checked_folder(const fs::path& dir) {
  check(fs::exists(dir), "{}: no such folder", dir.string());
  check(is_adapter(dir), "{}: not an adapter: looked for {} ({}) and {} ({})", dir.string(), kAdapterConfig,
        fs::exists(dir / kAdapterConfig) ? "found" : "missing", kAdapterWeights, fs::exists(dir / kAdapterWeights) ? "found" : "missing");
  return dir;
}

}  // namespace

bool is_adapter(const fs::path& dir) { return fs::exists(dir / kAdapterConfig) && fs::exists(dir / kAdapterWeights); }

fs::path named_adapter(const fs::path& named, Verify verify) {
  return named_folder(named, verify, {.is = is_adapter, .require = [](const fs::path& dir) { checked_folder(dir); }, .holds = "adapter"});
}

Adapter::Adapter(const fs::path& dir) : dir_(checked_folder(dir)), file_(dir / kAdapterWeights) {
  const std::string where = (dir / kAdapterConfig).string();
  const Json config = read_json(dir / kAdapterConfig);
  check(config.is_object(), "{}: expected an object, got {}", where, schema::show(config));
  const Json& type = key_of(config, "peft_type");
  check(type == "LORA", "{}: expected peft_type LORA, got {}", where, schema::show(type));
  check_plain(config, where);
  const double rank = number(config, "r", 0, where);
  check(rank <= kMostRank && rank == std::floor(rank), "{}: expected r to be a whole number up to {}, got {}", where, kMostRank, rank);
  rank_ = static_cast<std::int64_t>(rank);
  alpha_ = number(config, "lora_alpha", 0, where);
  if (!key_of(config, "lora_dropout").is_null()) dropout_ = number(config, "lora_dropout", 0, where);
  read_tensors();
}

void Adapter::read_tensors() {
  const std::string where = file_.path().string();
  for (const auto& [full, t] : file_.tensors()) {
    check(full.starts_with(kPrefix), "{}: expected names that begin with {}, got {}", where, kPrefix, full);
    const std::string name = full.substr(kPrefix.size());
    const bool is_a = name.ends_with(kA), is_b = name.ends_with(kB);
    if (!is_a && !is_b) {
      check(name.find("lora_") == name.npos, "{}: tensor {} is of a kind that is not computed", where, full);
      replaced_[name] = &t;
      continue;
    }
    check(t.shape.size() == 2 && t.shape[is_a ? 0 : 1] == rank_, "{}: expected {} of rank {}, got {}", where, full, rank_,
          shape_string(t.shape));
    Pair& pair = pairs_[name.substr(0, name.size() - kA.size()) + ".weight"];
    (is_a ? pair.in : pair.out) = t.shape[is_a ? 1 : 0];
    (is_a ? pair.a : pair.b) = floats_of(t, where);
  }
  for (const auto& [name, pair] : pairs_)
    check(!pair.a.empty() && !pair.b.empty(), "{}: {} has {} without {}", where, name, pair.a.empty() ? "lora_B" : "lora_A",
          pair.a.empty() ? "lora_A" : "lora_B");
  check(!pairs_.empty() || !replaced_.empty(), "{}: it holds no tensor", where);
}

LoraConfig Adapter::config(const ModelConfig& model) const {
  std::map<std::int64_t, std::set<Projection>> by_layer;
  for (const auto& [name, pair] : pairs_) {
    std::int64_t layer = 0;
    Projection projection{};
    check(parse_place(name, layer, projection), "{}: it adapts {}, which is not a projection of a layer", file_.path().string(), name);
    by_layer[layer].insert(projection);
  }
  LoraConfig out{.rank = by_layer.empty() ? 0 : rank_, .alpha = alpha_, .dropout = dropout_, .train_norms = !replaced_.empty()};
  if (by_layer.empty()) return out;
  const std::set<Projection>& targets = by_layer.begin()->second;
  for (const auto& [layer, own] : by_layer) {
    check(own == targets, "{}: layers {} and {} have adapters of different projections; such an adapter can only be merged",
          file_.path().string(), by_layer.begin()->first, layer);
    out.layers.push_back(layer);
  }
  if (std::ssize(out.layers) == model.layers) out.layers.clear();
  out.targets.assign(targets.begin(), targets.end());
  return out;
}

void Adapter::check_fits(const std::vector<Parameter>& base) const {
  std::map<std::string, const Parameter*> by_name;
  for (const Parameter& p : base) by_name[p.name] = &p;
  std::vector<std::string> wrong;
  for (const auto& [name, pair] : pairs_) {
    const auto it = by_name.find(name);
    const std::vector<std::int64_t> shape{pair.out, pair.in};
    if (it == by_name.end())
      wrong.push_back(fmt::format("it adapts {} {}, the model has none of that name", name, shape_string(shape)));
    else if (!is_projection(*it->second))
      wrong.push_back(fmt::format("it adapts {}: only projections of layers are adapted here", name));
    else if (it->second->shape != shape)
      wrong.push_back(fmt::format("it adapts {} {}, the model's is {}", name, shape_string(shape), shape_string(it->second->shape)));
  }
  for (const auto& [name, t] : replaced_) {
    const auto it = by_name.find(name);
    if (it == by_name.end() || !of_norm(*it->second))
      wrong.push_back(fmt::format("it holds {} {}, {}", name, shape_string(t->shape),
                                  it == by_name.end() ? "the model has none of that name" : "only norms are trained beside adapters"));
    else if (it->second->size != t->size())
      wrong.push_back(fmt::format("it holds {} {}, the model's is {}", name, shape_string(t->shape), shape_string(it->second->shape)));
  }
  constexpr std::size_t kShown = 8;
  const std::size_t more = wrong.size() > kShown ? wrong.size() - kShown : 0;
  wrong.resize(wrong.size() - more);
  if (more > 0) wrong.push_back(fmt::format("and {} more", more));
  check(wrong.empty(), "{}: the adapter does not belong to this model:\n  {}", dir_.string(), fmt::join(wrong, "\n  "));
}

bool Adapter::touches(const Parameter& p) const { return pairs_.contains(p.name) || replaced_.contains(p.name); }

void Adapter::merge(const Parameter& p, std::int64_t first, std::int64_t n, float* values) const {
  if (const auto it = replaced_.find(p.name); it != replaced_.end()) return SafeTensors::to_float(*it->second, first, n, values);
  const auto it = pairs_.find(p.name);
  if (it == pairs_.end()) return;
  const Pair& pair = it->second;
  add_low_rank({.a = pair.a.data(), .b = pair.b.data(), .rank = rank_, .in = pair.in, .scale = scale()}, first, n, values);
}

void each_merged(const WeightFiles::Entry& entry, const Parameter& p, const Adapter* adapter,
                 const std::function<void(const float*, std::int64_t, std::int64_t)>& f) {
  if (!adapter || !adapter->touches(p)) return each_piece(entry, f);
  std::vector<float> merged;
  each_piece(entry, [&](const float* values, std::int64_t first, std::int64_t n) {
    merged.assign(values, values + n);
    adapter->merge(p, first, n, merged.data());
    f(merged.data(), first, n);
  });
}

namespace {

Json alpha_json(double alpha) { return alpha == std::floor(alpha) && alpha < 1e15 ? Json(static_cast<std::int64_t>(alpha)) : Json(alpha); }

// The keys that PEFT writes, in its order.
Json config_json(const Model& model, const std::string& base) {
  const LoraConfig& lora = model.lora();
  std::vector<std::string> targets;
  if (lora.rank > 0)
    for (const Projection p : lora.targets) targets.emplace_back(name_of(p));
  std::sort(targets.begin(), targets.end());
  return {{"alpha_pattern", Json::object()},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", base},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layer_replication", nullptr},
          {"layers_pattern", nullptr},
          {"layers_to_transform", lora.layers.empty() ? Json() : Json(lora.layers)},
          {"lora_alpha", alpha_json(lora.alpha)},
          {"lora_dropout", lora.dropout},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"r", lora.rank},
          {"rank_pattern", Json::object()},
          {"revision", nullptr},
          {"target_modules", targets},
          {"task_type", "CAUSAL_LM"},
          {"use_dora", false},
          {"use_rslora", false}};
}

void check_finite(const Parameter& p, const std::vector<float>& values) {
  check(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }),
        "{} holds values that are not finite: its last update was too large", p.name);
}

}  // namespace

void save_adapter(const fs::path& dir, const Model& model, const std::string& base, const ValueSource& values) {
  check(model.lora().active(), "[save] expected a model with adapters or trained norms");
  std::vector<SafeTensorOut> tensors;
  for (const Parameter& p : model.parameters().list())
    if (!p.frozen)
      tensors.push_back({std::string(kPrefix) + p.name, "F32", p.shape, [&p, &values](const auto& put) {
                           const std::vector<float> v = values(p);
                           check_finite(p, v);
                           put(v.data(), v.size() * sizeof(float));
                         }});
  write_safetensors(dir / kAdapterWeights, std::move(tensors));
  write_text_synced(dir / kAdapterConfig, config_json(model, base).dump(2) + "\n");
}

void load_adapter(const Adapter& adapter, const Model& into, const ValueSink& sink) {
  adapter.check_fits(into.parameters().list());
  const LoraConfig &has = into.lora(), wants = adapter.config(into.config());
  const std::string where = adapter.path().string();
  check_usage(wants.rank == has.rank && (wants.rank == 0 || wants.alpha == has.alpha),
              "{}: the adapter has rank {} and alpha {}, the run asks for {} and {}", where, wants.rank, wants.alpha, has.rank, has.alpha);
  const auto names = [](const LoraConfig& c) {
    std::vector<std::string_view> out;
    for (const Projection p : c.targets) out.push_back(name_of(p));
    return fmt::format("{} of {}", fmt::join(out, ", "),
                       c.layers.empty() ? "all layers" : fmt::format("layers {}", fmt::join(c.layers, ", ")));
  };
  check_usage(has.rank == 0 || (wants.targets == has.targets && wants.layers == has.layers),
              "{}: the adapter is for {}, the run asks for {}", where, names(wants), names(has));
  check_usage(has.train_norms || !wants.train_norms,
              "{}: norms were trained with this adapter; without training norms what it is now could not be saved", where);
  for (const Parameter& p : into.parameters().list()) {
    const SafeTensor* t = adapter.file().find(std::string(kPrefix) + p.name);
    if (!t) continue;  // the model's own, or norms that are trained from now on
    const std::vector<float> values = floats_of(*t, where);
    into.parameters().write_value(p, values.data());
    if (sink) sink(p, 0, p.size, values.data());
  }
}

void save_merged(const fs::path& dir, const Model& model, const ValueSource& values) {
  const Parameters& all = model.parameters();
  save_model_files(dir, model.config(), model.type());
  std::vector<SafeTensorOut> tensors;
  for (const Parameter& p : all.list()) {
    if (p.adapter()) continue;
    tensors.push_back(
        {p.name, safetensors_dtype(p.value.dtype), p.shape, [&](const auto& put) {
           std::vector<float> w = values(p);
           const std::string stem = p.name.substr(0, p.name.rfind('.'));
           if (const Parameter* a = all.find(stem + std::string(kA))) {
             const std::vector<float> down = values(*a), up = values(all.at(stem + std::string(kB)));
             add_low_rank({.a = down.data(), .b = up.data(), .rank = model.lora().rank, .in = p.shape[1], .scale = model.lora().scale()}, 0,
                          p.size, w.data());
           }
           check_finite(p, w);
           std::vector<char> raw(w.size() * size_of(p.value.dtype));
           encode_floats(w.data(), p.size, p.value.dtype, raw.data());
           put(raw.data(), raw.size());
         }});
  }
  write_safetensors(dir / "model.safetensors", std::move(tensors));
}

}  // namespace bhyt
