// XXH64 (Yann Collet's 64-bit xxHash), streamed: the checksum of token files and of cache keys. Not for untrusted-collision work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace bhyt {

class Threads;

class Hash64 {
 public:
  explicit Hash64(std::uint64_t seed = 0);
  void update(const void* data, std::size_t bytes);
  void update(std::string_view s) {
    add(s.size());  // so that ("ab", "c") and ("a", "bc") differ
    update(s.data(), s.size());
  }
  void add(std::uint64_t v) { update(&v, sizeof v); }
  std::uint64_t digest() const;

 private:
  std::uint64_t seed_, lane_[4], total_ = 0;
  unsigned char tail_[32];
  std::size_t held_ = 0;
};

inline std::uint64_t hash64(const void* data, std::size_t bytes) {
  Hash64 h;
  h.update(data, bytes);
  return h.digest();
}

std::uint64_t hash_file(const std::filesystem::path& file);  // of its bytes, read piece by piece
// By all threads: the hash of the hashes (eight bytes each, in order) of the file's pieces of kHashPiece bytes, the last one shorter.
constexpr std::int64_t kHashPiece = std::int64_t{16} << 20;
std::uint64_t hash_file_pieces(Threads& threads, const std::filesystem::path& file);

// A good 64-bit mix of one word (splitmix64's finaliser).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace bhyt
