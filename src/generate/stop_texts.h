// Ends a stream of bytes before the first of several texts: what may turn out to begin one is held back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bhyt {

class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}  // none of them empty
  std::string push(std::string_view bytes);                                         // what surely comes before a stop; nothing after one
  std::string rest();                                                               // what is held back at the end of the stream
  bool found() const { return found_; }

 private:
  std::vector<std::string> texts_;
  std::string held_;
  bool found_ = false;
};

}  // namespace bhyt
