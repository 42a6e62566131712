// The ids of words seen lately: one per thread, bounded, direct-mapped, shared by all tokenizers of the process.
#pragma once

#include <memory>

#include "text/bpe.h"

namespace bhyt {

class WordCache {
 public:
  static constexpr std::size_t kIds = 8;
  struct alignas(64) Entry {
    std::uint64_t key[3];
    std::uint32_t owner;  // the tokenizer; 0: empty
    std::uint8_t size;    // bytes of the word
    std::uint8_t count;   // ids
    TokenId ids[kIds];
  };
  static_assert(sizeof(Entry) == 64);

  static WordCache& get() {
    static thread_local WordCache cache;
    return cache;
  }
  Entry& slot(std::uint64_t hash, std::uint32_t owner) { return entries_[(hash ^ owner) & (kEntries - 1)]; }

 private:
  static constexpr std::size_t kEntries = 1 << 16;
  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(kEntries);
};

}  // namespace bhyt
