#include "eval/python_random.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "core/check.h"

namespace bhyt {

namespace {

constexpr std::size_t kWords = 624;

std::uint32_t folded(std::uint32_t x) { return x ^ (x >> 30); }

}  // namespace

// init_by_array of the 2002 reference code, with the seed's words, the low one first, as its key.
PythonRandom::PythonRandom(std::uint64_t seed) {
  const std::uint32_t key[] = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const std::uint32_t length = key[1] ? 2 : 1;
  state_[0] = 19650218;
  for (std::uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253 * folded(state_[i - 1]) + i;
  std::uint32_t i = 1;
  const auto step = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (std::uint32_t n = 0; n < kWords; ++n, step())
    state_[i] = (state_[i] ^ (folded(state_[i - 1]) * 1664525)) + key[n % length] + n % length;
  for (std::uint32_t n = 1; n < kWords; ++n, step()) state_[i] = (state_[i] ^ (folded(state_[i - 1]) * 1566083941)) - i;
  state_[0] = 0x80000000;
}

PythonRandom PythonRandom::signed_seed(std::int64_t seed) {
  const auto bits = static_cast<std::uint64_t>(seed);
  return PythonRandom(seed < 0 ? 0 - bits : bits);
}

void PythonRandom::refill() {
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint32_t y = (state_[i] & 0x80000000) | (state_[(i + 1) % kWords] & 0x7FFFFFFF);
    state_[i] = state_[(i + 397) % kWords] ^ (y >> 1) ^ (y & 1 ? 0x9908B0DF : 0);
  }
  at_ = 0;
}

std::uint32_t PythonRandom::word() {
  if (at_ == kWords) refill();
  std::uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9D2C5680;
  y ^= (y << 15) & 0xEFC60000;
  return y ^ (y >> 18);
}

std::int64_t PythonRandom::below(std::int64_t n) {
  check(n >= 1 && n <= UINT32_MAX, "[python_random] expected a bound from 1 to {}, got {}", UINT32_MAX, n);
  const int unused = 32 - std::bit_width(static_cast<std::uint32_t>(n));
  std::int64_t drawn = 0;
  do drawn = word() >> unused;
  while (drawn >= n);
  return drawn;
}

std::vector<std::int64_t> PythonRandom::sample(std::int64_t n, std::int64_t k) {
  check(k >= 0 && k <= n, "[python_random] expected to draw 0 to {} of {}, got {}", n, n, k);
  // Python draws from a list of all where that takes less memory than a set of those drawn.
  std::int64_t set_size = 0;
  if (k > 5)
    for (set_size = 1; set_size < 3 * k;) set_size *= 4;
  set_size += 21;
  std::vector<std::int64_t> drawn;
  if (n <= set_size) {
    std::vector<std::int64_t> pool(static_cast<std::size_t>(n));
    std::iota(pool.begin(), pool.end(), 0);
    for (std::int64_t i = 0; i < k; ++i) {
      auto& taken = pool[static_cast<std::size_t>(below(n - i))];
      drawn.push_back(taken);
      taken = pool[static_cast<std::size_t>(n - i - 1)];
    }
    return drawn;
  }
  while (std::ssize(drawn) < k)
    if (const std::int64_t next = below(n); std::ranges::count(drawn, next) == 0) drawn.push_back(next);
  return drawn;
}

}  // namespace bhyt
