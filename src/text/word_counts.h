// How often each word occurs: a flat table for short words, an ordinary one for the rest.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"

namespace bhyt {

class WordCounts {
 public:
  void add(std::string_view word, std::uint64_t count = 1) {
    if (word.size() > ShortKey::kMax) {
      long_[std::string(word)] += count;
      return;
    }
    if (used_ * 2 >= slots_.size()) grow();
    const ShortKey key(word);
    Slot& slot = find(key, word.size());
    if (slot.size == 0) {
      slot = {key, 0, static_cast<std::uint32_t>(word.size())};
      ++used_;
    }
    slot.count += count;
  }

  std::size_t size() const { return used_ + long_.size(); }

  // Calls f(word, count) for each.
  template <class F>
  void for_each(F&& f) const {
    for (const Slot& s : slots_)
      if (s.size) f(std::string_view(reinterpret_cast<const char*>(s.key.w), s.size), s.count);
    for (const auto& [word, count] : long_) f(std::string_view(word), count);
  }

 private:
  struct Slot {
    ShortKey key{std::string_view()};
    std::uint64_t count = 0;
    std::uint32_t size = 0;  // 0: empty
  };

  Slot& find(const ShortKey& key, std::size_t size) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = key.hash(size) & mask;; i = (i + 1) & mask) {
      Slot& s = slots_[i];
      if (s.size == 0 || (s.size == size && s.key.w[0] == key.w[0] && s.key.w[1] == key.w[1] && s.key.w[2] == key.w[2])) return s;
    }
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 1024 : slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& s : old)
      if (s.size) find(s.key, s.size) = s;
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
  std::unordered_map<std::string, std::uint64_t> long_;
};

}  // namespace bhyt
