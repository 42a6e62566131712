#include "generate/utf8_stream.h"

#include <algorithm>
#include <utility>

namespace bhyt {

namespace {

// Bytes of the sequence that a lead byte opens; 1 for whatever cannot open one.
std::size_t sequence_length(unsigned char lead) {
  return lead >= 0xF0 && lead < 0xF5 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 && lead < 0xE0 ? 2 : 1;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  // Only the last three bytes can belong to an unfinished sequence: find its lead byte and see whether enough follows.
  std::size_t whole = held_.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    if (sequence_length(byte) > back) whole = held_.size() - back;
    break;
  }
  std::string ready = held_.substr(0, whole);
  held_.erase(0, whole);
  return ready;
}

std::string Utf8Stream::rest() { return std::exchange(held_, {}); }

}  // namespace bhyt
