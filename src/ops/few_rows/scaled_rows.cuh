// One or two rows of x for weights of one byte, which are not widened to bf16 then: that takes longer than reading them. Every warp brings
// its eighth of the columns to a scale of its own, a power of two from their largest magnitude, in shared memory.
#pragma once

#include "ops/few_rows/few_rows.cuh"

namespace bhyt::cuda::few {

constexpr int kScaledRows = 2;
constexpr int kPieceColumns = 256;  // eight for each lane
constexpr int kMostPieces = 4;      // that a warp has of a row
constexpr int kScaledBatch = 4;     // steps, which are a piece

// A lane's columns of its warp's pieces of a row.
struct Pieces {
  uint4 raw[kMostPieces];
  int n;

  // From shared memory, or from what another kernel wrote to global memory.
  template <bool Shared>
  __device__ __forceinline__ void read(const bf16* row) {
#pragma unroll
    for (int k = 0; k < kMostPieces; ++k)
      if (k < n) {
        const auto* const from = reinterpret_cast<const uint4*>(row + k * kPieceColumns);
        if constexpr (Shared)
          raw[k] = *from;
        else
          raw[k] = __ldcg(from);
      }
  }
  // The exponent of the warp's largest magnitude, as bf16 has it; 255 where one of them is not finite.
  __device__ __forceinline__ unsigned exponent() const {
    unsigned top = 0;
#pragma unroll
    for (int k = 0; k < kMostPieces; ++k)
      if (k < n) {
        constexpr unsigned kMagnitude = 0x7FFF7FFFu;
        top = __vmaxu2(
            top, __vmaxu2(__vmaxu2(raw[k].x & kMagnitude, raw[k].y & kMagnitude), __vmaxu2(raw[k].z & kMagnitude, raw[k].w & kMagnitude)));
      }
    return __reduce_max_sync(0xffffffffu, max(top & 0xFFFFu, top >> 16)) >> 7;
  }
  // Takes the first piece away. This keeps the code that goes through them short.
  __device__ __forceinline__ void next() {
#pragma unroll
    for (int k = 0; k + 1 < kMostPieces; ++k) raw[k] = raw[k + 1];
  }
};

// `to` scales a row so that its largest magnitude lies in [2^(Places-1), 2^Places); `back` undoes it. `back` is NaN where the row has
// something that is not finite.
template <int Places>
struct Power {
  float to, back;
  __device__ __forceinline__ explicit Power(unsigned exponent) {
    const unsigned e = max(exponent, static_cast<unsigned>(Places) + 1u);  // `to` and `back` stay normal numbers
    to = __uint_as_float((253u + Places - e) << 23);
    back = exponent == 255u ? __uint_as_float(0x7FC00000u) : __uint_as_float((e - (Places - 1)) << 23);
  }
};

// How rows lie in shared memory, and how they are multiplied.
template <class W>
struct Scaled;

// int8: x as integers of 21 bits in three digits of seven, each a column of the product: column 2·digit + row. The lower two digits are
// -64 … 63, the upper one -64 … 64. All sums are exact.
template <>
struct Scaled<std::int8_t> {
  using Sum = int;
  static constexpr int kDigits = 3, kLines = kDigits;  // lines of shared memory for a row
  static constexpr int kEight = 8;                     // bytes of eight columns in a line
  static constexpr int kXChunks = 1;                   // of 16 bytes, for a step of a lane

  static __host__ __device__ constexpr int line(int columns) { return columns + 64; }  // the same digit of two rows lies in different banks
  // Where a lane's columns lie behind its warp's lines. Columns of the product that there is no use for repeat others.
  static __device__ __forceinline__ int place(int lane, int rows, int columns) {
    return (min(lane / 4 % 2, rows - 1) * kLines + min(lane / 8, kDigits - 1)) * line(columns) + lane % 4 * 16;
  }
  using Power = few::Power<20>;
  // A lane's eight columns of a piece.
  static __device__ __forceinline__ void write(const float (&v)[8], float to, char* lines, int columns) {
    // The integer, with 64 added to every digit so that none is negative, is in the lower bits of the sum.
    constexpr float kLowBits = 12582912.f + 64.f * (1 + 128 + 128 * 128);
    unsigned bits[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) bits[i] = __float_as_uint(fmaf(v[i], to, kLowBits));
#pragma unroll
    for (int digit = 0; digit < kDigits; ++digit) {
      unsigned words[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned* const four = bits + 4 * half;
        const unsigned first = __byte_perm(four[2] >> 7 * digit, four[0] >> 7 * digit, 0x0040),
                       second = __byte_perm(four[3] >> 7 * digit, four[1] >> 7 * digit, 0x0040);
        unsigned word = __byte_perm(first, second, 0x5410);
        if (digit + 1 < kDigits) word &= 0x7F7F7F7Fu;
        words[half] = (word + 0x40404040u) ^ 0x80808080u;  // less 64 each
      }
      *reinterpret_cast<uint2*>(lines + digit * line(columns)) = make_uint2(words[0], words[1]);
    }
  }
  static __device__ __forceinline__ void multiply_step(int (&c)[2][4], const uint4& low, const uint4& high, const uint4 (&b)[kXChunks]) {
    product(c[0], low.x, high.x, low.y, high.y, b[0].x, b[0].y);
    product(c[1], low.z, high.z, low.w, high.w, b[0].z, b[0].w);
  }
  // What a lane's sums are multiplied by: its digit's place.
  static __device__ __forceinline__ float weight(int lane) {
    return lane % 4 == 0 ? 1.f : lane % 4 == 1 ? 128.f : lane % 4 == 2 ? 128.f * 128.f : 0.f;
  }
  // The digits of a row together; every lane has them then.
  static __device__ __forceinline__ void join(float (&c)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      c[i] += __shfl_xor_sync(0xffffffffu, c[i], 1);
      c[i] += __shfl_xor_sync(0xffffffffu, c[i], 2);
    }
  }

