#include "ops/attention/tile_bf16.h"

#include <algorithm>
#include <cstring>

#include "core/threads.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace bhyt::cpu {

namespace {

BHYT_CLONES void plain_product(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a, std::int64_t lda, const bf16* b, float* c) {
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t p = 0; p < k; p += 2) {
      const float x = to_float(a[i * lda + p]), y = to_float(a[i * lda + p + 1]);
      const bf16* const row = b + p * n;
      for (std::int64_t j = 0; j < n; ++j) c[i * n + j] += x * to_float(row[2 * j]) + y * to_float(row[2 * j + 1]);
    }
}

#if defined(__x86_64__)
bool ask_for_matrix_unit() {
  unsigned a, b, c, d;
  constexpr unsigned kTiles = 1u << 24, kBf16 = 1u << 22, kInt8 = 1u << 25, kAll = kTiles | kBf16 | kInt8;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAll) != kAll) return false;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bf16")) return false;  // for rounding
  constexpr long kAskForState = 0x1023, kTileData = 18;  // the kernel gives a process the unit's registers when it asks
  return ::syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

// Eight tiles of 16 rows and 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void configure_unit() {
  static const TileConfig config;
  _tile_loadconfig(&config);
}
__attribute__((target("amx-tile"))) void release_unit() { _tile_release(); }

// 32 × 32 sums in four tiles, each operand's tile used twice.
__attribute__((target("amx-tile,amx-bf16"), noinline)) void unit_product(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a,
                                                                         std::int64_t lda, const bf16* b, float* c) {
  // GCC's tile loads do not say that they read memory.
  __asm__ volatile("" ::: "memory");
  const auto row_of_a = static_cast<std::size_t>(lda) * sizeof(bf16), row_of_c = static_cast<std::size_t>(n) * sizeof(float);
  for (std::int64_t i = 0; i < m; i += 32)
    for (std::int64_t j = 0; j < n; j += 32) {
      float *const above = c + i * n + j, *const below = above + 16 * n;
      _tile_loadd(0, above, row_of_c);
      _tile_loadd(1, above + 16, row_of_c);
      _tile_loadd(2, below, row_of_c);
      _tile_loadd(3, below + 16, row_of_c);
      for (std::int64_t p = 0; p < k; p += 32) {
        const bf16* const left = a + i * lda + p;
        const bf16* const right = b + p * n + 2 * j;
        _tile_loadd(4, left, row_of_a);
        _tile_loadd(5, left + 16 * lda, row_of_a);
        _tile_loadd(6, right, row_of_c);  // a pair is as large as a sum
        _tile_loadd(7, right + 32, row_of_c);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, above, row_of_c);
      _tile_stored(1, above + 16, row_of_c);
      _tile_stored(2, below, row_of_c);
      _tile_stored(3, below + 16, row_of_c);
    }
  __asm__ volatile("" ::: "memory");
}

// Processors with the unit round to bf16 in one instruction, too, which compilers do not find.
#define BHYT_ROUNDS __attribute__((target("avx512f,avx512bf16")))
BHYT_ROUNDS __attribute__((always_inline)) inline __m256i rounded(const float* from) {
  const __m256bh r = _mm512_cvtneps_pbh(_mm512_loadu_ps(from));
  __m256i bits;
  memcpy(&bits, &r, sizeof bits);
  return bits;
}
BHYT_ROUNDS void unit_round_row(const float* s, std::int64_t n, bf16* out) {
  for (std::int64_t j = 0; j < n; j += 16) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + j), rounded(s + j));
}
BHYT_ROUNDS void unit_round_pair(const float* even, const float* odd, std::int64_t n, bf16* out) {
  constexpr __mmask16 all = 0xFFFF;  // GCC takes the forms without a mask for a use of something not initialised
  for (std::int64_t j = 0; j < n; j += 16) {
    const __m512i low = _mm512_maskz_cvtepu16_epi32(all, rounded(even + j)), high = _mm512_maskz_cvtepu16_epi32(all, rounded(odd + j));
    _mm512_storeu_si512(out + 2 * j, _mm512_or_si512(low, _mm512_maskz_slli_epi32(all, high, 16)));
  }
}
#endif

}  // namespace

