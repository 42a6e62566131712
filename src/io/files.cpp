#include "io/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/check.h"

namespace bhyt {

namespace {

[[noreturn]] void fail_on(const char* doing, const fs::path& path) {
  throw Error(fmt::format("could not {} {}: {}", doing, path.string(), std::strerror(errno)));
}

int open_or_fail(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) fail_on("open", path);
  return fd;
}

void write_all(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_on("write to", path);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

}  // namespace

AppendFile::AppendFile(fs::path path) : path_(std::move(path)), fd_(open_or_fail(path_, O_WRONLY | O_APPEND | O_CREAT)) {}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

AppendFile::AppendFile(AppendFile&& o) noexcept : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  return *this;
}

void AppendFile::append(std::string_view bytes) { write_all(fd_, bytes, path_); }

void AppendFile::sync() {
  if (::fsync(fd_) != 0) fail_on("sync", path_);
}

std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail_on("read", file);
  std::ostringstream all;
  all << in.rdbuf();
  if (in.bad()) fail_on("read", file);
  return std::move(all).str();
}

void write_synced(const fs::path& file, std::string_view text) {
  const Descriptor d{open_or_fail(file, O_WRONLY | O_CREAT | O_TRUNC)};
  write_all(d.fd, text, file);
  if (::fsync(d.fd) != 0) fail_on("sync", file);
}

namespace {

void replace_by_way_of(const fs::path& beside, const fs::path& file, std::string_view text) {
  try {
    write_synced(beside, text);
    if (std::rename(beside.c_str(), file.c_str()) != 0) fail_on("rename to", file);
  } catch (...) {
    std::error_code ignored;
    fs::remove(beside, ignored);
    throw;
  }
  sync_to_disk(file.parent_path());
}

}  // namespace

void replace_synced(const fs::path& file, std::string_view text) { replace_by_way_of(file.string() + ".tmp", file, text); }

void save_as(const fs::path& file, std::string_view text) {
  const fs::path to = fs::weakly_canonical(fs::absolute(file));
  const fs::file_status status = fs::status(to);
  if (fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status)) {
    const Descriptor d{open_or_fail(to, O_WRONLY)};
    write_all(d.fd, text, to);
    return;
  }
  replace_by_way_of(fmt::format("{}.{}.tmp", to.string(), ::getpid()), to, text);  // no file of the user's has that name
}

void cut_file(const fs::path& file, std::uintmax_t bytes) {
  const Descriptor d{open_or_fail(file, O_WRONLY)};
  if (::ftruncate(d.fd, static_cast<off_t>(bytes)) != 0) fail_on("shorten", file);
  if (::fsync(d.fd) != 0) fail_on("sync", file);
}

void sync_to_disk(const fs::path& path) {
  const Descriptor d{open_or_fail(path.empty() ? "." : path, O_RDONLY)};
  if (::fsync(d.fd) != 0) fail_on("sync", path);
}

}  // namespace bhyt
