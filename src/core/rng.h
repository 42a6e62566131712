// Counter-based random numbers (Philox 4x32-10): the value at (seed, stream, index) is a pure function,
// the same on the CPU, the GPU and any number of threads.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace bhyt {

struct Philox {
  std::uint32_t v[4];
};

BHYT_BOTH Philox philox(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  std::uint32_t c0 = static_cast<std::uint32_t>(index), c1 = static_cast<std::uint32_t>(index >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in (0, 1): 23 random bits in the middle of their cells (24 would round the last one up to 1).
BHYT_BOTH float uniform01(std::uint32_t u) { return (static_cast<float>(u >> 9) + 0.5f) * (1.0f / 8388608.0f); }

// 53 random bits in [0, 1).
BHYT_BOTH double uniform53(std::uint32_t hi, std::uint32_t lo) {
  return static_cast<double>(((static_cast<std::uint64_t>(hi) << 32 | lo) >> 11)) * (1.0 / 9007199254740992.0);
}

// The standard normals at (seed, stream, 2·pair) and the one behind it, by Box and Muller in double.
inline std::array<double, 2> normal_pair(std::uint64_t seed, std::uint64_t stream, std::uint64_t pair) {
  const Philox r = philox(seed, stream, pair);
  const double u = uniform53(r.v[0], r.v[1]), w = uniform53(r.v[2], r.v[3]);
  const double radius = std::sqrt(-2.0 * std::log(1.0 - u)), angle = 6.283185307179586476925 * w;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}
inline double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return normal_pair(seed, stream, index / 2)[index % 2];
}

// A small sequential generator on top, for code that just wants the next number.
class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t stream = 0) : seed_(seed), stream_(stream) {}
  std::uint64_t next() {
    const Philox r = philox(seed_, stream_, index_++);
    return static_cast<std::uint64_t>(r.v[0]) << 32 | r.v[1];
  }
  double uniform() { return static_cast<double>(next() >> 11) * (1.0 / 9007199254740992.0); }
  std::uint64_t below(std::uint64_t n) { return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64); }
  double normal() { return bhyt::normal(seed_, stream_ ^ 0x6e6f726d616cull, index_++); }

 private:
  std::uint64_t seed_, stream_, index_ = 0;
};

}  // namespace bhyt
