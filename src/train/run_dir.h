// A run directory: locked while it is written, its checkpoints whole or absent, leftovers of killed processes cleared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/checkpoint_folders.h"
#include "parallel/group.h"

namespace bhyt::train {

constexpr const char* kMerged = "merged";  // adapters and the weights below them, as one checkpoint

class RunDir {
 public:
  // Makes it where it is missing, locks it, clears what a killed process left half-written.
  explicit RunDir(const fs::path& path);
  // The same for the ranks of a group: the first one owns the directory, the others read it and take part in write_checkpoint. All must see
  // the same one.
  RunDir(const fs::path& path, parallel::Group* group);
  ~RunDir();  // a folder that was empty or missing is so again, unless something was kept
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;

  const fs::path& path() const { return path_; }
  bool owned() const { return !group_ || group_->rank() == 0; }                      // what is no checkpoint is written by its owner alone
  bool holds_run() const;                                                            // some process trained here before
  std::vector<std::int64_t> checkpoints() const { return checkpoint_steps(path_); }  // newest first
  fs::path checkpoint(std::int64_t step) const { return checkpoint_folder(path_, step); }
  void keep() { kept_ = true; }  // what is in it outlives this object; a checkpoint does so anyway
  fs::path set_aside();          // moves what a run writes into a new folder earlier-N of it, which is returned

  // Calls fill on an empty folder beside, lists sizes and checksums in its manifest.json, syncs everything and renames.
  // When anything fails, nothing is left and what was there before is untouched. Of several ranks each fills in its files.
  void write_checkpoint(std::int64_t step, const std::function<void(const fs::path&)>& fill);
  void write_folder(const fs::path& target, const std::function<void(const fs::path&)>& fill);  // the same for another folder in it
  void remove_checkpoint(std::int64_t step);
  void link_best(std::int64_t step);  // `best` stands for that checkpoint; nothing for step 0, or where it is not there

 private:
  void open();
  void compare() const;
  void leave();
  void stage(const std::function<void()>& work) const;  // on all ranks, or on none
  void put_in_place(const fs::path& beside, std::int64_t step);
  fs::path take_out(std::int64_t step);  // a checkpoint that is there is renamed; where to, whether or not there was one
  void clear() const;
  fs::path path_, made_;  // made_: the topmost folder that was made for it
  bool kept_ = false;
  int lock_ = -1;
  parallel::Group* group_ = nullptr;
};

}  // namespace bhyt::train
