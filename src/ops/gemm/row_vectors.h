// Vectors of as many lanes as an instruction set has, for the products by row.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/dtype.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

// What is compiled for an instruction set of x86-64 by name; everything that it calls has to be ALWAYS_INLINE.
#if defined(__x86_64__)
#define FOR_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,fma")))
#define FOR_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace bhyt::cpu {

// Vectors of L lanes.
template <int L>
struct Vector {
  // Not `using`: with that GCC forgets an attribute that depends on L.
  typedef float Floats __attribute__((vector_size(4 * L)));
  typedef std::uint32_t Words __attribute__((vector_size(4 * L)));
  typedef std::uint16_t Halves __attribute__((vector_size(2 * L)));
  typedef std::uint16_t HalvesAnywhere __attribute__((vector_size(2 * L), may_alias, aligned(2)));
};

template <int L>
ALWAYS_INLINE void load(const float* from, typename Vector<L>::Floats& to) {
  memcpy(&to, from, sizeof to);
}
template <int L>
ALWAYS_INLINE void load(const bf16* from, typename Vector<L>::Floats& to) {
#if defined(__aarch64__)
  to = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&from->bits), 16));  // one instruction, which compilers do not find
#else
  typename Vector<L>::Words words;
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (L >= 8) {
    // By name: of a conversion GCC makes halves that it puts together again, five instructions for one. Reads what a load would.
    __asm__("vpmovzxwd %1, %0" : "=v"(words) : "m"(*reinterpret_cast<const typename Vector<L>::HalvesAnywhere*>(from)));
  } else
#endif
  {
    typename Vector<L>::Halves halves;
    memcpy(&halves, from, sizeof halves);
    words = __builtin_convertvector(halves, typename Vector<L>::Words);
  }
  words <<= 16;
  memcpy(&to, &words, sizeof to);
#endif
}

// sum += a·b, rounded once: row_tiles.cpp and row_panels.cpp come to the same bits.
template <int L>
ALWAYS_INLINE void add_product(typename Vector<L>::Floats& sum, const typename Vector<L>::Floats& a, const typename Vector<L>::Floats& b) {
#if defined(__aarch64__)
  sum = vfmaq_f32(sum, a, b);
#else
  sum += a * b;
#endif
}

// Halves onto each other until one is left; neighbours on NEON, which has an instruction for them.
template <int L>
ALWAYS_INLINE float total(const typename Vector<L>::Floats& v) {
#if defined(__aarch64__)
  return vaddvq_f32(v);
#else
  if constexpr (L == 2) {
    return v[0] + v[1];
  } else {
    typename Vector<L / 2>::Floats low, high;
    memcpy(&low, &v, sizeof low);
    memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof low, sizeof high);
    const typename Vector<L / 2>::Floats sum = low + high;
    return total<L / 2>(sum);
  }
#endif
}

}  // namespace bhyt::cpu
