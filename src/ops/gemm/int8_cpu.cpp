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

// A float this large has its integer in its low bits, rounded.
constexpr float kRounds = 3 << 22;

BHYT_CLONES void times_factors(const bf16* w, const float* by, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_float(w[i]) * by[i];
}
BHYT_CLONES void times_factors(const float* w, const float* by, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = w[i] * by[i];
}

// Returns their sum. No product is larger than 127 but by a rounding of its own: the bound keeps it a rounding of its own (integer_of).
BHYT_CLONES std::int32_t round_values(const float* w, std::int64_t n, float inverse, std::int8_t* out) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t whole =
        std::bit_cast<std::int32_t>(std::min(w[i] * inverse, 127.0f) + kRounds) - std::bit_cast<std::int32_t>(kRounds);
    out[i] = static_cast<std::int8_t>(whole);
    sum += whole;
  }
  return sum;
}

void quantize_row(const float* w, std::int64_t n, std::int8_t* out) {
  const float top = magnitude(w, n);
  std::int32_t sum = 0;
  if (top > kLeast)
    sum = round_values(w, n, 127.0f / top, out);
  else
    std::fill_n(out, n, std::int8_t{0});
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

// No value comes out larger than kLargest before it is rounded, but by a rounding of its own; the bound is there so that no compiler makes
// one rounding of product and sum, which others would not.
template <class In>
ALWAYS_INLINE std::uint32_t integer_of(In x, float inverse) {
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

// Digits of two bytes: `count - 1` without a sign, and one that has it.
void put_halves(const std::uint32_t* whole, std::int64_t n, const Digits& digits, std::uint8_t* out, std::int64_t apart) {
  auto* const low = reinterpret_cast<std::uint16_t*>(out);
  if (digits.count == 1) {
    for (std::int64_t i = 0; i < n; ++i) low[i] = static_cast<std::uint16_t>(whole[i]);
    return;
  }
  auto* const high = reinterpret_cast<std::uint16_t*>(out + apart);
  const auto mask = static_cast<std::uint16_t>((1 << digits.bits) - 1);
  for (std::int64_t i = 0; i < n; ++i) low[i] = static_cast<std::uint16_t>(whole[i]) & mask;
  for (std::int64_t i = 0; i < n; ++i) high[i] = static_cast<std::uint16_t>(static_cast<std::int32_t>(whole[i]) >> digits.bits);
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
    if (digits.bytes() == 2) {
      put_halves(whole, some, digits, out + 2 * at, apart);
      continue;
    }
    for (int d = 0; d < digits.count; ++d)
      for (std::int64_t i = 0; i < some; ++i) out[d * apart + at + i] = static_cast<std::uint8_t>(whole[i] >> (d * digits.bits) & mask);
  }
}

template <class In>
float pack(const In* x, std::int64_t depth, const Digits& digits, std::uint8_t* out) {
  const std::int64_t width = digits_width(depth) * digits.bytes(), used = depth * digits.bytes();
  for (int d = 0; d < digits.count; ++d) std::fill(out + d * width + used, out + (d + 1) * width, std::uint8_t{0});
  float inverse;
  const float scale = scale_of(x, depth, inverse);
  put_digits(x, depth, inverse, digits, out, width);
  return scale;
}

// Vectors of digits and weights, and the sums of their products. The instructions stand here by name: as functions of the compiler they
// would have to be called from code that is compiled for one processor, and the tiles below are written once for all. A sum is copied for
// them: of what an instruction by name changes in place GCC keeps all in memory.
template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N)));
};
template <class T, int N>
using Vector = typename VectorOf<T, N>::type;

// kColumns: of a vector. kMostColumns: whose sums the lanes hold. Sum: what holds those of all lanes.
template <int N>
struct Bytes {
  using Digit = std::uint8_t;
  using Weights = Vector<std::int8_t, N>;
  using Sum = std::int32_t;
  static constexpr int kBytes = N, kColumns = N;
  static constexpr std::int64_t kMostColumns = kInt8Columns;
  ALWAYS_INLINE static void load(const std::int8_t* w, Weights& to) { memcpy(&to, w, N); }
};

