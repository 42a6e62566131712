#include "model/checkpoint_json.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/check.h"

namespace bhyt {

using schema::Json;

std::string read_small_file(const std::filesystem::path& file) {
  constexpr std::uintmax_t kLimit = 64 << 20;
  std::error_code why;
  const std::uintmax_t bytes = std::filesystem::file_size(file, why);
  check(!why, "{}: cannot read: {}", file.string(), why.message());
  check(bytes <= kLimit, "{}: {} bytes are over the limit of {}", file.string(), bytes, kLimit);
  std::string text(bytes, '\0');
  std::ifstream in(file, std::ios::binary);
  check(bytes == 0 || in.read(text.data(), static_cast<std::streamsize>(bytes)), "{}: cannot read: {}", file.string(),
        std::strerror(errno));
  return text;
}

Json read_json(const std::filesystem::path& file) { return parse_json(read_small_file(file), file.string()); }

void write_text_synced(const std::filesystem::path& file, std::string_view text) {
  const auto failed = [&](const char* what) { throw Error(fmt::format("{}: cannot {}: {}", file.string(), what, std::strerror(errno))); };
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) failed("create");
  try {
    while (!text.empty()) {
      const ssize_t n = ::write(fd, text.data(), text.size());
      if (n < 0 && errno != EINTR) failed("write");
      if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
    }
    if (::fsync(fd) != 0) failed("sync");
  } catch (...) {
    ::close(fd);
    throw;
  }
  if (::close(fd) != 0) failed("close");
}

void sync_path(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = fd >= 0 && (::fsync(fd) == 0 || errno == EINVAL);  // EINVAL: nothing that could be synced
  const int why = errno;
  if (fd >= 0) ::close(fd);
  check(done, "{}: cannot sync: {}", path.string(), std::strerror(why));
}

}  // namespace bhyt
