// Elementary functions for hot loops, shared by the CPU loops and the CUDA kernels. The float versions have no branches and no calls,
// so that loops over them vectorise; the double versions are libm's, so that a template instantiated with double is its own reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace bhyt {

namespace detail {
BHYT_BOTH std::uint32_t float_bits(float x) {
  std::uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
BHYT_BOTH float float_from_bits(std::uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
// Clamps to [-limit, limit] by the bits: below as unsigned numbers, where the negative floats come last, above as signed ones. Integer
// minima vectorise everywhere, float comparisons that let NaN through do not. (NaN is clamped too: the callers put it back.)
BHYT_BOTH float clamp_magnitude(float x, float limit) {
  const std::uint32_t u = float_bits(x), low = float_bits(-limit), v = u < low ? u : low;
  const std::int32_t s = static_cast<std::int32_t>(v), high = static_cast<std::int32_t>(float_bits(limit));
  return float_from_bits(static_cast<std::uint32_t>(s < high ? s : high));
}
}  // namespace detail

// e^x, within 2e-7 of the value; subnormal results too, 0 and infinity beyond them.
BHYT_BOTH float fast_exp(float argument) {
  const float x = detail::clamp_magnitude(argument, 104.0f);
  // The sum's low bits are n = round(x / ln 2) as an integer; e^x = 2^n · e^r.
  const float magic = 12582912.0f;
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f, r2 = r * r;
  const float q = (0.49999994f + 0.166665196f * r) + r2 * ((0.0416683927f + 0.00836878084f * r) + r2 * 0.00138144672f);
  const float p = (1.0f + r) + r2 * q;
  // 2^n as two factors, since n runs from -150 to 150; each is an exponent field near 127.
  const std::uint32_t k = detail::float_bits(shifted) - (0x4B400000u - 254u), half = k >> 1;
  const float y = p * detail::float_from_bits(half << 23) * detail::float_from_bits((k - half) << 23);
  return argument == argument ? y : argument;
}
BHYT_BOTH double fast_exp(double x) { return std::exp(x); }

// Rational in x², fitted for the largest relative error: 4e-7 with the rounding of every step. Odd, x for small x, ±1 from ±9.75 on (the
// fit has passed 1 there, the clamp does the rest).
BHYT_BOTH float fast_tanh(float argument) {
  const float x = detail::clamp_magnitude(argument, 9.75f), t = x * x, t2 = t * t;
  const float p = (1.0f + 0.133809298f * t) + t2 * ((0.00349546014f + 2.06071327e-05f * t) + t2 * 1.3352115e-08f);
  const float q = (1.0f + 0.467142493f * t) + t2 * ((0.0258765146f + 0.000328542956f * t) + t2 * 7.77550611e-07f);
  const float y = detail::clamp_magnitude(x * p / q, 1.0f);
  return argument == argument ? y : argument;
}
BHYT_BOTH double fast_tanh(double x) { return std::tanh(x); }

// For results that are rounded to bf16: within 2^-13 of the value, half of fast_tanh's work. Odd; the fit reaches ±1 at the clamp, so that
// the slope 1 − y² ends there. Loops pass the clamp as a number that the compiler does not know: otherwise it works out what lies beyond,
// and computes three cases behind masks.
constexpr float kShortTanhClamp = 5.0573f;
BHYT_BOTH float short_tanh(float argument, float clamp = kShortTanhClamp) {
  const float low = argument < -clamp ? -clamp : argument, x = low > clamp ? clamp : low, t = x * x;
  return x * (0.999948025f + t * (0.102417655f + t * 0.000670564477f)) / (1.0f + t * (0.435432434f + t * 0.0128198769f));
}

// As fast_tanh for the error function; ±1 from ±4.1 on.
BHYT_BOTH float fast_erf(float argument) {
  const float x = detail::clamp_magnitude(argument, 4.1f), t = x * x, t2 = t * t;
  const float p =
      (1.12837911f + 0.187244087f * t) + t2 * ((0.052412279f + 0.00365055678f * t) + t2 * (0.000285995542f + 2.12503483e-06f * t));
  const float q = (1.0f + 0.499273658f * t) + t2 * ((0.112875983f + 0.0147380838f * t) + t2 * (0.00114135828f + 3.89205161e-05f * t));
  const float y = detail::clamp_magnitude(x * p / q, 1.0f);
  return argument == argument ? y : argument;
}
BHYT_BOTH double fast_erf(double x) { return std::erf(x); }

// The largest of x[0…n), -inf for none; a positive NaN counts as larger than all. Compares integers that sort like the floats, because
// compilers do not vectorise a float maximum without -ffast-math.
BHYT_BOTH float max_of(const float* x, std::int64_t n) {
  const auto sortable = [](std::int32_t b) { return b ^ ((b >> 31) & 0x7FFFFFFF); };
  std::int32_t top = sortable(static_cast<std::int32_t>(0xFF800000u));
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t b = sortable(static_cast<std::int32_t>(detail::float_bits(x[i])));
    top = b > top ? b : top;
  }
  return detail::float_from_bits(static_cast<std::uint32_t>(sortable(top)));
}

}  // namespace bhyt
