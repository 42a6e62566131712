// SHA-256 (FIPS 180-4), for digests that others have made.
#pragma once

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace bhyt::test {

class Sha256 {
 public:
  void update(const void* data, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    total_ += bytes;
    for (std::size_t i = 0; i < bytes; ++i) {
      block_[held_++] = p[i];
      if (held_ == 64) take_block();
    }
  }
  std::string hex() {
    const std::uint64_t bits = total_ * 8;
    const unsigned char one = 0x80, zero = 0;
    update(&one, 1);
    while (held_ != 56) update(&zero, 1);
    for (int i = 7; i >= 0; --i) {
      const auto byte = static_cast<unsigned char>(bits >> (8 * i));
      update(&byte, 1);
    }
    std::string out;
    for (const std::uint32_t v : state_) out += fmt::format("{:08x}", v);
    return out;
  }

 private:
  // The first 32 bits of the fraction of a prime's cube root.
  static std::array<std::uint32_t, 64> round_constants() {
    std::array<std::uint32_t, 64> k{};
    std::size_t n = 0;
    for (int p = 2; n < k.size(); ++p) {
      bool prime = true;
      for (int d = 2; d * d <= p; ++d) prime = prime && p % d != 0;
      if (!prime) continue;
      const long double root = std::cbrt(static_cast<long double>(p));
      k[n++] = static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0L);
    }
    return k;
  }

  void take_block() {
    static const std::array<std::uint32_t, 64> k = round_constants();
    std::uint32_t w[64];
    for (std::size_t i = 0; i < 16; ++i)
      w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 | std::uint32_t{block_[4 * i + 2]} << 8 |
             block_[4 * i + 3];
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    auto s = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 =
          s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const std::uint32_t t2 =
          (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
    held_ = 0;
  }

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char block_[64];
  std::size_t held_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace bhyt::test
