// Finds added tokens in text: the leftmost, and the longest there.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "text/spec.h"

namespace bhyt {

class AddedMatcher {
 public:
  // Takes those of the tokens whose `normalized` is as asked. Keeps pointers into them.
  AddedMatcher(const std::vector<AddedToken>& tokens, bool normalized);

  // Calls between(text) and found(token) in order. Without `special`, special tokens stay text and no space is swallowed.
  template <class Between, class Found>
  void split(std::string_view text, bool special, Between&& between, Found&& found) const {
    if (!plain_ && !(special && special_)) return between(text);
    std::size_t done = 0, at = 0;
    while ((at = candidate(text, at)) < text.size()) {
      const Match m = longest(text.substr(at));
      if (!m.token || (m.token->special && !special)) {
        at += m.token ? m.size : 1;
        continue;
      }
      std::size_t begin = at, end = at + m.size;
      if (m.token->lstrip && special) begin = std::max(done, spaces_before(text, begin));
      if (m.token->rstrip && special) end = spaces_after(text, end);
      if (begin > done) between(text.substr(done, begin - done));
      found(*m.token);
      done = at = end;
    }
    if (done < text.size()) between(text.substr(done));
  }

 private:
  struct Match {
    const AddedToken* token = nullptr;
    std::size_t size = 0;
  };
  struct Node {
    char byte = 0;
    int child = -1, sibling = -1;
    const AddedToken* token = nullptr;
  };
  // The next place from `at` whose byte begins a token; the text's end where there is none.
  std::size_t candidate(std::string_view text, std::size_t at) const;
  Match longest(std::string_view text) const;
  static std::size_t spaces_before(std::string_view text, std::size_t at);
  static std::size_t spaces_after(std::string_view text, std::size_t at);

  std::vector<Node> nodes_{1};
  std::array<bool, 256> first_{};
  int first_bytes_ = 0;
  char only_first_ = 0;
  bool special_ = false, plain_ = false;
};

}  // namespace bhyt
