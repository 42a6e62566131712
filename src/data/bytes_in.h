// A file's bytes one at a time or line by line, unpacked as they are read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "data/input.h"

namespace bhyt {

class InputBytes {
 public:
  explicit InputBytes(const InputFile& file) : stream_(open_input(file)) {}

  int peek() { return at_ < end_ || more() ? static_cast<unsigned char>(buffer_[at_]) : -1; }  // -1 at the end
  int get() { return at_ < end_ || more() ? static_cast<unsigned char>(buffer_[at_++]) : -1; }

  // Up to the next \n, without it: texts hold other characters that some take for the end of a line. False at the end.
  bool line(std::string& line) {
    line.clear();
    if (peek() < 0) return false;
    do {
      const std::size_t stop = buffer_.find('\n', at_), last = stop < end_ ? stop : end_;
      line.append(buffer_, at_, last - at_);
      at_ = last;
    } while (peek() >= 0 && peek() != '\n');
    get();
    return true;
  }

 private:
  bool more() {
    buffer_.resize(kRead);
    at_ = 0;
    end_ = stream_->read(buffer_.data(), kRead);
    return end_ > 0;
  }

  static constexpr std::size_t kRead = 1 << 18;
  std::unique_ptr<InputStream> stream_;
  std::string buffer_;
  std::size_t at_ = 0, end_ = 0;
};

}  // namespace bhyt
