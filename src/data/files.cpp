#include "data/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/check.h"

namespace bhyt {

bool is_there(const std::string& path) {
  std::error_code ec;
  return std::filesystem::exists(path, ec);
}

std::string output_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  check(!fs::is_directory(path, ec), "cannot write {}: it is a directory", path);
  check(!fs::exists(path, ec) || fs::is_regular_file(path, ec), "cannot write {}: it is not a regular file", path);
  fs::path above = fs::absolute(path, ec).parent_path();
  while (!fs::exists(above, ec) && above.has_relative_path()) above = above.parent_path();
  check(fs::is_directory(above, ec), "cannot write {}: {} is not a folder", path, above.string());
  const bool writable = ::access(above.c_str(), W_OK | X_OK) == 0;  // by itself: arguments, errno among them, come in any order
  check(writable, "cannot write {}: {}", path, std::strerror(errno));
  fs::path real = path;
  for (int links = 0; fs::is_symlink(real, ec); ++links) {
    check(links < 40, "cannot write {}: it is a link that leads nowhere", path);
    real = real.parent_path() / fs::read_symlink(real, ec);  // what is absolute stands alone
  }
  return real.string();
}

void check_output_file(const std::string& path, bool replace, const char* flag) {
  (void)output_path(path);
  check_usage(replace || !is_there(path), "{} already exists; --force replaces it, another {} keeps it", path, flag);
}

void check_output_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::path there = fs::absolute(folder, ec).lexically_normal();
  while (!fs::exists(there, ec) && there.has_relative_path()) there = there.parent_path();
  check(fs::is_directory(there, ec), "cannot write to {}: {} is not a folder", folder, there.string());
  const bool writable = ::access(there.c_str(), W_OK | X_OK) == 0;
  check(writable, "cannot write to {}: {}: {}", folder, there.string(), std::strerror(errno));
}

std::string cache_folder() {
  namespace fs = std::filesystem;
  const auto env = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  fs::path dir = env("BHYT_CACHE");
  if (dir.empty() && !env("XDG_CACHE_HOME").empty()) dir = fs::path(env("XDG_CACHE_HOME")) / "bhyt";
  if (dir.empty() && !env("HOME").empty()) dir = fs::path(env("HOME")) / ".cache" / "bhyt";
  return dir.string();
}

OutputFile::OutputFile(const std::string& path) : path_(output_path(path)) {
  namespace fs = std::filesystem;
  static std::atomic<int> serial{0};
  std::error_code ec;
  if (const fs::path parent = fs::path(path_).parent_path(); !parent.empty()) fs::create_directories(parent, ec);
  check(!ec, "cannot write {}: {}", path, ec.message());
  temporary_ = fmt::format("{}.tmp.{}.{}", path_, ::getpid(), serial++);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check(fd_ >= 0, "cannot write {}: {}", path, std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::failed(const char* doing) const {
  throw Error(fmt::format("cannot {} {}: {}{}", doing, path_, std::strerror(errno), errno == ENOSPC ? " (nothing was left behind)" : ""));
}

void OutputFile::write_at(std::uint64_t at, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("write");
    p += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void OutputFile::write(const void* data, std::size_t bytes) {
  write_at(size_, data, bytes);
  size_ += bytes;
}

std::size_t OutputFile::read_at(std::uint64_t at, void* data, std::size_t bytes) const {
  ssize_t n;
  do n = ::pread(fd_, data, bytes, static_cast<off_t>(at));
  while (n < 0 && errno == EINTR);
  if (n < 0) failed("read back");
  return static_cast<std::size_t>(n);
}

void OutputFile::commit() {
  const int fd = fd_;
  fd_ = -1;
  // close() reports what a network file system could not store.
  if (::close(fd) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    failed("write");
  }
}

}  // namespace bhyt
