// Files that appear whole or not at all, and what is asked of places before work whose outcome goes there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bhyt {

bool is_there(const std::string& path);  // false, too, where one may not look

// Where a file to be replaced by `path`'s name really lies: links are followed, and what is there must be a regular file or nothing.
std::string output_path(const std::string& path);

// Asked before work whose outcome goes to the file that `flag` names: Error where it cannot be written, UsageError where it is there
// already and not `replace`.
void check_output_file(const std::string& path, bool replace, const char* flag = "--out");

// Throws Error unless the folder is there and takes files, or can be made: asked before work whose outcome goes there.
void check_output_folder(const std::string& folder);

// For what can be made again: $BHYT_CACHE, else the user's cache folder, whether it is there yet or not; "" where neither is known.
std::string cache_folder();

// Written under another name beside `path`, which commit() gives it; without commit nothing is left behind.
// Not synced: what is written here can be made again, and a sync would halve the speed of packing.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);  // makes the folder where there is none
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, std::size_t bytes);                       // appends
  void write_at(std::uint64_t at, const void* data, std::size_t bytes);  // does not move the end
  std::size_t read_at(std::uint64_t at, void* data, std::size_t bytes) const;
  std::uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  void commit();

 private:
  [[noreturn]] void failed(const char* doing) const;
  std::string path_, temporary_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace bhyt
