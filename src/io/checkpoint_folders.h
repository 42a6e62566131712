// The checkpoint-N folders of a run directory, and the manifest.json that tells whether the files of one are as they were saved.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/files.h"

namespace bhyt {

std::vector<std::int64_t> checkpoint_steps(const fs::path& run);  // newest first; none where there is no such folder
fs::path checkpoint_folder(const fs::path& run, std::int64_t step);

constexpr const char* kBest = "best";                        // a link to the checkpoint with the lowest validation loss
std::optional<std::int64_t> best_step(const fs::path& run);  // of the checkpoint that it stands for

// Files of a checkpoint beside those of the model.
constexpr const char* kManifest = "manifest.json";
constexpr const char* kTrainerState = "trainer_state.json";
constexpr const char* kOptimizerState = "optimizer.safetensors";

// The same where several processes keep a part each: optimizer-2-of-4.safetensors, from 1.
std::string optimizer_file(std::int64_t rank, std::int64_t ranks);
bool is_optimizer_file(const std::string& name);
std::vector<std::string> optimizer_files(const fs::path& dir);  // in order; none where only weights are there
// "" when those that are there are all of one set, or none; else what is wrong. A process that was killed while it removed them leaves
// some.
std::string incomplete_optimizer(const fs::path& dir);

// Lists every file of the folder with its size and checksum, synced.
void write_manifest(const fs::path& dir);
// Takes files out of a checkpoint, so that it still verifies.
void remove_listed(const fs::path& dir, const std::vector<std::string>& files);

enum class Verify : std::uint8_t { yes, no };                 // whether what is read from a checkpoint is compared with its manifest
enum class Compare : std::uint8_t { checksums, sizes_only };  // sizes are known without reading

// "" when every file that manifest.json lists (and `which` asks for) is there with its size and checksum, and nothing of the model lies
// there that it does not list; else what is wrong.
std::string verify_manifest(const fs::path& dir, const std::function<bool(const std::string& file)>& which = {},
                            Compare compare = Compare::checksums);

}  // namespace bhyt
