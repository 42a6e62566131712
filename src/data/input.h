// Where documents come from: which files a list of paths, folders and globs means, and their bytes, unpacked as they are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bhyt {

enum class Compression : std::uint8_t { none, gzip, zstd };
enum class Records : std::uint8_t { jsonl, text };

struct InputFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds
  Compression compression = Compression::none;
  Records records = Records::jsonl;
};

// Files as given; folders recursively and globs, each in the order of their names. A folder gives the files pack can read; a file
// named outright must be one. Nothing found is an Error.
std::vector<InputFile> find_inputs(const std::vector<std::string>& paths);

bool named_as_text(const std::string& path);  // as a file that pack can read

// Paths with globs expanded, each in the order of its names; folders stay. Nothing found is an Error.
std::vector<std::string> expand_globs(const std::vector<std::string>& paths);

class InputStream {
 public:
  virtual ~InputStream() = default;
  virtual std::size_t read(char* to, std::size_t n) = 0;  // 0 at the end; throws on damaged data
  std::uint64_t consumed() const { return consumed_; }    // bytes of the file on disk

 protected:
  std::uint64_t consumed_ = 0;
};

std::unique_ptr<InputStream> open_input(const InputFile& file);

}  // namespace bhyt