bool has_matrix_unit() {
#if defined(__x86_64__)
  static const bool yes = ask_for_matrix_unit();
  return yes;
#else
  return false;
#endif
}

namespace {

using Word = std::uint32_t;  // two elements of bf16, the first one in the lower half

inline Word word_of(bf16 low, bf16 high) { return low.bits | static_cast<Word>(high.bits) << 16; }

void round_row(const float* __restrict s, std::int64_t n, bf16* __restrict out) {
#if defined(__x86_64__)
  if (has_matrix_unit()) return unit_round_row(s, n, out);
#endif
  for (std::int64_t j = 0; j < n; ++j) out[j] = to_bf16(s[j]);
}

void round_pair(const float* __restrict even, const float* __restrict odd, std::int64_t n, bf16* __restrict out) {
#if defined(__x86_64__)
  if (has_matrix_unit()) return unit_round_pair(even, odd, n, out);
#endif
  for (std::int64_t j = 0; j < n; ++j) {
    const Word w = word_of(to_bf16(even[j]), to_bf16(odd[j]));
    memcpy(out + 2 * j, &w, sizeof w);
  }
}

}  // namespace

MatrixUnit::MatrixUnit() {
#if defined(__x86_64__)
  if (has_matrix_unit()) configure_unit();
#endif
}
MatrixUnit::~MatrixUnit() {
#if defined(__x86_64__)
  if (has_matrix_unit()) release_unit();
#endif
}

void bf16_product(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* a, std::int64_t lda, const bf16* b, float* c) {
#if defined(__x86_64__)
  if (has_matrix_unit()) return unit_product(m, n, k, a, lda, b, c);
#endif
  plain_product(m, n, k, a, lda, b, c);
}

void copy_tile(const bf16* in, std::int64_t ld, std::int64_t n, std::int64_t d, bf16* out, std::int64_t width) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::copy_n(in + i * ld, d, out + i * width);
    std::fill(out + i * width + d, out + (i + 1) * width, bf16{0});
  }
  std::fill(out + n * width, out + kTile * width, bf16{0});
}

BHYT_CLONES void pair_rows(const bf16* __restrict in, std::int64_t width, bf16* __restrict out) {
  for (std::int64_t i = 0; i < kTile; i += 2)
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) {
      const Word w = word_of(in[i * width + j], in[(i + 1) * width + j]);
      memcpy(out + i * width + 2 * j, &w, sizeof w);
    }
}

void transpose_pairs(const bf16* in, std::int64_t width, bf16* out) {
  // A pair of columns moves as one word.
  transpose(reinterpret_cast<const float*>(in), kTile, width / 2, reinterpret_cast<float*>(out));
}

BHYT_CLONES void part_pairs(const bf16* __restrict in, std::int64_t width, bf16* __restrict out) {
  for (std::int64_t i = 0; i < width; i += 2)
#pragma omp simd
    for (std::int64_t j = 0; j < kTile; ++j) {
      Word w;
      memcpy(&w, in + i * kTile + 2 * j, sizeof w);
      out[i * kTile + j].bits = static_cast<std::uint16_t>(w);
      out[(i + 1) * kTile + j].bits = static_cast<std::uint16_t>(w >> 16);
    }
}

void round_rows(const float* s, std::int64_t n, bf16* out) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    round_row(s + r * kTile, n, out + r * kTile);
    std::fill(out + r * kTile + n, out + (r + 1) * kTile, bf16{0});
  }
}

void round_pairs(const float* s, std::int64_t n, bf16* out) {
  for (std::int64_t r = 0; r < kRows; r += 2) {
    bf16* const pairs = out + r * kTile;
    round_pair(s + r * kTile, s + (r + 1) * kTile, n, pairs);
    std::fill(pairs + 2 * n, pairs + 2 * kTile, bf16{0});
  }
}

BHYT_CLONES void multiply_rows(float* rows, std::int64_t width, const float* by) {
  for (std::int64_t r = 0; r < kRows; ++r) {
    const float factor = by[r];
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) rows[r * width + j] *= factor;
  }
}

}  // namespace bhyt::cpu
