// The arithmetic of a choice, the same on the CPU and the GPU.
#pragma once

#include <cmath>

#include "core/math.h"
#include "core/rng.h"
#include "ops/sample/sample.h"

namespace bhyt::choice {

using Key = std::uint64_t;

BHYT_BOTH bool holds(const std::uint32_t* seen, std::int64_t id) { return (seen[id / 32] >> (id % 32) & 1) != 0; }

BHYT_BOTH float penalized(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

// Log-probability but for a constant; the likeliest has 0. Adding 0 makes a zero of −0.
BHYT_BOTH float tempered(float logit, float top, float temperature) { return (logit - top) / temperature + 0.0f; }

// Keys sort as the values do; of equal values the lower id is the larger key.
BHYT_BOTH std::uint32_t sortable(float x) {
  const std::uint32_t b = detail::float_bits(x);
  return b >> 31 ? ~b : b | 0x80000000u;
}
BHYT_BOTH float from_sortable(std::uint32_t s) { return detail::float_from_bits(s >> 31 ? s & 0x7FFFFFFFu : ~s); }
BHYT_BOTH Key key_of(float value, std::int64_t id) { return static_cast<Key>(sortable(value)) << 32 | ~static_cast<std::uint32_t>(id); }
BHYT_BOTH std::int32_t id_of(Key key) { return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key)); }
BHYT_BOTH float value_of(Key key) { return from_sortable(static_cast<std::uint32_t>(key >> 32)); }

// Probability in units of 2^-40 of the likeliest token's: sums of integers are the same in any order.
BHYT_BOTH std::uint64_t weight(float z) { return static_cast<std::uint64_t>(fast_exp(z) * 1099511627776.0f); }
// How much of `total` the likeliest tokens have to reach.
BHYT_BOTH std::uint64_t share_of(std::uint64_t total, float p) {
  const auto enough = static_cast<std::uint64_t>(std::ceil(static_cast<double>(p) * static_cast<double>(total)));
  return enough < 1 ? 1 : enough > total ? total : enough;
}

// Keys by digits, the most significant first: the first three are the value's, the others the id's.
constexpr int kDigits = 6, kBins = 2048;
BHYT_BOTH int digit_shift(int digit) {
  constexpr int shifts[kDigits] = {53, 42, 32, 21, 10, 0};
  return shifts[digit];
}
BHYT_BOTH int digit_bits(int digit) { return digit % 3 == 2 ? 10 : 11; }
BHYT_BOTH bool begins_with(Key key, Key prefix, int digit) { return key >> digit_shift(digit) >> digit_bits(digit) == prefix; }
BHYT_BOTH int digit_of(Key key, int digit) { return static_cast<int>(key >> digit_shift(digit) & ((1u << digit_bits(digit)) - 1)); }

// Drawing by Gumbel's rule: the token with the largest z + noise has been drawn from the softmax of z. Noise depends on (seed, number, id),
// so no order of the tokens is needed and any set of them can be left out. One call of philox serves four ids.
BHYT_BOTH Philox noise_bits(const SampleRow& how, std::int64_t id) {
  return philox(how.seed, 0x73616d7000000000ull | static_cast<std::uint32_t>(how.number), static_cast<std::uint64_t>(id) / 4);
}
// Uniform in (0, 1) with all the precision there is near 0, where large noise comes from.
BHYT_BOTH float noise_uniform(std::uint32_t bits) {
  const float x = (static_cast<float>(bits) + 0.5f) * 2.3283064e-10f;
  return x < 0.99999994f ? x : 0.99999994f;
}
BHYT_BOTH float noise(float uniform) { return -logf(-log1pf(-uniform)); }
// At least noise(uniform), for much less: most tokens cannot win.
BHYT_BOTH float noise_bound(float uniform) {
  return 0.6931473f * static_cast<float>(127 - static_cast<int>(detail::float_bits(uniform) >> 23)) + 1e-5f;
}

}  // namespace bhyt::choice
