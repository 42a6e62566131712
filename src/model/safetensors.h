// safetensors: strict, memory-mapped reader and streaming writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace bhyt {

struct SafeTensor {
  std::string name;
  std::string dtype;                 // "F32", "BF16", …
  std::vector<std::int64_t> shape;   // [] is a scalar
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
  const void* data = nullptr;        // inside the mapping; not necessarily aligned
  std::int64_t size() const {
    std::int64_t n = 1;
    for (auto d : shape) n *= d;
    return n;
  }
};

// A whole file, mapped read-only. Anything malformed throws Error naming the file and what is wrong.
class SafeTensors {
 public:
  explicit SafeTensors(const std::filesystem::path& file);
  // The same over bytes that the caller keeps alive; `name` stands for the file in messages.
  SafeTensors(const void* data, std::size_t bytes, const std::string& name);
  ~SafeTensors();
  SafeTensors(SafeTensors&&) noexcept;
  SafeTensors& operator=(SafeTensors&&) noexcept;

  const std::map<std::string, SafeTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafeTensor* find(const std::string& name) const;
  const SafeTensor& at(const std::string& name) const;
  const std::filesystem::path& path() const { return path_; }
  std::uint64_t file_bytes() const { return bytes_; }

  // Elements [first, first+n) as fp32, whatever number type the file holds (Error for a type that has no plain value).
  static void to_float(const SafeTensor& t, std::int64_t first, std::int64_t n, float* out);
  // Tells the system that the pages of bytes [begin, end) of the tensor are not needed for now, so that reading a file never keeps it in
  // memory.
  void release(const SafeTensor& t, std::uint64_t begin, std::uint64_t end) const;
  void release(const SafeTensor& t) const { release(t, 0, t.end - t.begin); }

 private:
  void parse(const std::uint8_t* data);
  std::filesystem::path path_;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
  std::map<std::string, SafeTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// One tensor to be written. fill is called once, in file order, and must deliver exactly the tensor's bytes through put(data, bytes).
struct SafeTensorOut {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::function<void(const std::function<void(const void*, std::size_t)>& put)> fill;
};

// Writes, flushes and syncs `file` (no rename: the caller owns the atomicity of its folder). Throws with errno's text on a full disk.
void write_safetensors(const std::filesystem::path& file, std::vector<SafeTensorOut> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

const char* safetensors_dtype(DType t);
// Bytes of one element of a whole-byte type; 0 for a type we do not know.
std::size_t safetensors_dtype_size(const std::string& dtype);
// fp32 → fp32, bf16, fp16 or fp64, rounded to nearest even.
void encode_floats(const float* in, std::int64_t n, DType type, void* out);

// Lets go of the pages of a read-only mapping; they come back from the file when they are read again.
void release_pages(const void* data, std::size_t bytes);

std::string shape_string(const std::vector<std::int64_t>& shape);  // "[172, 64]"

}  // namespace bhyt