// kOuts rows of w are worked on together. kFar: they lie far apart, and each is read on and on, what is kAhead bytes further being asked
// for; otherwise next to each other, and the ones behind them are asked for.
struct Plain : Bytes<16> {
  static constexpr int kOuts = 2, kAhead = 0;
  static constexpr bool kFar = false;
  ALWAYS_INLINE static void dot(Vector<std::int32_t, 16>& sum, const Vector<Digit, 16>& x, const Weights& w) {
    for (int i = 0; i < 16; ++i) sum[i / 4] += x[i] * w[i];
  }
};

#if defined(__aarch64__)
struct Dot : Bytes<16> {
  static constexpr int kOuts = 4, kAhead = 0;
  static constexpr bool kFar = true;
  ALWAYS_INLINE static void dot(Vector<std::int32_t, 16>& sum, const Vector<Digit, 16>& x, const Weights& w) {
    Vector<std::int32_t, 16> s = sum;
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(s) : "w"(x), "w"(w));  // digits have signs, or are below 128
    sum = s;
  }
};
#elif defined(__x86_64__)
// Digits and weights of 16 bits, whose products are summed in pairs: with AVX2 (N = 32) or AVX-512 (N = 64).
template <int N>
struct Halves {
  using Digit = std::int16_t;
  using Weights = Vector<std::int16_t, N>;
  using Sum = std::int64_t;
  static constexpr int kBytes = N, kColumns = N / 2, kOuts = N / 16, kAhead = 1024;
  static constexpr std::int64_t kMostColumns = 256 * kColumns;
  static_assert(kMostColumns / kColumns * 2 * 32767 * 127 < std::int64_t{1} << 31);
  static constexpr bool kFar = true;
  ALWAYS_INLINE static void load(const std::int8_t* w, Weights& to) {
    typedef std::int8_t Memory __attribute__((vector_size(N / 2), aligned(1), may_alias));
    Weights v;
    __asm__("vpmovsxbw %1, %0" : "=v"(v) : "m"(*reinterpret_cast<const Memory*>(w)));
    to = v;
  }
  ALWAYS_INLINE static void dot(Vector<std::int32_t, N>& sum, const Vector<Digit, N>& x, const Weights& w) {
    // The sum, too: compilers would add up the pairs of several vectors first, and run out of registers.
    Vector<std::int32_t, N> s = sum, pairs;
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(s), "=&v"(pairs) : "v"(x), "v"(w));
    sum = s;
  }
};
struct Vnni : Bytes<64> {
  static constexpr int kOuts = 4, kAhead = 1024;
  static constexpr bool kFar = true;
  ALWAYS_INLINE static void dot(Vector<std::int32_t, 64>& sum, const Vector<Digit, 64>& x, const Weights& w) {
    Vector<std::int32_t, 64> s = sum;
    __asm__("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(x), "v"(w));
    sum = s;
  }
};
#endif

// Halves onto each other until one is left, in the type of the lanes.
template <class T, int N>
ALWAYS_INLINE std::int64_t total(const Vector<T, N>& sums) {
#if defined(__aarch64__)
  return vaddvq_s32(sums);
#else
  if constexpr (N == 2 * sizeof(T)) {
    return sums[0] + sums[1];
  } else {
    Vector<T, N / 2> low, high;
    memcpy(&low, &sums, sizeof low);
    memcpy(&high, reinterpret_cast<const char*>(&sums) + sizeof low, sizeof high);
    const Vector<T, N / 2> sum = low + high;
    return total<T, N / 2>(sum);
  }
#endif
}

// What a row's digits times a row of w come to.
template <class Cpu, int D>
ALWAYS_INLINE std::int64_t whole_of(const Vector<std::int32_t, Cpu::kBytes> (&sums)[D], const Digits& digits) {
  constexpr int kWide = Cpu::kBytes / 4 * sizeof(typename Cpu::Sum);
  std::int64_t whole = 0;
#pragma GCC unroll 4
  for (int d = 0; d < D; ++d) {
    const auto wide = __builtin_convertvector(sums[d], Vector<typename Cpu::Sum, kWide>);
    whole += total<typename Cpu::Sum, kWide>(wide) * (std::int64_t{1} << (d * digits.bits));
  }
  return whole;
}

// A vector of R rows of x and of C rows of w, each of which is `ldw` behind the one before it. All loops over sums are unrolled: otherwise
// GCC keeps them in memory.
template <class Cpu, int D, int R, int C>
ALWAYS_INLINE void add_products(const std::uint8_t* x, std::int64_t ldx, std::int64_t width, const std::int8_t* w, std::int64_t ldw,
                                Vector<std::int32_t, Cpu::kBytes> (&acc)[R][C][D]) {
  typename Cpu::Weights weights[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) Cpu::load(w + c * ldw, weights[c]);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int d = 0; d < D; ++d) {
      Vector<typename Cpu::Digit, Cpu::kBytes> digits;
      memcpy(&digits, x + r * ldx + d * width, sizeof digits);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) Cpu::dot(acc[r][c][d], digits, weights[c]);
    }
}

