// Checkpoints from one form into another: other types, other shards, llama2.c's files into folders.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/dtype.h"

namespace bhyt {

class Adapter;

struct ConvertOptions {
  std::optional<DType> dtype = {};  // of every tensor; empty: as stored
  std::uint64_t max_shard = 5'000'000'000;
  const Adapter* merge = nullptr;  // into the weights of a checkpoint folder, in fp32, before they are rounded
  // Called on the folder before it gets its name, to add what the model layer knows nothing of (tokenizers).
  std::function<void(const std::filesystem::path&)> finish = {};
};

// The files of a tokenizer and generation_config.json from folder to folder, as far as they are there.
void copy_companions(const std::filesystem::path& from, const std::filesystem::path& to);

// from: a checkpoint folder, or a legacy llama2.c file. to: a folder that does not exist yet or is empty; it appears whole or not at all.
// Needs memory for a few pieces of a tensor, never for the model.
void convert_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to, const ConvertOptions& options);

}  // namespace bhyt
