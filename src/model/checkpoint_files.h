// The weight files of a checkpoint folder, as one list of tensors: model.safetensors, or shards with their index.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint_folders.h"
#include "model/parameters.h"
#include "model/safetensors.h"

namespace bhyt {

class WeightFiles {
 public:
  // A folder, or one .safetensors file. Only headers are read.
  explicit WeightFiles(const std::filesystem::path& where);

  struct Entry {
    const SafeTensors* file;
    const SafeTensor* tensor;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const Entry* find(const std::string& name) const;
  const std::vector<std::unique_ptr<SafeTensors>>& files() const { return files_; }
  std::string name() const;  // "model.safetensors", "model.safetensors.index.json"

 private:
  void add(std::unique_ptr<SafeTensors> file);
  std::filesystem::path where_;
  std::vector<std::unique_ptr<SafeTensors>> files_;
  std::map<std::string, Entry> tensors_;
  std::string name_;
};

// The shard of every tensor, from the text of an index. Names with folders in them could point anywhere and are refused.
std::map<std::string, std::string> parse_weight_index(std::string_view text, const std::string& name);

// Whether a folder holds a model; require_ throws Error saying what was looked for and what is there instead.
bool is_checkpoint(const std::filesystem::path& dir);
void require_checkpoint(const std::filesystem::path& dir);

// The checkpoint folder that a user means: the one named or, of a run directory, best/ where there is one, else the newest that can be
// used; a message says which. What a model is read from is compared with manifest.json, if there is one: Error where it is damaged.
std::filesystem::path named_checkpoint(const std::filesystem::path& named, Verify verify);

// The same for any kind of folder that a run's checkpoints may be.
struct FolderKind {
  bool (*is)(const std::filesystem::path&);
  void (*require)(const std::filesystem::path&);  // Error where it is none
  const char* holds;                              // "model"
};
std::filesystem::path named_folder(const std::filesystem::path& named, Verify verify, const FolderKind& kind);

// What does not fit between the files and a model's parameters, each a line; empty when all is well. Needs no weights, only headers.
std::vector<std::string> mismatches(const WeightFiles& files, const std::vector<Parameter>& parameters);

// With a tied LM head a file may hold its copy; anything but a copy means that the config is wrong: Error.
void check_tied_head(const WeightFiles& files, const std::vector<Parameter>& parameters);

// Calls f(floats, first, n) over the whole tensor in pieces, letting its pages go as it proceeds, so that it is never held whole.
void each_piece(const WeightFiles::Entry& entry, const std::function<void(const float*, std::int64_t first, std::int64_t n)>& f);

bool is_float_dtype(const std::string& dtype);

}  // namespace bhyt