 private:
  static __device__ __forceinline__ void product(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                                 unsigned b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

// fp8: weights and x as fp16, which the GPU turns e4m3 into by itself. x loses nothing but what is below 2^-39 of its largest magnitude.
template <>
struct Scaled<Fp8> {
  using Sum = float;
  static constexpr int kLines = 1, kEight = 16, kXChunks = 2;

  static __host__ __device__ constexpr int line(int columns) { return 2 * columns + 16; }
  static __device__ __forceinline__ int place(int lane, int rows, int columns) {
    return min(lane / 4, rows - 1) * line(columns) + lane % 4 * 32;
  }
  using Power = few::Power<15>;
  static __device__ __forceinline__ void write(const float (&v)[8], float to, char* lines, int) {
    *reinterpret_cast<uint4*>(lines) =
        make_uint4(pair(v[2] * to, v[0] * to), pair(v[3] * to, v[1] * to), pair(v[6] * to, v[4] * to), pair(v[7] * to, v[5] * to));
  }
  static __device__ __forceinline__ void multiply_step(float (&c)[2][4], const uint4& low, const uint4& high, const uint4 (&b)[kXChunks]) {
    const unsigned lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4& x = b[i / 2];
      product(c[i % 2], wide<0>(lows[i]), wide<0>(highs[i]), wide<1>(lows[i]), wide<1>(highs[i]), i % 2 ? x.z : x.x, i % 2 ? x.w : x.y);
    }
  }
  static __device__ __forceinline__ float weight(int) { return 1.f; }
  static __device__ __forceinline__ void join(float (&)[4]) {}

 private:
  static __device__ __forceinline__ unsigned pair(float low, float high) {
    unsigned d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
  }
  // The two of the lower half of a word, or of the upper one.
  template <int Half>
  static __device__ __forceinline__ unsigned wide(unsigned word) {
    unsigned d;
#if __CUDA_ARCH__ >= 890
    if constexpr (Half == 0)
      asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}" : "=r"(d) : "r"(word));
    else
      asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}" : "=r"(d) : "r"(word));
#else
    // With their bits where fp16 has them they are 2^-8 of what they should be.
    const unsigned spread = __byte_perm(word, 0, Half == 0 ? 0x1404 : 0x3424);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"((spread & 0x80008000u) | (spread >> 1 & 0x3F803F80u)), "r"(0x5C005C00u));
#endif
    return d;
  }
  static __device__ __forceinline__ void product(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                                                 unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

// The rows of this warp's columns, scaled, behind `lines`; Whole: they lie in shared memory, ldx apart. Then `back` is what a lane's sums
// of each row are multiplied by, and `squares` has the sum of squares of each.
template <class W, bool Whole>
__device__ __forceinline__ void scale_rows(const In& in, const bf16* whole, int ldx, char* lines, float (&back)[kScaledRows],
                                           float (&squares)[kWarps][kRows]) {
  using S = Scaled<W>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = in.columns / kWarps, own = warp * columns + lane * 8;
#pragma unroll 1
  for (int row = 0; row < in.rows; ++row) {
    Pieces pieces{.n = columns / kPieceColumns};
    if constexpr (Whole)
      pieces.read<true>(whole + row * ldx + own);
    else
      pieces.read<false>(in.x + row * in.ld + own);
    const typename S::Power power(pieces.exponent());
    char* to = lines + row * S::kLines * S::line(columns) + lane * S::kEight;
    float square = 0;
#pragma unroll 1
    for (int k = 0; k < pieces.n; ++k, to += 32 * S::kEight, pieces.next()) {
      float v[8];
      Vec<bf16>::unpack(pieces.raw[0], v);
      S::write(v, power.to, to, columns);
#pragma unroll
      for (int i = 0; i < 8; ++i) square = fmaf(v[i], v[i], square);
    }
    const float factor = S::weight(lane) * power.back;
    if (row == 0)
      back[0] = factor;
    else
      back[1] = factor;
    if (Whole || !in.after) continue;
    square = warp_sum(square);
    if (lane == 0) squares[warp][row] = square;
  }
  __syncwarp();
}

}  // namespace bhyt::cuda::few
