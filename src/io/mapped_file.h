// A file mapped for reading. It must not be shortened while this lives.
#pragma once

#include <cstddef>
#include <string>

namespace bhyt {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return data_; }
  std::size_t size() const { return size_; }
  // Pages that were read need not stay in this process; begin: a multiple of theirs. They come back when they are read again.
  void let_go(std::size_t begin, std::size_t bytes) const;

 private:
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace bhyt
