// The parts of the kernels of few_rows.cu: weights on their way through shared memory, and rows of x in it.
#pragma once

#include "core/cuda.cuh"
#include "ops/gemm/bytes.cuh"
#include "ops/norm/norm_row.cuh"

namespace bhyt::cuda::few {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kTile = 16;  // rows of w that a block multiplies at a time: 8 lower ones and 8 upper ones
constexpr int kRows = 8;

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
  int low, high;
};
// Every `span` rows belong together, the lower half of them and the upper one.
__device__ __forceinline__ TileRows tile_rows(int tile, int span) {
  const int of_span = span / kTile, low = tile / of_span * span + tile % of_span * 8;
  return {low, low + span / 2};
}
// What is made before a kernel waits for the one before it costs nothing; the compiler would make it where it is needed.
template <class T>
__device__ __forceinline__ void made_before(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}
__device__ __forceinline__ void made_before(int& number) { asm volatile("" : "+r"(number)); }
// Where a row begins: 32 bits times 32 is one instruction, 64 times 64 is four.
__device__ __forceinline__ std::int64_t wide_product(int a, int b) { return static_cast<std::int64_t>(a) * b; }

// Sixteen bytes to shared memory; what follows up to 256 comes near, for the next steps ask for it.
__device__ __forceinline__ void fetch16_of_256(unsigned to, const void* from, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
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
// The memory has to begin on a line of 128 bytes: copies across lines take longer (a step of Llama-1B 0.85 ms in place of 0.80).
template <int Stages>
struct Ring {
  static constexpr int kStages = Stages, kStep = 2 * 512, kBytes = kWarps * kStages * kStep;
  unsigned place;  // of this lane, in shared memory

  __device__ __forceinline__ explicit Ring(const void* memory)
      : place(shared_address(memory) + threadIdx.x / 32 * (kStages * kStep) + threadIdx.x % 32 * 16) {}
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

template <int N>
__device__ __forceinline__ void rotate(float (&v)[N]) {
  const float first = v[0];
#pragma unroll
  for (int i = 0; i + 1 < N; ++i) v[i] = v[i + 1];
  v[N - 1] = first;
}
template <class M>
constexpr bool kOneInstruction = std::is_same_v<M, IdMap> || std::is_same_v<M, HardTanhMap>;
// The map of some values, in place: of all at once where it is an instruction, else of half of them at a time, for all would be long code
// and one would wait for itself. One after the other: as two branches of one they would be longer code.
template <int N>
__device__ __forceinline__ void apply_map(Map map, float (&v)[N]) {
  dispatch_map(map, [&v](auto m) {
    using M = Fast<bf16, decltype(m)>;
    if constexpr (kOneInstruction<M>) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = M::value(v[i]);
    }
  });
  dispatch_map(map, [&v](auto m) {
    using M = Fast<bf16, decltype(m)>;
    if constexpr (!kOneInstruction<M>) {
#pragma unroll 1
      for (int i = 0; i < N; i += N / 2) {
#pragma unroll
        for (int k = 0; k < N / 2; ++k) v[k] = M::value(v[k]);
#pragma unroll
        for (int k = 0; k < N / 2; ++k) rotate(v);
      }
    }
  });
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

// How a kernel has the rows that it multiplies.
enum class Rows {
  plain,         // as they come, beside the weights; the scale of an rms norm may follow the product, from squares counted on the way
  counted,       // the same for all norms that may follow
  held,          // in shared memory for many tiles, as they come; a norm may follow that is made of their moments
  held_bounded,  // in shared memory, the tanh of rows scaled by what is made of their moments
  kept           // in shared memory, normed by any norm, or for any that may follow
};
constexpr bool in_shared(Rows how) { return how == Rows::held || how == Rows::held_bounded || how == Rows::kept; }

// What a kernel takes in.
struct In {
  const bf16* x;
  int ld, rows, columns;
  float per_column;  // 1/columns: to divide takes code
  Site site;
  bool normed, after;          // after: x is multiplied as it is, and its scale follows the product
  const float* moments;        // of x, or null
  const float *sums, *biases;  // of w's rows, for a norm behind the product that takes the mean off, and one with a β; or null
};

// Where the moments of a row lie, tile by tile of its columns.
struct Moments {
  const float *squares, *means;
  int tiles;
  __device__ __forceinline__ Moments(const In& in, int row)
      : squares(in.moments + row * (in.columns / kTile)), means(squares + kRows * (in.columns / kTile)), tiles(in.columns / kTile) {}
};

// The sum of value(tile … tile + 3) over the tiles of a row by `Lanes` lanes side by side; the same bits however many they are. Lanes that
// are not live have no row.
template <int Lanes, class F>
__device__ __forceinline__ float sum_of_tiles(int tiles, bool live, F&& value) {
  constexpr int kOwn = 32 / Lanes;
  const int lane = threadIdx.x % Lanes;
  float parts[kOwn] = {};
#pragma unroll 1
  for (int begin = 0; begin < tiles; begin += 128)
#pragma unroll
    for (int j = 0; j < kOwn; ++j)
      if (const int tile = begin + (lane + j * Lanes) * 4; live && tile < tiles) parts[j] += value(tile);
#pragma unroll
  for (int n = kOwn / 2; n > 0; n /= 2)
#pragma unroll
    for (int j = 0; j < n; ++j) parts[j] += parts[j + n];
#pragma unroll
  for (int offset = Lanes / 2; offset > 0; offset /= 2) parts[0] += __shfl_xor_sync(0xffffffffu, parts[0], offset);
  return parts[0];
}

// The statistic of a row from its moments.
template <int Lanes>
__device__ __forceinline__ RowStats stats_of(const In& in, int row, bool live) {
  const Moments m(in, row);
  const auto four = [](const float* at) { return *reinterpret_cast<const float4*>(at); };
  const auto sum = [&](const float* of) {
    return sum_of_tiles<Lanes>(m.tiles, live, [&](int tile) {
      const float4 v = four(of + tile);
      return (v.x + v.y) + (v.z + v.w);
    });
  };
  RowStats s;
  if (!is_centred(in.site.p.stat)) {
    s.s0 = sum(m.squares) * in.per_column;
    return s;
  }
  const float mean = sum(m.means) * (kTile * in.per_column);
  s.s1 = mean;
  s.s0 = sum_of_tiles<Lanes>(m.tiles, live,
                             [&](int tile) {
                               const float4 v = four(m.squares + tile), d = four(m.means + tile);
                               const float a = d.x - mean, b = d.y - mean, e = d.z - mean, f = d.w - mean;
                               return (v.x + v.y) + (v.z + v.w) + kTile * ((a * a + b * b) + (e * e + f * f));
                             }) *
         in.per_column;
  return s;
}

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
// The same for the moments of all rows, once they are there.
__device__ __forceinline__ void bring_moments_near(const In& in) {
  if (!in.moments) return;
  const int of_rows = in.rows * (in.columns / kTile), planes = is_centred(in.site.p.stat) ? 2 : 1;
#pragma unroll 1
  for (int plane = 0; plane < planes; ++plane)
#pragma unroll 1
    for (int i = threadIdx.x * 8; i < of_rows; i += kThreads * 8)
      asm volatile("prefetch.global.L1 [%0];" ::"l"(in.moments + plane * kRows * (in.columns / kTile) + i));
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
    for (int i = 0; i < 8; ++i) {
      v[i] = fmaf(r.a, v[i] - r.mean, shift);
      gamma[i] = 1;
    }
    apply_map(in.site.map, v);
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

// The statistic from the sums of squares and values less a pivot.
__device__ __forceinline__ RowStats about(RowStats sums, float pivot, bool centred, float per_column) {
  const float mean = sums.s1 * per_column;
  if (!centred) return {sums.s0 * per_column, 0};
  const float variance = sums.s0 * per_column - mean * mean;
  return {variance < 0 ? 0.f : variance, pivot + mean};  // NaN stays
}

// The statistic of the rows in shared memory, a row for each group of threads.
__device__ __forceinline__ RowStats count_rows(const In& in, const bf16* z, int group, int end, float pivot, float* places) {
  const NormParams& p = in.site.p;
  const bool centred = is_centred(p.stat);
  float square = 0, sum = 0, dot = 0;
#pragma unroll 1
  for (int c = threadIdx.x % group * 8; c < end; c += group * 8) {
    float v[8];
    Vec<bf16>::load(z + c, v);
    if (p.direction) {
      float other[8];
      load_params<8>(p.direction, c, other);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = fmaf(v[i], other[i], dot);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] -= pivot;
      square = fmaf(v[i], v[i], square);
      sum += v[i];
    }
  }
  RowStats s;
  s.s0 = row_sum(square, group, places);
  if (centred) s.s1 = row_sum(sum, group, places);
  s = about(s, pivot, centred, in.per_column);
  if (p.direction) s.s1 = row_sum(dot, group, places);
  return s;
}

// What the products' rows are multiplied by, and what is taken off them before, where the norm is applied after them.
struct Factors {
  float scale[kRows], mean[kRows];
};

// The norm of the rows of x in shared memory, ld elements apart, or the rows themselves where it follows the product; rows that are not
// there stay unwritten and are not read.
__device__ __forceinline__ void take_rows(const In& in, bf16* shared, int ld, Factors& factors, float* places) {
  int wide = 1;
  while (wide < in.rows) wide *= 2;
  const int group = kThreads / wide, row = threadIdx.x / group, own = threadIdx.x % group * 8, step = group * 8;
  const bool mine = row < in.rows;
  const int end = mine ? in.columns : 0;
  bf16* const z = shared + row * ld;
  const NormParams& p = in.site.p;
  const Learned learned(p);
  bring_moments_near(in);
  // A centred statistic is counted about one of the row's own values, which is at most √columns deviations from their mean: what is taken
  // off the squares then does not swallow them.
  const float pivot = mine && is_centred(p.stat) && !in.moments ? load1(in.x + row * in.ld) : 0.f;
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
  const RowStats s = in.moments ? stats_of<32>(in, row, mine) : count_rows(in, z, group, end, pivot, places);
  const bool first = threadIdx.x % group == 0;
  if (mine && first && blockIdx.x == 0) keep_stats(p, row, s, 0.f);
  const RowScale scale = row_scale(p, s, learned.scale, 0.f);
  if (in.after) {
    if (mine && first) {
      factors.scale[row] = scale.a * p.out_factor;
      factors.mean[row] = scale.mean;
    }
  } else if (mine) {
    norm_pieces(in, z, group, scale, learned.shift, p.gate ? fast_tanh(s.s1) : 0.f);
  }
  __syncthreads();
}

// A row's scale, and what is taken off it, for lane 4·row and the three behind it, from the row's moments.
__device__ __forceinline__ RowScale scale_of_lane(const In& in, const Learned& learned, bool keep) {
  const int row = threadIdx.x % 32 / 4;
  const bool live = row < in.rows;
  const RowStats s = stats_of<4>(in, live ? row : 0, live);
  if (keep && live && threadIdx.x % 4 == 0) keep_stats(in.site.p, row, s, 0.f);
  return row_scale(in.site.p, s, learned.scale, 0.f);
}

// Eight of a row, bounded.
__device__ __forceinline__ uint4 bounded(const uint4& raw, float scale, float shift) {
  float v[8];
  Vec<bf16>::unpack(raw, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = HardTanhMap::value(fmaf(scale, v[i], shift));
  return Vec<bf16>::pack(v);
}

// This warp's columns of the rows in shared memory, ldx elements apart, as they come or bounded; nobody else reads them. Returns the row's
// scale of this lane where there are moments, which come beside the rows.
template <bool Bounded>
__device__ __forceinline__ RowScale take_columns(const In& in, const Learned& learned, bf16* shared, int ldx) {
  const int of_warp = in.columns / kWarps, first = static_cast<int>(threadIdx.x) / 32 * of_warp;
  RowScale of_lane{1, 0, 1};
#pragma unroll 1
  for (int begin = 0; begin < of_warp; begin += 32 * 8) {
    const int c = begin + threadIdx.x % 32 * 8;
    const bool mine = c < of_warp;
    uint4 raw[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      raw[r] = mine && r < in.rows ? __ldcg(reinterpret_cast<const uint4*>(in.x + r * in.ld + first + c)) : make_uint4(0, 0, 0, 0);
    if (begin == 0 && in.moments) of_lane = scale_of_lane(in, learned, blockIdx.x == 0 && threadIdx.x < 32);
    uint4* const own = reinterpret_cast<uint4*>(shared + first + c);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (mine && r < in.rows) own[r * ldx / 8] = raw[r];
    if constexpr (Bounded)
#pragma unroll 1
      for (int r = 0; r < in.rows; r += 2) {  // two at a time: one would wait for itself
        const int other = min(r + 1, in.rows - 1);
        const float scales[2] = {__shfl_sync(0xffffffffu, of_lane.a, 4 * r), __shfl_sync(0xffffffffu, of_lane.a, 4 * other)};
        if (!mine) continue;
        const uint4 z = bounded(own[r * ldx / 8], scales[0], learned.shift), z1 = bounded(own[other * ldx / 8], scales[1], learned.shift);
        own[r * ldx / 8] = z;
        if (r + 1 < in.rows) own[other * ldx / 8] = z1;
      }
  }
  __syncwarp();
  return of_lane;
}

}  // namespace bhyt::cuda::few
