#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/threads.h"
#include "ops/gemm/int8.h"
#include "ops/gemm/row_tiles.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace bhyt {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLeast = 1e-30f;  // a row whose largest magnitude is no more is taken as zeros: what it has to be multiplied by overflows

// The largest magnitude; NaN where a value is not finite. Compared as integers: without their sign, floats have the same order.
float magnitude(const float* x, std::int64_t n) {
  std::int32_t top = 0;
  for (std::int64_t i = 0; i < n; ++i) top = std::max(top, std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff);
  const auto f = std::bit_cast<float>(top);
  return std::isfinite(f) ? f : kNan;
}
float magnitude(const bf16* x, std::int64_t n) {
  std::int16_t top = 0;
  for (std::int64_t i = 0; i < n; ++i) top = std::max(top, static_cast<std::int16_t>(x[i].bits & 0x7fff));
  const float f = to_float(bf16{static_cast<std::uint16_t>(top)});
  return std::isfinite(f) ? f : kNan;
}

void quantize_row(const float* w, std::int64_t n, std::int8_t* out) {
  const float top = magnitude(w, n), inverse = top > kLeast ? 127.0f / top : 0.0f;
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::int8_t>(top > kLeast ? std::lrintf(w[i] * inverse) : 0);
    sum += out[i];
  }
  std::fill(out + n, out + int8_distance(n), std::int8_t{0});
  const cpu::Int8RowEnd end{std::isfinite(top) ? top / 127 : kNan, sum};
  memcpy(out + int8_distance(n) - sizeof end, &end, sizeof end);
}

}  // namespace

