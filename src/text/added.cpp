#include "text/added.h"

#include <cstring>

namespace bhyt {

AddedMatcher::AddedMatcher(const std::vector<AddedToken>& tokens, bool normalized) {
  for (const AddedToken& t : tokens) {
    if (t.normalized != normalized || t.content.empty()) continue;
    (t.special ? special_ : plain_) = true;
    const auto first = static_cast<unsigned char>(t.content[0]);
    first_bytes_ += !first_[first];
    first_[first] = true;
    only_first_ = t.content[0];
    int at = 0;
    for (const char c : t.content) {
      int child = nodes_[static_cast<std::size_t>(at)].child;
      while (child >= 0 && nodes_[static_cast<std::size_t>(child)].byte != c) child = nodes_[static_cast<std::size_t>(child)].sibling;
      if (child < 0) {
        child = static_cast<int>(nodes_.size());
        nodes_.push_back({c, -1, nodes_[static_cast<std::size_t>(at)].child, nullptr});
        nodes_[static_cast<std::size_t>(at)].child = child;
      }
      at = child;
    }
    nodes_[static_cast<std::size_t>(at)].token = &t;
  }
}

std::size_t AddedMatcher::candidate(std::string_view text, std::size_t at) const {
  if (at >= text.size()) return text.size();
  if (first_bytes_ == 1) {
    const void* p = std::memchr(text.data() + at, only_first_, text.size() - at);
    return p ? static_cast<std::size_t>(static_cast<const char*>(p) - text.data()) : text.size();
  }
  while (at < text.size() && !first_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

AddedMatcher::Match AddedMatcher::longest(std::string_view text) const {
  Match best;
  int at = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    at = nodes_[static_cast<std::size_t>(at)].child;
    while (at >= 0 && nodes_[static_cast<std::size_t>(at)].byte != text[i]) at = nodes_[static_cast<std::size_t>(at)].sibling;
    if (at < 0) break;
    if (const AddedToken* t = nodes_[static_cast<std::size_t>(at)].token) best = {t, i + 1};
  }
  return best;
}

std::size_t AddedMatcher::spaces_after(std::string_view text, std::size_t at) {
  const char* const end = text.data() + text.size();
  while (at < text.size()) {
    const unicode::Char c = unicode::decode(text.data() + at, end);
    if (unicode::ClassTable::get()(c.code) != unicode::Class::space) break;
    at += c.size;
  }
  return at;
}

std::size_t AddedMatcher::spaces_before(std::string_view text, std::size_t at) {
  const char* const begin = text.data();
  while (at > 0) {
    std::size_t start = at - 1;
    while (start > 0 && at - start < 4 && (static_cast<unsigned char>(begin[start]) & 0xC0) == 0x80) --start;
    const unicode::Char c = unicode::decode(begin + start, begin + at);
    if (start + c.size != at || unicode::ClassTable::get()(c.code) != unicode::Class::space) break;
    at = start;
  }
  return at;
}

}  // namespace bhyt
