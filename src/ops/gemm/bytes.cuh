// Weights of one byte (bytes.h) in a kernel's hands.
#pragma once

#include "core/cuda.cuh"

namespace bhyt::cuda {

struct Fp8 {  // e4m3
  std::uint8_t bits;
};

// a·b + c of two bf16 each.
__device__ __forceinline__ unsigned fma2(unsigned a, unsigned b, unsigned c) {
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Four weights without their scale, as bf16: columns 0 and 1, columns 2 and 3. Nothing is rounded.
struct Four {
  unsigned first, second;
};

// Two of int8 in the lower bytes of the halves: 128 + the lower seven bits, less 128, or less 256 where the eighth is set, which is where
// bf16 has the lowest bit of its exponent.
__device__ __forceinline__ unsigned widen_pair(unsigned v, std::int8_t) {
  constexpr unsigned kOne = 0x3F803F80u, k128 = 0x43004300u, kMinus128 = 0xC300C300u;
  return fma2((v & 0x007F007Fu) | k128, kOne, (v & 0x00800080u) | kMinus128);
}
// Two of e4m3 in the upper bytes of the halves: with their bits where bf16 has them they are 2^-120 of what they should be.
__device__ __forceinline__ unsigned widen_pair(unsigned v, Fp8) {
  constexpr unsigned kFactor = 0x7B807B80u, kMinusZero = 0x80008000u;
  return fma2((v & 0x80008000u) | (v >> 4 & 0x07F007F0u), kFactor, kMinusZero);
}

template <class W>
__device__ __forceinline__ Four widen_four(unsigned word);
template <>
__device__ __forceinline__ Four widen_four<std::int8_t>(unsigned word) {
  return {widen_pair(word >> 8, std::int8_t{}), widen_pair(word, std::int8_t{})};
}
template <>
__device__ __forceinline__ Four widen_four<Fp8>(unsigned word) {
  return {widen_pair(word, Fp8{}), widen_pair(word << 8, Fp8{})};
}

}  // namespace bhyt::cuda