namespace cpu {

namespace {

#define ALWAYS_INLINE inline __attribute__((always_inline))

// The largest integer that stands for a value.
template <class In>
constexpr float kLargest = std::is_same_v<In, bf16> ? (1 << 15) - 1 : (1 << 20) - 1;

template <class In>
float scale_of(const In* x, std::int64_t depth, float& inverse) {
  const float top = magnitude(x, depth);
  inverse = top > kLeast ? kLargest<In> / top : 0;
  return top / kLargest<In>;
}

// A float this large has its integer in its low bits, rounded. No value comes out larger than kLargest before it is rounded, but by a
// rounding of its own; the bound is there so that no compiler makes one rounding of product and sum, which others would not.
template <class In>
ALWAYS_INLINE std::uint32_t integer_of(In x, float inverse) {
  constexpr float kRounds = 3 << 22;
  return std::bit_cast<std::uint32_t>(std::min(to_float(x) * inverse, kLargest<In>) + kRounds) - std::bit_cast<std::uint32_t>(kRounds);
}

// Loops that compilers turn into vectors.
template <class In>
ALWAYS_INLINE void put_some_bytes(const In* x, int n, float inverse, std::uint16_t flip, std::uint8_t* low, std::uint8_t* high) {
  std::uint16_t whole[16];
  for (int i = 0; i < n; ++i) whole[i] = static_cast<std::uint16_t>(integer_of(x[i], inverse)) ^ flip;
  for (int i = 0; i < n; ++i) low[i] = static_cast<std::uint8_t>(whole[i]);
  for (int i = 0; i < n; ++i) high[i] = static_cast<std::uint8_t>(whole[i] >> 8);
}
template <class In>
void put_bytes(const In* x, std::int64_t n, float inverse, std::uint8_t flip, std::uint8_t* low, std::uint8_t* high) {
  const auto both = static_cast<std::uint16_t>(0x8000 ^ (flip * 0x101));  // the offset and the flip of either byte
  std::int64_t at = 0;
  for (; at + 16 <= n; at += 16) put_some_bytes(x + at, 16, inverse, both, low + at, high + at);
  put_some_bytes(x + at, static_cast<int>(n - at), inverse, both, low + at, high + at);
}

template <class In>
void put_digits(const In* x, std::int64_t n, float inverse, const Digits& digits, std::uint8_t* out, std::int64_t apart) {
  if (digits.bits == 8) return put_bytes(x, n, inverse, digits.flip, out, out + apart);
  constexpr std::int64_t kSome = 256;
  std::uint32_t whole[kSome];
  const std::uint32_t mask = (1u << digits.bits) - 1;
  for (std::int64_t at = 0; at < n; at += kSome) {
    const std::int64_t some = std::min(kSome, n - at);
    for (std::int64_t i = 0; i < some; ++i) whole[i] = integer_of(x[at + i], inverse) + static_cast<std::uint32_t>(digits.offset);
    for (int d = 0; d < digits.count; ++d)
      for (std::int64_t i = 0; i < some; ++i) out[d * apart + at + i] = static_cast<std::uint8_t>(whole[i] >> (d * digits.bits) & mask);
  }
}

template <class In>
float pack(const In* x, std::int64_t depth, std::uint8_t* out) {
  const std::int64_t width = digits_width(depth);
  const Digits& digits = int8_digits(std::is_same_v<In, bf16> ? DType::bf16 : DType::f32);
  for (int d = 0; d < digits.count; ++d) std::fill(out + d * width + depth, out + (d + 1) * width, std::uint8_t{0});
  float inverse;
  const float scale = scale_of(x, depth, inverse);
  put_digits(x, depth, inverse, digits, out, width);
  return scale;
}

// Vectors of bytes and the sums of their products. The instructions stand here by name: as functions of the compiler they would have to be
// called from code that is compiled for one processor, and the tiles below are written once for all. A sum is copied for them: of what
// an instruction by name changes in place GCC keeps all in memory.
template <int N>
struct Bytes {
  typedef std::uint8_t Digits __attribute__((vector_size(N)));
  typedef std::int8_t Weights __attribute__((vector_size(N)));
  typedef std::int32_t Sums __attribute__((vector_size(N)));
  typedef std::int16_t Halves __attribute__((vector_size(N)));
};

// kOuts rows of w are worked on together. kFar: they lie far apart, and each is read on and on, what is kAhead bytes further being asked
// for; otherwise next to each other, and the ones behind them are asked for.
struct Plain {
  static constexpr int kBytes = 16, kOuts = 2, kAhead = 0;
  static constexpr bool kFar = false;
  ALWAYS_INLINE static void dot(Bytes<16>::Sums& sum, const Bytes<16>::Digits& x, const Bytes<16>::Weights& w) {
    for (int i = 0; i < 16; ++i) sum[i / 4] += x[i] * w[i];
  }
};

#if defined(__aarch64__)
struct Dot {
  static constexpr int kBytes = 16, kOuts = 4, kAhead = 0;
  static constexpr bool kFar = true;
  ALWAYS_INLINE static void dot(Bytes<16>::Sums& sum, const Bytes<16>::Digits& x, const Bytes<16>::Weights& w) {
    Bytes<16>::Sums s = sum;
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(s) : "w"(x), "w"(w));  // digits have signs, or are below 128
    sum = s;
  }
};
#elif defined(__x86_64__)
// Two products of 7 bits fit the 16 bits that the first instruction sums in.
struct Avx2 {
  static constexpr int kBytes = 32, kOuts = 2, kAhead = 1024;
  static constexpr bool kFar = true;
  ALWAYS_INLINE static void dot(Bytes<32>::Sums& sum, const Bytes<32>::Digits& x, const Bytes<32>::Weights& w) {
    Bytes<32>::Halves pairs, ones = {};
    ones += 1;
    __asm__("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(x), "x"(w));
    Bytes<32>::Sums fours;
    __asm__("vpmaddwd %2, %1, %0" : "=x"(fours) : "x"(pairs), "x"(ones));
    sum += fours;
  }
};
struct Vnni {
  static constexpr int kBytes = 64, kOuts = 4, kAhead = 1024;
  static constexpr bool kFar = true;
  ALWAYS_INLINE static void dot(Bytes<64>::Sums& sum, const Bytes<64>::Digits& x, const Bytes<64>::Weights& w) {
    Bytes<64>::Sums s = sum;
    __asm__("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(x), "v"(w));
    sum = s;
  }
};
#endif

// Halves onto each other until one is left.
template <int N>
ALWAYS_INLINE std::int64_t total(const typename Bytes<N>::Sums& sums) {
#if defined(__aarch64__)
  return vaddvq_s32(sums);
#else
  if constexpr (N == 8) {
    return sums[0] + sums[1];
  } else {
    typename Bytes<N / 2>::Sums low, high;
    memcpy(&low, &sums, sizeof low);
    memcpy(&high, reinterpret_cast<const char*>(&sums) + sizeof low, sizeof high);
    const typename Bytes<N / 2>::Sums sum = low + high;
    return total<N / 2>(sum);
  }
#endif
}

// What a row's digits times a row of w come to, as a number.
template <int N, int D>
ALWAYS_INLINE float value_of(const typename Bytes<N>::Sums (&sums)[D], const Digits& digits, float scale, const Int8RowEnd& end) {
  std::int64_t whole = -(static_cast<std::int64_t>(end.sum) * digits.offset);
#pragma GCC unroll 4
  for (int d = 0; d < D; ++d) whole += total<N>(sums[d]) * (std::int64_t{1} << (d * digits.bits));
  return int8_value(whole, scale, end.scale);
}

// A vector of R rows of x and of C rows of w, each of which is `ldw` behind the one before it. All loops over sums are unrolled: otherwise
// GCC keeps them in memory.
template <class Cpu, int D, int R, int C>
ALWAYS_INLINE void add_products(const std::uint8_t* x, std::int64_t ldx, std::int64_t width, const std::int8_t* w, std::int64_t ldw,
                                typename Bytes<Cpu::kBytes>::Sums (&acc)[R][C][D]) {
  constexpr int N = Cpu::kBytes;
  typename Bytes<N>::Weights weights[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) memcpy(&weights[c], w + c * ldw, N);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) {
      typename Bytes<N>::Digits digits;
      memcpy(&digits, x + r * ldx + d * width, N);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) Cpu::dot(acc[r][c][d], digits, weights[c]);
    }
}

// R rows of x from `row` on times C rows of w, `out` and those `apart` from it.
template <class Cpu, int D, int R, int C>
ALWAYS_INLINE void tile(const Int8Task& t, std::int64_t row, std::int64_t out, std::int64_t apart) {
  // Two sums for each, where too few would wait for each other; a line of the cache at a time where each row is read on and on.
  constexpr int N = Cpu::kBytes, kGroups = R * C <= 2 ? 2 : 1, kVectors = Cpu::kFar ? 64 / N : kGroups;
  const std::int64_t width = digits_width(t.depth), ldx = digits_distance(t.depth), distance = int8_distance(t.depth),
                     ldw = apart * distance;
  const std::uint8_t* const x = t.x + row * ldx;
  const std::int8_t* const w = t.w + out * distance;
  typename Bytes<N>::Sums acc[kGroups][R][C][D] = {};
  std::int64_t p = 0;
  for (; p + kVectors * N <= width; p += kVectors * N) {
    // The rows behind these, in one stretch: no processor foresees several rows at a time that are near each other.
#pragma GCC unroll 8
    for (int line = 0; line < (Cpu::kFar ? 0 : C * kVectors * N); line += 64) __builtin_prefetch(w + C * (ldw + p) + line);
#pragma GCC unroll 4
    for (int c = 0; c < (Cpu::kAhead > 0 ? C : 0); ++c) __builtin_prefetch(w + c * ldw + p + Cpu::kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) add_products<Cpu, D, R, C>(x + p + v * N, ldx, width, w + p + v * N, ldw, acc[v % kGroups]);
  }
  for (; p < width; p += N) add_products<Cpu, D, R, C>(x + p, ldx, width, w + p, ldw, acc[0]);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
      for (int d = 0; d < D; ++d)
        if constexpr (kGroups == 2) acc[0][r][c][d] += acc[1][r][c][d];
      t.sums[(row + r) * t.outs + out + c * apart] =
          value_of<N>(acc[0][r][c], t.digits, t.scales[row + r], int8_row_end(w + c * ldw, t.depth));
    }
}

