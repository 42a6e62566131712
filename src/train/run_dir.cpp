#include "train/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "core/check.h"
#include "core/log.h"
#include "core/schema.h"
#include "data/files.h"
#include "io/hash.h"

namespace bhyt::train {

namespace {

using schema::Json;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kPrefix = "checkpoint-";
constexpr const char* kTemporary = "tmp-checkpoint-";  // half-written or half-removed

std::string checksum(const fs::path& file) {
  const MappedFile map(file.string());
  return fmt::format("{:016x}", hash64(map.data(), map.size()));
}

void write_manifest(const fs::path& dir) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dir))
    if (entry.is_regular_file() && entry.path().filename() != kManifest) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Json list = Json::object();
  for (const fs::path& file : files) {
    sync_to_disk(file);
    list[file.filename().string()] = {{"bytes", fs::file_size(file)}, {"xxh64", checksum(file)}};
  }
  write_synced(dir / kManifest, Json{{"version", 1}, {"files", list}}.dump(2) + "\n");
  sync_to_disk(dir);
}

}  // namespace

RunDir::RunDir(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  check(!error && fs::is_directory(path_), "could not make the run directory {}: {}", path_.string(),
        error ? error.message() : "something else has that name");
  check(::access(path_.c_str(), W_OK | X_OK) == 0, "could not write to the run directory {}: {}", path_.string(), std::strerror(errno));
  // The folder itself carries the lock, so that no lock file outlives the process or travels with a copy.
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(lock_ >= 0, "could not open the run directory {}: {}", path_.string(), std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(lock_);
    check(reason != EWOULDBLOCK, "the run directory {} is being written by another process", path_.string());
    throw Error(fmt::format("could not lock the run directory {}: {}", path_.string(), std::strerror(reason)));
  }
  for (const auto& entry : fs::directory_iterator(path_))
    if (entry.is_directory() && entry.path().filename().string().starts_with(kTemporary)) fs::remove_all(entry.path());
}

RunDir::~RunDir() { ::close(lock_); }

bool RunDir::holds_run() const {
  return fs::exists(path_ / "resolved.yaml") || fs::exists(path_ / "metrics.jsonl") || !checkpoints().empty();
}

fs::path RunDir::checkpoint(std::int64_t step) const { return path_ / fmt::format("{}{}", kPrefix, step); }

std::vector<std::int64_t> RunDir::checkpoints() const {
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    const char* end = name.data() + name.size();
    if (!name.starts_with(kPrefix) || !entry.is_directory()) continue;
    const auto [stop, error] = std::from_chars(name.data() + std::strlen(kPrefix), end, step);
    if (error == std::errc() && stop == end && step >= 0) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

void RunDir::write_checkpoint(std::int64_t step, const std::function<void(const fs::path&)>& fill) {
  const fs::path target = checkpoint(step), beside = path_ / fmt::format("{}{}", kTemporary, step);
  try {
    fs::remove_all(beside);
    fs::create_directory(beside);
    fill(beside);
    write_manifest(beside);
    if (fs::exists(target)) remove_checkpoint(step);  // one that did not verify, or that another attempt left
    fs::rename(beside, target);
    sync_to_disk(path_);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw Error(fmt::format("could not save {}: {} (earlier checkpoints are untouched)", target.string(), e.what()));
  }
}

void RunDir::remove_checkpoint(std::int64_t step) {
  // Renamed first: a process killed half-way leaves no half checkpoint behind.
  const fs::path gone = path_ / fmt::format("{}{}-removed", kTemporary, step);
  fs::remove_all(gone);
  fs::rename(checkpoint(step), gone);
  fs::remove_all(gone);
}

void RunDir::remove_from_checkpoint(std::int64_t step, const std::string& file) {
  const fs::path dir = checkpoint(step);
  if (!fs::exists(dir / file)) return;
  Json manifest = Json::parse(read_text(dir / kManifest), nullptr, false);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) return;  // damaged: left as it is
  manifest["files"].erase(file);
  replace_synced(dir / kManifest, manifest.dump(2) + "\n");  // first, so that it verifies at every moment
  fs::remove(dir / file);
}

std::string verify_checkpoint(const fs::path& dir) {
  if (!fs::is_regular_file(dir / kManifest)) return "it has no manifest.json";
  const Json manifest = Json::parse(read_text(dir / kManifest), nullptr, false);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) return "manifest.json is damaged";
  for (const auto& [name, entry] : manifest["files"].items()) {
    if (!entry.is_object() || !entry.contains("bytes") || !entry.contains("xxh64")) return "manifest.json is damaged";
    const fs::path file = dir / fs::path(name).filename();
    if (!fs::is_regular_file(file)) return fmt::format("{} is missing", name);
    if (fs::file_size(file) != entry["bytes"])
      return fmt::format("{} has {} bytes instead of {}", name, fs::file_size(file), entry["bytes"].dump());
    if (entry["xxh64"] != Json(checksum(file))) return fmt::format("{} is damaged (its checksum differs)", name);
  }
  return "";
}

}  // namespace bhyt::train
