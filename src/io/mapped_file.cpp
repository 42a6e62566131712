#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/check.h"

namespace bhyt {

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(fd >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat s {};
  if (::fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
    ::close(fd);
    throw Error(fmt::format("cannot read {}: not a regular file", path));
  }
  size_ = static_cast<std::size_t>(s.st_size);
  void* p = size_ ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int error = errno;
  ::close(fd);
  check(p != MAP_FAILED, "cannot map {}: {}", path, std::strerror(error));
  data_ = static_cast<const unsigned char*>(p);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<unsigned char*>(data_), size_);
}

void MappedFile::let_go(std::size_t begin, std::size_t bytes) const {
  ::madvise(const_cast<unsigned char*>(data_) + begin, bytes, MADV_DONTNEED);
}

}  // namespace bhyt