// C rows of w stay in the cache for all rows of x.
template <class Cpu, int D, int C>
ALWAYS_INLINE void rows_times(const Int8Task& t, std::int64_t out, std::int64_t apart) {
  constexpr int kMost = Cpu::kBytes == 64 && D == 2 ? 3 : 2;  // as many sums as there are registers for
  std::int64_t row = 0;
  for (; row + kMost <= t.rows; row += kMost) tile<Cpu, D, kMost, C>(t, row, out, apart);
  if (t.rows - row == 2)
    tile<Cpu, D, 2, C>(t, row, out, apart);
  else if (t.rows - row == 1)
    tile<Cpu, D, 1, C>(t, row, out, apart);
}

template <class Cpu, int D, int C>
ALWAYS_INLINE void task_of(const Int8Task& t) {
  std::int64_t out = 0;
  if constexpr (Cpu::kFar) {
    const std::int64_t apart = rows_apart(t.outs, C);
    for (; out < apart; ++out) rows_times<Cpu, D, C>(t, out, apart);
    out = apart * C;
  }
  for (; out + C <= t.outs; out += C) rows_times<Cpu, D, C>(t, out, 1);
  for (; out < t.outs; ++out) rows_times<Cpu, D, 1>(t, out, 1);
}

// Few rows of x are bound by reading w, and memory gives two rows that are read on and on quicker than four.
template <class Cpu, int D>
ALWAYS_INLINE void task_of(const Int8Task& t) {
  if (Cpu::kFar && t.rows < kManyRows)
    task_of<Cpu, D, 2>(t);
  else
    task_of<Cpu, D, Cpu::kOuts>(t);
}

