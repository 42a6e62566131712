// The parts of the kernels of few_rows.cu: weights on their way through shared memory, and rows of x in it.
#pragma once

#include "core/cuda.cuh"
#include "ops/gemm/bytes.cuh"
#include "ops/norm/norm_row.cuh"

namespace bhyt::cuda::few {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTile = 16;  // rows of w that a block multiplies at a time: 8 lower ones and 8 upper ones
constexpr int kRows = 8;
constexpr int kFew = 2;  // rows that it would rather read again

// What follows from the type of the weights: bf16, or a byte each (ops/gemm/bytes.h).
template <class W>
struct Layout {
  static constexpr bool kBytes = sizeof(W) == 1;
  static constexpr int kLane = 16 / sizeof(W);  // columns of a row of w that a lane reads at a time
  static constexpr int kStep = 4 * kLane;       // … that a warp reads, with 8 lower and 8 upper rows
  static constexpr int kSlice = kStep * kWarps;
  static constexpr int kPad = kBytes ? 8 : 32;  // elements between the rows of x in shared memory: two rows lie in different banks
  static constexpr int kXChunks = kLane / 8;    // of 16 bytes, that a lane's columns of x are
};

// c += 16 rows of w × 16 columns of x: lane l holds rows l/4 and l/4+8, and the columns that its quarter read. Which of the products' 32
// columns are called which does not matter, as long as w and x agree.
__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A step of a lane: its 16 bytes of a lower and of an upper row, and its columns of x. Two sums in turns: a product waits for the one
// before it on the same sum.
template <class W>
__device__ __forceinline__ void multiply_step(float (&c)[2][4], const uint4& low, const uint4& high,
                                              const uint4 (&b)[Layout<W>::kXChunks]) {
  if constexpr (Layout<W>::kBytes) {
    const unsigned lows[4] = {low.x, low.y, low.z, low.w}, highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Four l = widen_four<W>(lows[i]), h = widen_four<W>(highs[i]);
      const uint4& x = b[i / 2];
      multiply(c[i % 2], l.first, h.first, l.second, h.second, i % 2 ? x.z : x.x, i % 2 ? x.w : x.y);
    }
  } else {
    multiply(c[0], low.x, high.x, low.y, high.y, b[0].x, b[0].y);
    multiply(c[1], low.z, high.z, low.w, high.w, b[0].z, b[0].w);
  }
}

// Where the rows of a tile lie in w: `low` + l/4 and `high` + l/4 for lane l. Rows that are needed together (gate and up, the two halves
// of a rotation) come to the same lane.
struct TileRows {
  std::int64_t low, high;
};
// Every `span` rows belong together, the lower half of them and the upper one.
__device__ __forceinline__ TileRows tile_rows(int tile, std::int64_t span) {
  const int of_span = static_cast<int>(span / kTile);
  const std::int64_t low = static_cast<std::int64_t>(tile / of_span) * span + tile % of_span * 8;
  return {low, low + span / 2};
}

