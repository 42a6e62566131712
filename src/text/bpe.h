// The encoding core: flat tables of pieces and merges, and the merging of one word.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "text/spec.h"

namespace bhyt {

// Up to 24 bytes as three words, padded with zeros: compared and hashed without a loop.
struct ShortKey {
  static constexpr std::size_t kMax = 24;
  std::uint64_t w[3];

  explicit ShortKey(std::string_view s) {
    const char* p = s.data();
    const std::size_t n = s.size();
    w[0] = load(p, std::min<std::size_t>(n, 8));
    w[1] = n > 8 ? load(p + 8, std::min<std::size_t>(n - 8, 8)) : 0;
    w[2] = n > 16 ? load(p + 16, n - 16) : 0;
  }
  std::uint64_t hash(std::size_t size) const { return mix(mix(w[0] ^ size, 0x9E3779B97F4A7C15ull) ^ w[1], w[2] ^ 0xD6E8FEB86659FD93ull); }

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a ^ 0xA0761D6478BD642Full) * (b | 1);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  // n <= 8 bytes, padded with zeros, without reading past them.
  static std::uint64_t load(const char* p, std::size_t n) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(p[i])) << (8 * i); };
    if (n == 8) return load_as<std::uint64_t>(p);
    if (n >= 4) return load_as<std::uint32_t>(p) | static_cast<std::uint64_t>(load_as<std::uint32_t>(p + n - 4)) << (8 * (n - 4));
    return n == 0 ? 0 : byte(0) | byte(n / 2) | byte(n - 1);
  }

 private:
  template <class T>
  static T load_as(const char* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
};

std::uint64_t hash_bytes(std::string_view s);

// bytes → id.
class PieceTable {
 public:
  explicit PieceTable(const TokenizerSpec& spec);
  // -1 where there is none.
  TokenId find(std::string_view s) const { return find(s, hash_bytes(s)); }
  TokenId find(std::string_view s, std::uint64_t hash) const;

 private:
  struct Slot {
    std::uint32_t tag;
    TokenId id;
  };
  std::vector<Slot> slots_;
  std::uint64_t mask_;
  const std::vector<std::string>& pieces_;
};

// (left, right) → (rank, result).
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Found {
    std::uint32_t rank = kNone;
    TokenId result = 0;
  };
  explicit MergeTable(const std::vector<Merge>& merges);
  Found find(TokenId left, TokenId right) const {
    const std::uint64_t key = pack(left, right);
    for (std::uint64_t i = slot_of(key);; i = (i + 1) & mask_) {
      const Slot& s = slots_[i];
      if (s.key == key) return s.found;
      if (s.found.rank == kNone) return {};
    }
  }
  // Asks for the memory that find() will read.
  void prefetch(TokenId left, TokenId right) const { __builtin_prefetch(&slots_[slot_of(pack(left, right))]); }

 private:
  struct Slot {
    std::uint64_t key = ~0ull;
    Found found;
  };
  static std::uint64_t pack(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::uint64_t slot_of(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> shift_; }
  std::vector<Slot> slots_;
  std::uint64_t mask_;
  int shift_;
};

// Merges neighbours, the lowest rank first and the leftmost among equals, until none is left; appends what remains.
// Time grows with n log n, whatever the symbols are.
void merge_symbols(const MergeTable& merges, const TokenId* symbols, std::size_t n, std::vector<TokenId>& out);

}  // namespace bhyt
