#include "generate/stop_texts.h"

#include <algorithm>
#include <utility>

namespace bhyt {

std::string StopTexts::push(std::string_view bytes) {
  if (found_) return "";
  held_ += bytes;
  std::size_t ready = held_.size();
  for (const std::string& text : texts_)
    if (const std::size_t at = held_.find(text); at != std::string::npos) {
      ready = std::min(ready, at);
      found_ = true;
    }
  if (found_) return std::exchange(held_, {}).substr(0, ready);
  for (const std::string& text : texts_)
    for (std::size_t size = std::min(held_.size(), text.size() - 1); size > 0; --size)
      if (held_.ends_with(std::string_view(text).substr(0, size))) {
        ready = std::min(ready, held_.size() - size);
        break;
      }
  std::string out = held_.substr(0, ready);
  held_.erase(0, ready);
  return out;
}

std::string StopTexts::rest() { return std::exchange(held_, {}); }

}  // namespace bhyt
