#include "io/hash.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "core/check.h"
#include "core/threads.h"
#include "io/mapped_file.h"

namespace bhyt {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read in place");

namespace {
constexpr std::uint64_t kP1 = 0x9E3779B185EBCA87ull, kP2 = 0xC2B2AE3D27D4EB4Full, kP3 = 0x165667B19E3779F9ull, kP4 = 0x85EBCA77C2B2AE63ull,
                        kP5 = 0x27D4EB2F165667C5ull;

std::uint64_t read64(const unsigned char* p) {
  std::uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}
std::uint64_t round(std::uint64_t lane, std::uint64_t word) { return std::rotl(lane + word * kP2, 31) * kP1; }
std::uint64_t merge(std::uint64_t h, std::uint64_t lane) { return (h ^ round(0, lane)) * kP1 + kP4; }
}  // namespace

Hash64::Hash64(std::uint64_t seed) : seed_(seed), lane_{seed + kP1 + kP2, seed + kP2, seed, seed - kP1} {}

void Hash64::update(const void* data, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  total_ += bytes;
  if (held_ > 0) {
    const std::size_t n = std::min(bytes, sizeof tail_ - held_);
    std::memcpy(tail_ + held_, p, n);
    held_ += n;
    p += n;
    bytes -= n;
    if (held_ < sizeof tail_) return;
    for (int i = 0; i < 4; ++i) lane_[i] = round(lane_[i], read64(tail_ + 8 * i));
    held_ = 0;
  }
  std::uint64_t a = lane_[0], b = lane_[1], c = lane_[2], d = lane_[3];
  for (; bytes >= 32; p += 32, bytes -= 32) {
    a = round(a, read64(p));
    b = round(b, read64(p + 8));
    c = round(c, read64(p + 16));
    d = round(d, read64(p + 24));
  }
  lane_[0] = a;
  lane_[1] = b;
  lane_[2] = c;
  lane_[3] = d;
  if (bytes > 0) std::memcpy(tail_, p, bytes);
  held_ = bytes;
}

std::uint64_t Hash64::digest() const {
  std::uint64_t h = seed_ + kP5;
  if (total_ >= 32) {
    h = std::rotl(lane_[0], 1) + std::rotl(lane_[1], 7) + std::rotl(lane_[2], 12) + std::rotl(lane_[3], 18);
    for (const std::uint64_t lane : lane_) h = merge(h, lane);
  }
  h += total_;
  const unsigned char *p = tail_, *end = tail_ + held_;
  for (; end - p >= 8; p += 8) h = std::rotl(h ^ round(0, read64(p)), 27) * kP1 + kP4;
  if (end - p >= 4) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    h = std::rotl(h ^ (v * kP1), 23) * kP2 + kP3;
    p += 4;
  }
  for (; p < end; ++p) h = std::rotl(h ^ (*p * kP5), 11) * kP1;
  h = (h ^ (h >> 33)) * kP2;
  h = (h ^ (h >> 29)) * kP3;
  return h ^ (h >> 32);
}

std::uint64_t hash_file(const std::filesystem::path& file) {
  constexpr std::size_t kPiece = 1 << 20;
  std::ifstream in(file, std::ios::binary);
  check(in.is_open(), "could not read {}: {}", file.string(), std::strerror(errno));
  in.rdbuf()->pubsetbuf(nullptr, 0);  // pieces this large need no buffer between
  std::vector<char> piece(kPiece);
  Hash64 h;
  while (in) {
    in.read(piece.data(), kPiece);
    h.update(piece.data(), static_cast<std::size_t>(in.gcount()));
  }
  check(in.eof(), "could not read {}: {}", file.string(), std::strerror(errno));
  return h.digest();
}

std::uint64_t hash_file_pieces(Threads& threads, const std::filesystem::path& file) {
  const MappedFile map(file.string());
  const auto bytes = static_cast<std::int64_t>(map.size());
  std::vector<std::uint64_t> pieces(static_cast<std::size_t>((bytes + kHashPiece - 1) / kHashPiece));
  parallel_for(threads, bytes, kHashPiece, [&](std::int64_t begin, std::int64_t end) {
    const auto at = static_cast<std::size_t>(begin), n = static_cast<std::size_t>(end - begin);
    pieces[static_cast<std::size_t>(begin / kHashPiece)] = hash64(map.data() + at, n);
    map.let_go(at, n);
  });
  return hash64(pieces.data(), pieces.size() * sizeof(std::uint64_t));
}

}  // namespace bhyt