template <class Cpu>
ALWAYS_INLINE void task(const Int8Task& t) {
  if (t.digits.count == 2)
    task_of<Cpu, 2>(t);
  else
    task_of<Cpu, 3>(t);
}

#if defined(__aarch64__)
__attribute__((target("arch=armv8.2-a+dotprod"))) void task_dot(const Int8Task& t) { task<Dot>(t); }
bool has_dot() {
  static const bool yes = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return yes;
}
#elif defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) void task_vnni(const Int8Task& t) { task<Vnni>(t); }
__attribute__((target("avx2"))) void task_avx2(const Int8Task& t) { task<Avx2>(t); }
bool has_vnni() {
  static const bool yes = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  return yes;
}
bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}
#endif

}  // namespace

void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out) {
  const std::int64_t n = w.cols();
  dispatch_float(w.dtype, [&]<class T>(T) {
    parallel_for(ctx.threads(), w.rows(), (1 << 16) / (n + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(n));
      for (std::int64_t i = begin; i < end; ++i) {
        const T* const from = w.as<T>() + i * w.ld;
        for (std::int64_t j = 0; j < n; ++j) row[static_cast<std::size_t>(j)] = to_float(from[j]) * (by ? by.as<float>()[j] : 1.0f);
        quantize_row(row.data(), n, out.as<std::int8_t>() + i * out.ld);
      }
    });
  });
}

float pack_digits(const float* x, std::int64_t depth, std::uint8_t* out) { return pack(x, depth, out); }
float pack_digits(const bf16* x, std::int64_t depth, std::uint8_t* out) { return pack(x, depth, out); }

void run(const Int8Task& t) {
#if defined(__aarch64__)
  if (has_dot()) return task_dot(t);
#elif defined(__x86_64__)
  if (has_vnni() && row_lanes() == 16) return task_vnni(t);
  if (has_avx2() && row_lanes() >= 8) return task_avx2(t);
#endif
  task<Plain>(t);
}

const Digits& int8_digits(DType x) {
  if (x == DType::bf16) {
#if defined(__aarch64__)
    if (has_dot()) return kSignedBytes;
#elif defined(__x86_64__)
    if (has_vnni() && row_lanes() == 16) return kBytes;  // two products of bytes would not fit AVX2's 16 bits
#endif
  }
  return kSevenBits;
}

float int8_scale(const float* x, std::int64_t depth, float& inverse) { return scale_of(x, depth, inverse); }
float int8_scale(const bf16* x, std::int64_t depth, float& inverse) { return scale_of(x, depth, inverse); }
void digits_of(const float* x, std::int64_t n, float inverse, const Digits& digits, std::uint8_t* out, std::int64_t apart) {
  put_digits(x, n, inverse, digits, out, apart);
}
void digits_of(const bf16* x, std::int64_t n, float inverse, const Digits& digits, std::uint8_t* out, std::int64_t apart) {
  put_digits(x, n, inverse, digits, out, apart);
}

}  // namespace cpu

}  // namespace bhyt
