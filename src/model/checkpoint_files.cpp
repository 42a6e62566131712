#include "model/checkpoint_files.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/log.h"
#include "io/checkpoint_folders.h"
#include "model/checkpoint_json.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_correction(const std::string& name) {
  return name.ends_with(".var_beta") || name.ends_with(".var_eta") || name.ends_with(".var_alpha") || name.ends_with(".var_cross_beta");
}

bool has_weights(const fs::path& dir) { return fs::exists(dir / kSingle) || fs::exists(dir / kIndex); }

// A model is read from everything but what only the trainer needs.
bool belongs_to_model(const std::string& file) { return file != kTrainerState && !is_optimizer_file(file); }

// "" where nothing is wrong, or nothing is known: folders that the trainer did not write have no manifest.
std::string damage(const fs::path& dir) { return fs::exists(dir / kManifest) ? verify_manifest(dir, belongs_to_model) : ""; }

fs::path newest_of_run(const fs::path& run, Verify verify, const FolderKind& kind) {
  std::string wrong;
  bool damaged = false;
  for (const std::int64_t step : checkpoint_steps(run)) {
    const fs::path at = checkpoint_folder(run, step);
    const bool fits = kind.is(at);
    const std::string problem = !fits ? fmt::format("it holds no {}", kind.holds) : verify == Verify::yes ? damage(at) : "";
    if (problem.empty()) return at;
    damaged |= fits;
    log::warning("passing over {}: {}", at.string(), problem);
    wrong += fmt::format("\n  {}: {}", at.filename().string(), problem);
  }
  throw Error(fmt::format("{}: no checkpoint of this run can be used{}:{}", run.string(),
                          damaged ? " (--no-verify takes a damaged one all the same)" : "", wrong));
}

}  // namespace

std::map<std::string, std::string> parse_weight_index(std::string_view text, const std::string& name) {
  const schema::Json json = parse_json(text, name);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  check(json.is_object() && map != json.end() && map->is_object() && !map->empty(), "{}: weight_map is missing", name);
  std::map<std::string, std::string> out;
  for (const auto& [tensor, shard] : map->items()) {
    check(shard.is_string(), "{}: weight_map must map tensors to files, {} is {}", name, tensor, schema::show(shard));
    const auto file = shard.get<std::string>();
    check(!file.empty() && file.find('/') == file.npos && file != "..", "{}: {} is not a file name", name, schema::show(shard));
    out[tensor] = file;
  }
  return out;
}

bool is_checkpoint(const fs::path& dir) { return fs::exists(dir / "config.json") && has_weights(dir); }

void require_checkpoint(const fs::path& dir) {
  const std::string where = dir.string();
  check(fs::exists(dir), "{}: no such folder", where);
  check(fs::is_directory(dir), "{}: not a folder (a checkpoint is a folder with config.json and model.safetensors)", where);
  if (is_checkpoint(dir)) return;
  check(!fs::exists(dir / "adapter_config.json"), "{}: an adapter, not a model: --adapter takes it, --model the model that it belongs to",
        where);
  const bool pickle = fs::exists(dir / "pytorch_model.bin") || fs::exists(dir / "pytorch_model.bin.index.json");
  throw Error(fmt::format("{}: not a checkpoint: looked for config.json ({}) and {} or {} ({}){}", where,
                          fs::exists(dir / "config.json") ? "found" : "missing", kSingle, kIndex, has_weights(dir) ? "found" : "missing",
                          pickle ? "; pytorch_model.bin is a pickle, which is not read: save it with safe_serialization=True first" : ""));
}

fs::path named_checkpoint(const fs::path& named, Verify verify) {
  return named_folder(named, verify, {.is = is_checkpoint, .require = require_checkpoint, .holds = "model"});
}

fs::path named_folder(const fs::path& named, Verify verify, const FolderKind& kind) {
  const auto wrong_with = [&](const fs::path& dir) { return verify == Verify::yes ? damage(dir) : ""; };
  if (!kind.is(named) && !checkpoint_steps(named).empty()) {
    const fs::path best = named / "best";
    const std::string wrong = kind.is(best) ? wrong_with(best) : "";
    if (kind.is(best) && wrong.empty()) {
      log::info("{}: taking its best checkpoint, {}", named.string(), fs::canonical(best).filename().string());
      return best;
    }
    if (!wrong.empty()) log::warning("passing over {}: {}", best.string(), wrong);
    const fs::path newest = newest_of_run(named, verify, kind);
    log::info("{}: taking its newest checkpoint, {}", named.string(), newest.filename().string());
    return newest;
  }
  kind.require(named);
  const std::string wrong = wrong_with(named);
  check(wrong.empty(), "{}: {}. --no-verify takes it all the same; after a change that was meant, remove its {}", named.string(), wrong,
        kManifest);
  return named;
}

