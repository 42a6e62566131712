// The strings of scripts/tokenizer_oracles.py once more, and the checksum of ids: the golden file holds what the oracles gave for them.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace bhyt::test {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_file(std::string(BHYT_TEST_DIR) + "/golden/tokenizer/" + name));
}

// BHYT_DATA, or "" where it is not set.
inline std::string data_dir() {
  const char* dir = std::getenv("BHYT_DATA");
  return dir ? dir : "";
}

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t n) {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (z ^ (z >> 31)) % n;
  }

 private:
  std::uint64_t state_;
};

class FuzzStrings {
 public:
  FuzzStrings() {
    const auto source = nlohmann::ordered_json::parse(read_file(std::string(BHYT_TEST_DIR) + "/golden/tokenizer/fuzz_pieces.json"));
    for (const auto& group : source["pieces"]) pieces_.push_back(group.get<std::vector<std::string>>());
    for (const auto& block : source["blocks"]) blocks_.push_back({block[0].get<char32_t>(), block[1].get<char32_t>()});
  }

  std::string operator()(std::uint64_t index) const {
    SplitMix rng(index);
    std::string out;
    for (std::uint64_t n = 1 + rng.below(20); n > 0; --n) {
      const std::uint64_t kind = rng.below(16);
      if (kind < 12) {
        const auto& group = pieces_[rng.below(pieces_.size())];
        const std::string& piece = group[rng.below(group.size())];
        const std::uint64_t times = rng.below(10) == 0 ? 1 + rng.below(40) : 1;
        for (std::uint64_t i = 0; i < times; ++i) out += piece;
      } else if (kind < 15) {
        const auto [first, last] = blocks_[rng.below(blocks_.size())];
        for (std::uint64_t i = 1 + rng.below(4); i > 0; --i)
          unicode::append(out, first + static_cast<char32_t>(rng.below(last - first + 1)));
      } else {
        const auto code = static_cast<char32_t>(rng.below(0x110000 - 0x800));
        unicode::append(out, code < 0xD800 ? code : code + 0x800);
      }
    }
    return out;
  }

 private:
  struct Block {
    char32_t first, last;
  };
  std::vector<std::vector<std::string>> pieces_;
  std::vector<Block> blocks_;
};

// CRC-32 (zlib's) of every id as four little-endian bytes, with 0xFFFFFFFF after each text.
class Checksum {
 public:
  void add(const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) word(static_cast<std::uint32_t>(id));
    word(0xFFFFFFFF);
  }
  std::uint32_t value() const { return ~crc_; }

 private:
  void word(std::uint32_t v) {
    static const std::array<std::uint32_t, 256> table = [] {
      std::array<std::uint32_t, 256> t{};
      for (std::uint32_t i = 0; i < 256; ++i) {
        t[i] = i;
        for (int k = 0; k < 8; ++k) t[i] = t[i] & 1 ? t[i] >> 1 ^ 0xEDB88320u : t[i] >> 1;
      }
      return t;
    }();
    for (int i = 0; i < 4; ++i) crc_ = table[(crc_ ^ v >> (8 * i)) & 0xFF] ^ crc_ >> 8;
  }
  std::uint32_t crc_ = 0xFFFFFFFF;
};

}  // namespace bhyt::test
