// Text as it comes, without half characters.
#pragma once

#include <string>
#include <string_view>

namespace bhyt {

// Cuts a stream of bytes so that no UTF-8 sequence is torn: push() gives what is whole so far, rest() what is left at the end.
// Bytes that cannot belong to a sequence pass through as they are.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string rest();

 private:
  std::string held_;
};

}  // namespace bhyt
