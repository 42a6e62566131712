// A seeded bijection of [0, n) onto itself without a table: a Feistel network over pairs in [0, a)², a = ⌈√n⌉, walked until it lands
// inside (fewer than 2√n + 1 of the pairs lie outside, so a second step is rare).
#pragma once

#include <cmath>
#include <cstdint>

#include "io/hash.h"

namespace bhyt {

class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key), side_(static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)))) {
    while (side_ * side_ < n) ++side_;
  }

  std::uint64_t operator()(std::uint64_t i) const {
    do {
      std::uint64_t left = i / side_, right = i % side_;
      for (std::uint64_t round = 0; round < 8; ++round) {
        const std::uint64_t moved = (left + below(mix64(key_ + 0x9E3779B97F4A7C15ull * (round + 1) + mix64(right)))) % side_;
        left = right;
        right = moved;
      }
      i = left * side_ + right;
    } while (i >= n_);
    return i;
  }

 private:
  std::uint64_t below(std::uint64_t h) const { return static_cast<std::uint64_t>((static_cast<unsigned __int128>(h) * side_) >> 64); }
  std::uint64_t n_, key_, side_;
};

}  // namespace bhyt