WeightFiles::WeightFiles(const fs::path& where) : where_(where) {
  if (!fs::is_directory(where)) {
    name_ = where.filename().string();
    add(std::make_unique<SafeTensors>(where));
    return;
  }
  if (fs::exists(where / kSingle)) {
    name_ = kSingle;
    add(std::make_unique<SafeTensors>(where / kSingle));
    return;
  }
  check(fs::exists(where / kIndex), "{}: looked for {} and {}, found neither", where.string(), kSingle, kIndex);
  name_ = kIndex;
  const auto index = parse_weight_index(read_small_file(where / kIndex), (where / kIndex).string());
  std::map<std::string, const SafeTensors*> shards;
  for (const auto& [tensor, shard] : index) {
    if (shards.contains(shard)) continue;
    check(fs::exists(where / shard), "{}: {} names {}, which is missing", where.string(), kIndex, shard);
    add(std::make_unique<SafeTensors>(where / shard));
    shards[shard] = files_.back().get();
  }
  std::string absent;
  for (const auto& [tensor, shard] : index)
    if (!shards[shard]->find(tensor)) absent += fmt::format("\n  {} is not in {}", tensor, shard);
  check(absent.empty(), "{}: {} and the shards disagree:{}", where.string(), kIndex, absent);
}

void WeightFiles::add(std::unique_ptr<SafeTensors> file) {
  for (const auto& [name, t] : file->tensors()) {
    const auto [it, fresh] = tensors_.try_emplace(name, Entry{file.get(), &t});
    check(fresh, "{}: tensor {} is also in {}", file->path().string(), name, it->second.file->path().filename().string());
  }
  files_.push_back(std::move(file));
}

const WeightFiles::Entry* WeightFiles::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::string WeightFiles::name() const { return name_; }

bool is_float_dtype(const std::string& dtype) { return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64"; }

std::vector<std::string> mismatches(const WeightFiles& files, const std::vector<Parameter>& parameters) {
  std::vector<std::string> out;
  std::map<std::string, const Parameter*> wanted;
  for (const Parameter& p : parameters) {
    if (p.adapter()) continue;
    wanted[p.name] = &p;
    const WeightFiles::Entry* e = files.find(p.name);
    if (!e) {
      if (!p.optional)
        out.push_back(fmt::format("{}: tensor {} is missing, config.json asks for {}", files.name(), p.name, shape_string(p.shape)));
      continue;
    }
    const std::string where = e->file->path().filename().string();
    const bool scalars = p.size == 1 && e->tensor->size() == 1 && p.shape.size() <= 1 && e->tensor->shape.size() <= 1;
    if (e->tensor->shape != p.shape && !scalars)
      out.push_back(fmt::format("{}: tensor {} has shape {}, config.json asks for {}", where, p.name, shape_string(e->tensor->shape),
                                shape_string(p.shape)));
    else if (!is_float_dtype(e->tensor->dtype))
      out.push_back(fmt::format("{}: tensor {} is {}, expected F32, BF16, F16 or F64", where, p.name, e->tensor->dtype));
  }
  // Harmless: buffers of old versions, the copy of a tied LM head, corrections of layers that need none.
  const bool tied = !wanted.contains("lm_head.weight");
  const bool corrected = std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return is_correction(p.name); });
  const auto harmless = [&](const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight") || (corrected && is_correction(name));
  };
  for (const auto& [name, e] : files.tensors())
    if (!wanted.contains(name) && !harmless(name))
      out.push_back(fmt::format("{}: tensor {} {} is unexpected, config.json asks for none of that name",
                                e.file->path().filename().string(), name, shape_string(e.tensor->shape)));
  return out;
}

void check_tied_head(const WeightFiles& files, const std::vector<Parameter>& parameters) {
  const WeightFiles::Entry* head = files.find("lm_head.weight");
  const bool tied = std::none_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.name == "lm_head.weight"; });
  const WeightFiles::Entry* embedding = files.find("model.embed_tokens.weight");
  if (!tied || !head || !embedding) return;
  const SafeTensor &a = *head->tensor, &b = *embedding->tensor;
  const bool same = a.shape == b.shape && a.dtype == b.dtype && std::memcmp(a.data, b.data, a.end - a.begin) == 0;
  head->file->release(a);
  embedding->file->release(b);
  check(same, "{}: config.json ties the LM head to the embedding, but lm_head.weight differs from model.embed_tokens.weight",
        head->file->path().string());
  log::info("{}: lm_head.weight is a copy of the embedding, as config.json says; left out", head->file->path().filename().string());
}

void each_piece(const WeightFiles::Entry& entry, const std::function<void(const float*, std::int64_t, std::int64_t)>& f) {
  constexpr std::int64_t kPiece = 1 << 20;
  const std::int64_t size = entry.tensor->size();
  const std::uint64_t element = safetensors_dtype_size(entry.tensor->dtype);
  std::vector<float> floats(static_cast<std::size_t>(std::min(size, kPiece)));
  for (std::int64_t first = 0; first < size; first += kPiece) {
    const std::int64_t n = std::min(kPiece, size - first);
    SafeTensors::to_float(*entry.tensor, first, n, floats.data());
    f(floats.data(), first, n);
    entry.file->release(*entry.tensor, static_cast<std::uint64_t>(first) * element, static_cast<std::uint64_t>(first + n) * element);
  }
}

}  // namespace bhyt
