// Files that must survive a crash: appending with one write per record, replacing atomically, syncing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace bhyt {

namespace fs = std::filesystem;

// A file that grows by whole records: each append is one write, so a killed process leaves at most one torn record at the end.
class AppendFile {
 public:
  AppendFile() = default;
  explicit AppendFile(fs::path path);  // creates it where it is missing
  ~AppendFile();
  AppendFile(AppendFile&& o) noexcept;
  AppendFile& operator=(AppendFile&& o) noexcept;

  void append(std::string_view bytes);
  void sync();
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  int fd_ = -1;
};

std::string read_text(const fs::path& file);
void write_synced(const fs::path& file, std::string_view text);    // in place, then fsync
void replace_synced(const fs::path& file, std::string_view text);  // beside, synced, renamed: old or new, never half
// To a file that a user names, whatever it is: behind a link the file that it is a link to, and a device is written to as it is.
void save_as(const fs::path& file, std::string_view text);
void cut_file(const fs::path& file, std::uintmax_t bytes);  // shortens, then fsync
void sync_to_disk(const fs::path& path);                    // a file or a folder

}  // namespace bhyt
