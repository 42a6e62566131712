// llama2.c's legacy checkpoints: seven int32 and then fp32 weights, read in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/config.h"

namespace bhyt {

class Llama2cFile {
 public:
  explicit Llama2cFile(const std::filesystem::path& file);
  // The same over bytes that the caller keeps alive; `name` stands for the file in messages.
  Llama2cFile(const void* data, std::size_t bytes, const std::string& name);
  ~Llama2cFile();
  Llama2cFile(const Llama2cFile&) = delete;
  Llama2cFile& operator=(const Llama2cFile&) = delete;

  // Whether the header could be one and the size is what it asks for.
  static bool recognised(const std::filesystem::path& file);

  const ModelConfig& config() const { return config_; }

  struct Weight {
    std::string name;  // Hugging Face's
    std::vector<std::int64_t> shape;
    std::int64_t heads = 0;  // not 0: rows of this many heads change from interleaved RoPE to rotate-half
    std::size_t at = 0;      // bytes from the start of the file
  };
  const std::vector<Weight>& weights() const { return weights_; }
  // Rows [first, first + n) of a weight in Hugging Face's order, to out [n, columns]; a vector is rows of one column.
  void rows(const Weight& w, std::int64_t first, std::int64_t n, float* out) const;
  // Tells the system that a weight's pages are not needed any more.
  void release(const Weight& w) const;

 private:
  void parse(const std::string& name);
  void* map_ = nullptr;
  const char* data_ = nullptr;
  std::size_t bytes_ = 0;
  ModelConfig config_;
  std::vector<Weight> weights_;
};

}  // namespace bhyt
