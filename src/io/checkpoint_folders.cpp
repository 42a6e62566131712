#include "io/checkpoint_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/threads.h"
#include "io/hash.h"
#include "io/json.h"

namespace bhyt {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPrefix = "checkpoint-";

// What a manifest says of a file's content: since version 2 the hash of its pieces' hashes; in version 1 the XXH64 of all of it, which one
// thread alone can compute.
constexpr int kManifestVersion = 2;
constexpr const char *kChecksum = "xxh64_pieces", *kChecksumOfVersion1 = "xxh64";

std::string checksum(Threads& threads, const fs::path& file) { return fmt::format("{:016x}", hash_file_pieces(threads, file)); }
std::string checksum_of_version_1(const fs::path& file) { return fmt::format("{:016x}", hash_file(file)); }

bool is_manifest(const Json& j) { return j.is_object() && j.contains("version") && j.contains("files") && j["files"].is_object(); }

// What the trainer always lists: the model (or its adapter) and the state of the run. Others may be put beside them later.
bool must_be_listed(const std::string& name) {
  static const std::set<std::string> kNames = {"config.json",         "model.safetensors",         "model.safetensors.index.json",
                                               "adapter_config.json", "adapter_model.safetensors", std::string(kTrainerState)};
  return kNames.contains(name) || (name.starts_with("model-") && name.ends_with(".safetensors"));
}

// "" where the manifest says something of every such file that lies there.
std::string unlisted(const fs::path& dir, const Json& files, const std::function<bool(const std::string&)>& which) {
  std::string first;  // by name
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(dir, gone)) {
    const std::string name = entry.path().filename().string();
    if (must_be_listed(name) && (!which || which(name)) && !files.contains(name) && (first.empty() || name < first)) first = name;
  }
  return first.empty() ? "" : fmt::format("manifest.json does not list {}", first);
}

}  // namespace

std::vector<std::int64_t> checkpoint_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code failed, ignored;
  for (fs::directory_iterator it(run, failed), none; !failed && it != none; it.increment(failed)) {
    const fs::directory_entry& entry = *it;
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with(kPrefix) || !entry.is_directory(ignored)) continue;
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (error == std::errc() && stop == end && step >= 0) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

fs::path checkpoint_folder(const fs::path& run, std::int64_t step) { return run / fmt::format("{}{}", kPrefix, step); }

std::optional<std::int64_t> best_step(const fs::path& run) {
  std::error_code none;
  const fs::path target = fs::read_symlink(run / kBest, none);
  for (const std::int64_t step : checkpoint_steps(run))
    if (target == checkpoint_folder(run, step).filename()) return step;
  return std::nullopt;
}

void write_manifest(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.is_regular_file() && entry.path().filename() != kManifest) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Threads threads;
  Json list = Json::object();
  for (const fs::path& file : files) {
    sync_to_disk(file);
    list[file.filename().string()] = {{"bytes", fs::file_size(file)}, {kChecksum, checksum(threads, file)}};
  }
  write_synced(dir / kManifest, Json{{"version", kManifestVersion}, {"files", list}}.dump(2) + "\n");
  sync_to_disk(dir);
}

std::string optimizer_file(std::int64_t rank, std::int64_t ranks) {
  return ranks == 1 ? kOptimizerState : fmt::format("optimizer-{}-of-{}.safetensors", rank + 1, ranks);
}

bool is_optimizer_file(const std::string& name) {
  return name == kOptimizerState || (name.starts_with("optimizer-") && name.ends_with(".safetensors"));
}

std::vector<std::string> optimizer_files(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(dir, failed))
    if (const std::string name = entry.path().filename().string(); is_optimizer_file(name)) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string incomplete_optimizer(const fs::path& dir) {
  const std::vector<std::string> names = optimizer_files(dir);
  if (names.empty()) return "";
  const std::string &any = names.front(), of = "-of-";
  const std::size_t at = any.find(of);
  std::int64_t ranks = 1;
  if (at != std::string::npos) std::from_chars(any.data() + at + of.size(), any.data() + any.size(), ranks);
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    if (const std::string name = optimizer_file(rank, ranks); std::find(names.begin(), names.end(), name) == names.end())
      return fmt::format("{} is missing", name);
  if (static_cast<std::int64_t>(names.size()) == ranks) return "";
  return fmt::format("it holds optimizer state of more than one kind: {}", fmt::join(names, ", "));
}

void remove_listed(const fs::path& dir, const std::vector<std::string>& files) {
  if (files.empty()) return;
  Json manifest = json_or_discarded(read_text(dir / kManifest));
  if (!is_manifest(manifest)) return;  // damaged: left as it is
  for (const std::string& file : files) manifest["files"].erase(file);
  replace_synced(dir / kManifest, manifest.dump(2) + "\n");  // first, so that it verifies at every moment
  for (const std::string& file : files) fs::remove(dir / file);
}

std::string verify_manifest(const fs::path& dir, const std::function<bool(const std::string&)>& which, Compare compare) {
  if (!fs::is_regular_file(dir / kManifest)) return "it has no manifest.json";
  const Json manifest = json_or_discarded(read_text(dir / kManifest));
  if (!is_manifest(manifest)) return "manifest.json is damaged";
  const bool of_version_1 = manifest["version"] == 1;
  if (!of_version_1 && manifest["version"] != kManifestVersion)
    return fmt::format("manifest.json has version {}, expected {} or 1", manifest["version"].dump(), kManifestVersion);
  const char* const key = of_version_1 ? kChecksumOfVersion1 : kChecksum;
  Threads threads;
  for (const auto& [name, entry] : manifest["files"].items()) {
    if (!entry.is_object() || !entry.contains("bytes") || !entry.contains(key)) return "manifest.json is damaged";
    if (which && !which(name)) continue;
    const fs::path file = dir / fs::path(name).filename();
    if (!fs::is_regular_file(file)) return fmt::format("{} is missing", name);
    if (fs::file_size(file) != entry["bytes"])
      return fmt::format("{} has {} bytes instead of {}", name, fs::file_size(file), entry["bytes"].dump());
    if (compare == Compare::checksums && entry[key] != Json(of_version_1 ? checksum_of_version_1(file) : checksum(threads, file)))
      return fmt::format("{} is damaged (its checksum differs)", name);
  }
  return unlisted(dir, manifest["files"], which);
}

}  // namespace bhyt