// What R rows of x come to with C rows of w, each `ldw` behind the one before it, in columns from `begin` to `end`, added to `whole`.
template <class Cpu, int D, int R, int C>
ALWAYS_INLINE void add_columns(const Int8Task& t, const std::uint8_t* x, const std::int8_t* w, std::int64_t ldw, std::int64_t begin,
                               std::int64_t end, std::int64_t (&whole)[R][C]) {
  // A line of the cache at a time where each row is read on and on. Two sums for each, where too few would wait for each other.
  constexpr bool kTwo = R * C <= 2;
  constexpr int N = Cpu::kColumns,
                kVectors = Cpu::kFar ? 64 / N
                           : kTwo    ? 2
                                     : 1,
                kGroups = kTwo && kVectors > 1 ? 2 : 1, kDigit = sizeof(typename Cpu::Digit);
  const std::int64_t width = digits_width(t.depth) * kDigit, ldx = digits_distance(t.depth);
  Vector<std::int32_t, Cpu::kBytes> acc[kGroups][R][C][D] = {};
  std::int64_t p = begin;
  for (; p + kVectors * N <= end; p += kVectors * N) {
    // The rows behind these, in one stretch: no processor foresees several rows at a time that are near each other.
#pragma GCC unroll 8
    for (int line = 0; line < (Cpu::kFar ? 0 : C * kVectors * N); line += 64) __builtin_prefetch(w + C * (ldw + p) + line);
#pragma GCC unroll 4
    for (int c = 0; c < (Cpu::kAhead > 0 ? C : 0); ++c) __builtin_prefetch(w + c * ldw + p + Cpu::kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      add_products<Cpu, D, R, C>(x + (p + v * N) * kDigit, ldx, width, w + p + v * N, ldw, acc[v % kGroups]);
  }
  if constexpr (kInt8Vector % (kVectors * N) != 0)
    for (; p < end; p += N) add_products<Cpu, D, R, C>(x + p * kDigit, ldx, width, w + p, ldw, acc[0]);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) whole[r][c] += whole_of<Cpu>(acc[g][r][c], t.digits);
}

// R rows of x from `row` on times C rows of w, `out` and those `apart` from it.
template <class Cpu, int D, int R, int C>
ALWAYS_INLINE void tile(const Int8Task& t, std::int64_t row, std::int64_t out, std::int64_t apart) {
  const std::int64_t width = digits_width(t.depth), ldx = digits_distance(t.depth), ldw = apart * int8_distance(t.depth);
  const std::uint8_t* const x = t.x + row * ldx;
  const std::int8_t* const w = t.w + out * int8_distance(t.depth);
  std::int64_t whole[R][C] = {};
  if constexpr (Cpu::kMostColumns == kInt8Columns)
    add_columns<Cpu, D, R, C>(t, x, w, ldw, 0, width, whole);
  else
    for (std::int64_t begin = 0; begin < width; begin += Cpu::kMostColumns)
      add_columns<Cpu, D, R, C>(t, x, w, ldw, begin, std::min(begin + Cpu::kMostColumns, width), whole);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const Int8RowEnd end = int8_row_end(w + c * ldw, t.depth);
      t.sums[(row + r) * t.outs + out + c * apart] =
          int8_value(whole[r][c] - static_cast<std::int64_t>(end.sum) * t.digits.offset, t.scales[row + r], end.scale);
    }
}

