#include "train/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/check.h"
#include "parallel/launch.h"

namespace bhyt::train {

namespace {

constexpr const char* kTemporary = "tmp-checkpoint-";  // half-written or half-removed
constexpr const char* kEarlier = "earlier-";           // runs that resume=restart put aside

// The topmost folder of a path that does not exist yet; empty where all do.
fs::path first_missing(const fs::path& path) {
  fs::path missing;
  std::error_code ignored;
  for (fs::path p = path; !p.empty() && !fs::exists(p, ignored); p = p.parent_path()) missing = p;
  return missing;
}

// What a run writes, but for what the next one may use again (tuning.json, packed data).
bool is_history(const std::string& name) {
  constexpr const char* kNames[] = {"resolved.yaml", "run.json",   "metrics.jsonl", "log.txt", "report.html",
                                    "analysis.json", "trace.json", kMerged,         kBest};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) || name.starts_with("checkpoint-") ||
         name.starts_with("events.out.tfevents.");
}

}  // namespace

RunDir::RunDir(const fs::path& path) : RunDir(path, nullptr) {}

RunDir::RunDir(const fs::path& path, parallel::Group* group) : path_(path.has_filename() ? path : path.parent_path()), group_(group) {
  stage([&] {
    if (owned()) open();
  });
  if (!group_) return;
  try {
    compare();
  } catch (...) {
    if (owned()) leave();
    throw;
  }
}

// Whether all ranks see the same folder, by a name that only this run knows.
void RunDir::compare() const {
  const fs::path sign = path_ / (kTemporary + parallel::gather_texts(*group_, owned() ? std::to_string(::getpid()) : "").front());
  stage([&] {
    if (owned()) fs::create_directory(sign);
  });
  stage([&] {
    check(fs::is_directory(sign), "the run directory {} is not the one that rank 0 on {} made: all ranks must see one file system there",
          path_.string(), group_->host(0));
  });
  stage([&] {
    if (owned()) fs::remove(sign);
  });
}

void RunDir::stage(const std::function<void()>& work) const { parallel::together(group_, work); }

void RunDir::open() {
  made_ = first_missing(path_);
  std::error_code error;
  fs::create_directories(path_, error);
  check(!error && fs::is_directory(path_), "could not make the run directory {}: {}", path_.string(),
        error ? error.message() : "something else has that name");
  const bool writable = ::access(path_.c_str(), W_OK | X_OK) == 0;  // by itself: arguments, errno among them, come in any order
  check(writable, "could not write to the run directory {}: {}", path_.string(), std::strerror(errno));
  // The folder itself carries the lock, so that no lock file outlives the process or travels with a copy.
  lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check(lock_ >= 0, "could not open the run directory {}: {}", path_.string(), std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(lock_);
    check(reason != EWOULDBLOCK, "the run directory {} is being written by another process", path_.string());
    throw Error(fmt::format("could not lock the run directory {}: {}", path_.string(), std::strerror(reason)));
  }
  kept_ = !fs::is_empty(path_);
  for (const auto& entry : fs::directory_iterator(path_))
    if (entry.is_directory() && entry.path().filename().string().starts_with(kTemporary)) fs::remove_all(entry.path());
}

RunDir::~RunDir() {
  if (lock_ >= 0) leave();
}

void RunDir::leave() {
  if (!kept_) clear();
  ::close(lock_);
}

// As it was before: the folder empty, or gone with those above it that were made for it.
void RunDir::clear() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) fs::remove_all(entry.path(), ignored);
  if (made_.empty()) return;
  for (fs::path p = path_; fs::remove(p, ignored) && p != made_;) p = p.parent_path();
}

bool RunDir::holds_run() const {
  return fs::exists(path_ / "resolved.yaml") || fs::exists(path_ / "metrics.jsonl") || !checkpoints().empty();
}

fs::path RunDir::set_aside() {
  fs::path aside;
  for (int n = 1; aside.empty() || fs::exists(aside); ++n) aside = path_ / fmt::format("{}{}", kEarlier, n);
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(path_))
    if (is_history(entry.path().filename().string())) entries.push_back(entry.path());
  fs::create_directory(aside);
  for (const fs::path& entry : entries) fs::rename(entry, aside / entry.filename());
  sync_to_disk(path_);
  return aside;
}

void RunDir::write_folder(const fs::path& target, const std::function<void(const fs::path&)>& fill) {
  const fs::path beside = path_ / fmt::format("{}{}", kTemporary, target.filename().string());
  try {
    fs::remove_all(beside);
    fs::create_directory(beside);
    fill(beside);
    write_manifest(beside);
    fs::rename(beside, target);
    sync_to_disk(path_);
  } catch (const std::exception& e) {
    std::error_code ignored;
    fs::remove_all(beside, ignored);
    throw Error(fmt::format("could not write {}: {}", target.string(), e.what()));
  }
}

void RunDir::link_best(std::int64_t step) {
  if (step == 0 || !fs::exists(checkpoint(step))) return;
  const fs::path link = path_ / kBest, beside = path_ / "tmp-best", target = checkpoint(step).filename();
  std::error_code error;
  if (fs::is_symlink(link) && fs::read_symlink(link, error) == target) return;
  fs::remove(beside, error);
  fs::create_directory_symlink(target, beside);
  fs::rename(beside, link);
  sync_to_disk(path_);
}

void RunDir::write_checkpoint(std::int64_t step, const std::function<void(const fs::path&)>& fill) {
  const fs::path target = checkpoint(step), beside = path_ / fmt::format("{}{}", kTemporary, step);
  try {
    stage([&] {
      if (!owned()) return;
      fs::remove_all(beside);
      fs::create_directory(beside);
    });
    stage([&] { fill(beside); });
    stage([&] {
      if (!owned()) return;
      write_manifest(beside);
      put_in_place(beside, step);
      sync_to_disk(path_);
    });
    kept_ = true;
  } catch (const std::exception& e) {
    std::error_code ignored;
    if (owned()) fs::remove_all(beside, ignored);
    throw Error(fmt::format("could not save {}: {} (earlier checkpoints are untouched)", target.string(), e.what()));
  }
}

// Where one is there already (that did not verify, or that an interrupt left), the two change places: at every moment one is there.
void RunDir::put_in_place(const fs::path& beside, std::int64_t step) {
  const fs::path target = checkpoint(step);
  if (fs::exists(target) && ::renameat2(AT_FDCWD, beside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(beside);
    return;
  }
  const fs::path old = take_out(step);  // a file system that cannot exchange
  fs::rename(beside, target);
  fs::remove_all(old);
}

// Renamed before it is removed: a process killed half-way leaves no half checkpoint behind.
fs::path RunDir::take_out(std::int64_t step) {
  const fs::path gone = path_ / fmt::format("{}{}-removed", kTemporary, step);
  fs::remove_all(gone);
  if (fs::exists(checkpoint(step))) fs::rename(checkpoint(step), gone);
  return gone;
}

void RunDir::remove_checkpoint(std::int64_t step) { fs::remove_all(take_out(step)); }

}  // namespace bhyt::train
