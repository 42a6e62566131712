// The random numbers of Python's random.Random(seed), to the last bit: what lm-evaluation-harness draws its examples with.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace bhyt {

class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);  // of a whole number its size: Python takes -7 for 7
  static PythonRandom signed_seed(std::int64_t seed);

  std::uint32_t word();                // getrandbits(32)
  std::int64_t below(std::int64_t n);  // 0 … n - 1, for n from 1 to 2^32 - 1
  // sample(range(n), k): k different numbers of 0 … n - 1, in the order drawn. Needs 0 <= k <= n.
  std::vector<std::int64_t> sample(std::int64_t n, std::int64_t k);

 private:
  void refill();

  std::array<std::uint32_t, 624> state_{};
  std::size_t at_ = 624;
};

}  // namespace bhyt
