// What files of tensors hold, as plain vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/checkpoint_files.h"
#include "model/safetensors.h"

namespace bhyt::test {

// Ids that are stored as int64.
inline std::vector<std::int32_t> ids_of(const SafeTensor& t) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(t.size()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::int64_t id = 0;
    std::memcpy(&id, static_cast<const char*>(t.data) + 8 * i, 8);
    ids[i] = static_cast<std::int32_t>(id);
  }
  return ids;
}

// Every tensor of a checkpoint by its name.
inline std::map<std::string, std::vector<float>> values_in(const std::filesystem::path& dir) {
  std::map<std::string, std::vector<float>> out;
  const WeightFiles files(dir);
  for (const auto& [name, e] : files.tensors()) {
    std::vector<float>& values = out[name];
    values.resize(static_cast<std::size_t>(e.tensor->size()));
    SafeTensors::to_float(*e.tensor, 0, e.tensor->size(), values.data());
  }
  return out;
}

}  // namespace bhyt::test