// C rows of w stay in the cache for all rows of x.
template <class Cpu, int D, int C>
ALWAYS_INLINE void rows_times(const Int8Task& t, std::int64_t out, std::int64_t apart) {
  constexpr int kRows = D == 1 ? 4 : Cpu::kBytes == 64 && D == 2 ? 3 : 2;  // as many sums as there are registers for
  std::int64_t row = 0;
  for (; row + kRows <= t.rows; row += kRows) tile<Cpu, D, kRows, C>(t, row, out, apart);
  const std::int64_t left = t.rows - row;
  if constexpr (kRows > 3)
    if (left == 3) tile<Cpu, D, 3, C>(t, row, out, apart);
  if constexpr (kRows > 2)
    if (left == 2) tile<Cpu, D, 2, C>(t, row, out, apart);
  if (left == 1) tile<Cpu, D, 1, C>(t, row, out, apart);
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
  constexpr int kFewest = sizeof(typename Cpu::Digit) == 2 ? 1 : 2;
  if (t.digits.count == kFewest)
    task_of<Cpu, kFewest>(t);
  else
    task_of<Cpu, kFewest + 1>(t);
}

#if defined(__aarch64__)
__attribute__((target("arch=armv8.2-a+dotprod"))) void task_dot(const Int8Task& t) { task<Dot>(t); }
bool has_dot() {
  static const bool yes = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return yes;
}
#elif defined(__x86_64__)
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) void task_vnni(const Int8Task& t) { task<Vnni>(t); }
__attribute__((target("avx512f,avx512bw,avx512vl"))) void task_avx512(const Int8Task& t) { task<Halves<64>>(t); }
__attribute__((target("avx2"))) void task_avx2(const Int8Task& t) { task<Halves<32>>(t); }
bool use_vnni(int lanes) {
  static const bool yes = __builtin_cpu_supports("avx512vnni");
  return yes && lanes == 16;
}
#endif

}  // namespace

void quantize_rows(Context& ctx, const Tensor& w, const Tensor& by, const Tensor& out) {
  const std::int64_t n = w.cols();
  dispatch_float(w.dtype, [&]<class T>(T) {
    parallel_for(ctx.threads(), w.rows(), (1 << 16) / (n + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(n)), ones(by ? 0 : static_cast<std::size_t>(n), 1.0f);
      for (std::int64_t i = begin; i < end; ++i) {
        times_factors(w.as<T>() + i * w.ld, by ? by.as<float>() : ones.data(), n, row.data());
        quantize_row(row.data(), n, out.as<std::int8_t>() + i * out.ld);
      }
    });
  });
}

float pack_digits(const float* x, std::int64_t depth, const Digits& digits, std::uint8_t* out) { return pack(x, depth, digits, out); }
float pack_digits(const bf16* x, std::int64_t depth, const Digits& digits, std::uint8_t* out) { return pack(x, depth, digits, out); }

void run(const Int8Task& t, [[maybe_unused]] int lanes) {
#if defined(__aarch64__)
  if (has_dot()) return task_dot(t);
#elif defined(__x86_64__)
  if (t.digits.bytes() == 2) return lanes == 16 ? task_avx512(t) : task_avx2(t);
  if (use_vnni(lanes)) return task_vnni(t);
#endif
  task<Plain>(t);
}

const Digits& int8_digits(DType x, [[maybe_unused]] int lanes) {
#if defined(__aarch64__)
  return x == DType::bf16 && has_dot() ? kSignedBytes : kSevenBits;
#elif defined(__x86_64__)
  if (lanes >= 8 && !use_vnni(lanes)) return x == DType::bf16 ? kWhole : kElevenBits;
  return x == DType::bf16 && use_vnni(lanes) ? kBytes : kSevenBits;
#else
  return kSevenBits;
#endif
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