// Sixteen bytes to shared memory; what follows up to 256 comes near, for the next steps ask for it.
__device__ __forceinline__ void fetch16_of_256(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ uint4 read16(unsigned at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Left` of this thread's groups are under way.
template <int Left>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// What a warp multiplies, on its way through shared memory: up to kStages steps are under way, each with two rows of weights for a lane.
template <int Stages>
struct Ring {
  static constexpr int kStages = Stages, kStep = 2 * 512, kBytes = kWarps * kStages * kStep;
  unsigned place;  // of this lane, in shared memory

  __device__ __forceinline__ explicit Ring(const void* memory)
      : place(static_cast<unsigned>(__cvta_generic_to_shared(memory)) + threadIdx.x / 32 * (kStages * kStep) + threadIdx.x % 32 * 16) {}
  __device__ __forceinline__ unsigned chunk(int stage, int i) const { return place + stage * kStep + i * 512; }
};

// A site and a call of it as the kernels need them.
struct Site {
  NormParams p;
  Map map;
};

// What a site learns as single numbers, asked for before it is needed.
struct Learned {
  float scale, shift;
  __device__ __forceinline__ explicit Learned(const NormParams& p) : scale(value_or(p.scale, 1.f)), shift(value_or(p.shift, 0.f)) {}
};
__device__ __forceinline__ RowScale row_scale(NormParams p, RowStats s, const Learned& learned) {
  p.scale = nullptr;
  RowScale r = bhyt::row_scale(p, s);
  r.a *= learned.scale;
  return r;
}

__device__ __forceinline__ void rotate(float (&v)[8]) {
  const float first = v[0];
#pragma unroll
  for (int i = 0; i < 7; ++i) v[i] = v[i + 1];
  v[7] = first;
}
__device__ __forceinline__ float mapped(Map map, float u) {
  if (map == Map::tanh) return HardTanhMap::value(u);
  return map == Map::erf ? fast_erf(u) : u;
}
// The sum over the threads of each row; `group` of them to a row, 32 … 256.
__device__ __forceinline__ float row_sum(float v, int group, float* places) {
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) places[threadIdx.x / 32] = v;
  __syncthreads();
  const int warps = group / 32, first = threadIdx.x / 32 & ~(warps - 1);  // a power of two
  v = 0;
#pragma unroll 1
  for (int i = 0; i < warps; ++i) v += places[first + i];
  return v;
}

// What a kernel takes in.
struct In {
  const bf16 *x, *add;
  bf16* sum;
  std::int64_t ld, ld_add, ld_sum;
  int rows, columns;
  Site site;
  bool normed, after;  // after: x is multiplied as it is, and its scale follows the product
};

// Begins to bring what the norm learns of every column into this multiprocessor's cache, 32 bytes at a time: that takes longer than all
// that is done with it. To be called before the row is there.
__device__ __forceinline__ void bring_learned_near(const In& in) {
  const NormParams& p = in.site.p;
  const float* const vectors[] = {p.gamma, p.beta, p.gate, p.direction};
#pragma unroll 1
  for (int c = threadIdx.x * 8; c < in.columns; c += kThreads * 8)
#pragma unroll
    for (const float* const vector : vectors)
      if (vector) asm volatile("prefetch.global.L1 [%0];" ::"l"(vector + c));
}

// z of this thread's pieces of a row in shared memory, in place. The code is short on purpose: a kernel goes through it once, and fetching
// instructions takes longer than doing what they say.
__device__ __forceinline__ void norm_pieces(const In& in, bf16* z, int group, RowScale r, float shift, float seed) {
  const NormParams& p = in.site.p;
#pragma unroll 1
  for (int c = threadIdx.x % group * 8; c < in.columns; c += group * 8) {
    float v[8], gamma[8], more[8];
    Vec<bf16>::load(z + c, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = fmaf(r.a, v[i] - r.mean, shift), gamma[i] = 1;
    if (in.site.map == Map::tanh)
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = HardTanhMap::value(v[i]);
    if (in.site.map == Map::erf)
#pragma unroll 1
      for (int i = 0; i < 8; i += 4) {  // four at a time: one would wait for itself
#pragma unroll
        for (int k = 0; k < 4; ++k) v[k] = fast_erf(v[k]);
#pragma unroll
        for (int k = 0; k < 4; ++k) rotate(v);
      }
    if (p.gamma) load_params<8>(p.gamma, c, gamma);
    if (p.gate) {
      load_params<8>(p.gate, c, more);
#pragma unroll
      for (int i = 0; i < 8; ++i) gamma[i] = fmaf(seed, more[i], gamma[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= gamma[i];
    if (p.beta) {
      load_params<8>(p.beta, c, more);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += more[i];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= p.out_factor;
    Vec<bf16>::store(z + c, v);
  }
}

// The rows of x, or their norm, in shared memory, ld elements apart; rows that are not there stay unwritten and are not read.
// Returns through `scales` what the products' rows are to be multiplied by where the norm is applied after them.
__device__ __forceinline__ void take_rows(const In& in, bf16* shared, int ld, float* scales, float* places) {
  int wide = 1;
  while (wide < in.rows) wide *= 2;
  const int group = kThreads / wide, row = threadIdx.x / group, own = threadIdx.x % group * 8, step = group * 8;
  const bool mine = row < in.rows;
  const int end = mine ? in.columns : 0;
  bf16* const z = shared + row * ld;
  const NormParams& p = in.site.p;
  const Learned learned(p);
  constexpr int kLoads = 8;  // under way at a time
#pragma unroll 1
  for (int begin = own; begin < end; begin += kLoads * step) {
    uint4 raw[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
      if (begin + k * step < end) raw[k] = *reinterpret_cast<const uint4*>(in.x + row * in.ld + begin + k * step);
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
      if (begin + k * step < end) *reinterpret_cast<uint4*>(z + begin + k * step) = raw[k];
  }
  if (!in.normed) {
    __syncthreads();
    return;
  }
  float square = 0, sum = 0, dot = 0;
#pragma unroll 1
  for (int c = own; c < end; c += step) {
    float v[8], other[8];
    Vec<bf16>::load(z + c, v);
    if (in.add) {
      Vec<bf16>::load(in.add + row * in.ld_add + c, other);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += other[i];
      const uint4 both = Vec<bf16>::pack(v);
      Vec<bf16>::unpack(both, v);
      *reinterpret_cast<uint4*>(z + c) = both;
      if (blockIdx.x == 0) *reinterpret_cast<uint4*>(in.sum + row * in.ld_sum + c) = both;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) square = fmaf(v[i], v[i], square), sum += v[i];
    if (p.direction) {
      load_params<8>(p.direction, c, other);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = fmaf(v[i], other[i], dot);
    }
  }
  const float inverse = 1.f / static_cast<float>(in.columns);
  RowStats s;
  s.s0 = row_sum(square, group, places) * inverse;
  if (is_centred(p.stat)) {
    s.s1 = row_sum(sum, group, places) * inverse;
    square = 0;
#pragma unroll 1
    for (int c = own; c < end; c += step) {
      float v[8];
      Vec<bf16>::load(z + c, v);
#pragma unroll
      for (int i = 0; i < 8; ++i) square = fmaf(v[i] - s.s1, v[i] - s.s1, square);
    }
    s.s0 = row_sum(square, group, places) * inverse;
  }
  if (p.direction) s.s1 = row_sum(dot, group, places);
  const bool first = threadIdx.x % group == 0;
  if (mine && first && blockIdx.x == 0) keep_stats(p, row, s, 0.f);
  const RowScale scale = row_scale(p, s, learned);
  if (in.after) {
    if (mine && first) scales[row] = scale.a * p.out_factor;
  } else if (mine) {
    norm_pieces(in, z, group, scale, learned.shift, p.gate ? fast_tanh(s.s1) : 0.f);
  }
  __syncthreads();
}

}  // namespace bhyt::cuda::few
