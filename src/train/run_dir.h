// A run directory: locked while it is written, its checkpoints whole or absent, leftovers of killed processes cleared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/files.h"

namespace bhyt::train {

class RunDir {
 public:
  explicit RunDir(fs::path path);  // makes it where it is missing, locks it, clears what a killed process left half-written
  ~RunDir();
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  const fs::path& path() const { return path_; }
  bool holds_run() const;                         // some process trained here before
  std::vector<std::int64_t> checkpoints() const;  // their steps, newest first
  fs::path checkpoint(std::int64_t step) const;

  // Calls fill on an empty folder beside, lists sizes and checksums in its manifest.json, syncs everything and renames.
  // When anything fails, nothing is left and what was there before is untouched.
  void write_checkpoint(std::int64_t step, const std::function<void(const fs::path&)>& fill);
  void remove_checkpoint(std::int64_t step);
  // Takes one file out of a checkpoint, so that it still verifies.
  void remove_from_checkpoint(std::int64_t step, const std::string& file);

 private:
  fs::path path_;
  int lock_ = -1;
};

// "" when every file that manifest.json lists is there with its size and checksum, else what is wrong.
std::string verify_checkpoint(const fs::path& dir);

}  // namespace bhyt::train
