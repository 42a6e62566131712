// The kernels of few_rows.cu.
#pragma once

#include "ops/few_rows/few_rows_outs.cuh"
#include "ops/few_rows/few_rows_sources.cuh"
#include "ops/few_rows/scaled_rows.cuh"

namespace bhyt::cuda::few {

constexpr int kFewSteps = 8, kSteps = 12, kMoreSteps = 16;  // of weights under way

// A lane's columns of a row of x, the last one where it has no other. Those that come are asked for a batch or two before they are needed,
// beside the weights, which take longer; others lie in shared memory.
template <class W, Rows How, int Batch>
struct Columns {
  static constexpr bool Raw = !in_shared(How);
  static constexpr int kChunks = Layout<W>::kXChunks;
  const bf16* own;
  int steps, asked = 0;
  uint4 next[Raw ? 2 : 1][Batch][kChunks];

  __device__ __forceinline__ Columns(const bf16* x, int in_tile) : own(x), steps(in_tile) {}
  __device__ __forceinline__ void begin() {
    if constexpr (Raw) {
      ask(0);
      ask(1);
    }
  }
  __device__ __forceinline__ void ask(int to) {
#pragma unroll
    for (int k = 0; k < Batch; ++k)
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        next[to][k][i] = __ldcg(reinterpret_cast<const uint4*>(own + (asked + k) * Layout<W>::kStep + 8 * i));
    asked = asked + Batch == steps ? 0 : asked + Batch;
  }
  // Those of a batch, from its first step on.
  __device__ __forceinline__ void take(int step, uint4 (&b)[Batch][kChunks]) {
#pragma unroll
    for (int k = 0; k < Batch; ++k)
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if constexpr (Raw) {
          b[k][i] = next[0][k][i];
          next[0][k][i] = next[1][k][i];
        } else {
          b[k][i] = *reinterpret_cast<const uint4*>(own + (step + k) * Layout<W>::kStep + 8 * i);
        }
      }
    if constexpr (Raw) ask(1);
  }
};

// The sums of squares, and of values, of each row in each warp's columns, for a norm that follows the product: of rows that come as they
// are, while the first tile is multiplied.
template <Rows How>
struct Counts {
  static constexpr bool kCounts = How == Rows::plain || How == Rows::counted, kSums = How == Rows::counted;
  alignas(8) float squares[kCounts ? kWarps : 1][kRows];  // read two at a time
  float sums[kSums ? kWarps : 1][kRows];
};

template <Rows How>
struct Counter {
  bool on;
  float pivot = 0;  // one of the row's own values where their mean is to be taken off (count_rows)
  float square = 0, sum = 0;

  __device__ __forceinline__ Counter(const In& in, bool wanted) : on(Counts<How>::kCounts && wanted) {
    if constexpr (Counts<How>::kSums)
      if (on && in.sums) pivot = load1(in.x + min(Lane().row, in.rows - 1) * in.ld);
  }
  template <int Batch, int Chunks>
  __device__ __forceinline__ void add(const uint4 (&b)[Batch][Chunks]) {
    float squares_of[Batch * Chunks] = {}, sums_of[Batch * Chunks] = {};  // side by side: one would wait for itself
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int k = 0; k < Batch * Chunks; ++k) {
        float v[8];
        Vec<bf16>::unpack(b[k / Chunks][k % Chunks], v);
        if constexpr (Counts<How>::kSums) {
          v[i] -= pivot;
          sums_of[k] += v[i];
        }
        squares_of[k] = fmaf(v[i], v[i], squares_of[k]);
      }
#pragma unroll
    for (int k = 0; k < Batch * Chunks; ++k) {
      square += squares_of[k];
      sum += sums_of[k];
    }
  }
  // Behind the first tile, once.
  __device__ __forceinline__ void keep(Counts<How>& counts) {
    if constexpr (!Counts<How>::kCounts) return;
    if (!on) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int offset = 1; offset <= 2; ++offset) {
      square += __shfl_xor_sync(0xffffffffu, square, offset);
      if constexpr (Counts<How>::kSums) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (lane % 4 == 0) {
      counts.squares[warp][lane / 4] = square;
      if constexpr (Counts<How>::kSums) counts.sums[warp][lane / 4] = sum;
    }
    on = false;
  }
};

// A lane's sums of a tile, one behind the other from all warps.
__device__ __forceinline__ void sum_of_warps(const float4* parts, float (&c)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const float4 part = parts[i * 32];
    c[0] += part.x;
    c[1] += part.y;
    c[2] += part.z;
    c[3] += part.w;
  }
}

// What the products of a lane's two rows are multiplied by: the norm's scale, from their squares in all warps' columns. keep: this warp
// keeps the statistic, too.
__device__ __forceinline__ void factors_of(const In& in, const Learned& learned, const float (&squares)[kWarps][kRows], bool keep,
                                           float (&factors)[2]) {
  const NormParams& p = in.site.p;
  const Lane lane;
  float s[2] = {};
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    const float2 both = *reinterpret_cast<const float2*>(&squares[k][lane.at]);
    s[0] += both.x;
    s[1] += both.y;
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    s[e] *= in.per_column;
    // row_scale() of the two statistics that can follow a product as one factor; all of it is ten times the code.
    factors[e] = p.factor * p.out_factor * learned.scale * (p.stat == Stat::rms ? rsqrtf(s[e] + p.eps) : 1.f);
  }
  if (keep && lane.row == 0)
#pragma unroll 1
    for (int e = 0; e < 2 && lane.at + e < in.rows; ++e) keep_stats(p, lane.at + e, {e ? s[1] : s[0], 0}, 0.f);
}

// A row's scale for lane 4·row and the three behind it, from its sums in all warps' columns.
__device__ __forceinline__ RowScale counted_scale(const In& in, const Learned& learned, const Counts<Rows::counted>& counts, float pivot,
                                                  bool keep) {
  const int row = threadIdx.x % 32 / 4;
  RowStats s;
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    s.s0 += counts.squares[k][row];
    s.s1 += counts.sums[k][row];
  }
  s = about(s, pivot, is_centred(in.site.p.stat), in.per_column);
  if (keep && row < in.rows && threadIdx.x % 4 == 0) keep_stats(in.site.p, row, s, 0.f);
  return row_scale(in.site.p, s, learned.scale, 0.f);
}

// What follows the products of a lane's rows of x.
struct Behind {
  float factors[2] = {1, 1}, means[2] = {};

  // From what each lane knows of row lane/4.
  __device__ __forceinline__ void take(const In& in, const RowScale& of_lane) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int from = 4 * (Lane().at + e);
      factors[e] = __shfl_sync(0xffffffffu, of_lane.a, from) * in.site.p.out_factor;
      means[e] = __shfl_sync(0xffffffffu, of_lane.mean, from);
    }
  }
  __device__ __forceinline__ void take(const In& in, const Factors& known) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (const int i = Lane().at + e; i < in.rows) {
        factors[e] = known.scale[i];
        means[e] = known.mean[i];
      }
  }
};

// What the sums of a tile meet, asked for long before: the scales of a lane's two rows of w, where it has any, what follows them of a norm
// (Follows: there may be something), and what Out needs.
template <class W, bool Follows, class Out>
struct Asked {
  float scales[2] = {1, 1}, sums[2] = {}, biases[2] = {};
  typename Out::Asked more = {};

  __device__ __forceinline__ Asked() = default;
  __device__ __forceinline__ Asked(const In& in, const float* of_weights, const Out& out, const typename Out::OfRows& of_rows, int tile,
                                   const typename Out::OfTile& of_tile)
      : more(out.ask(of_tile, in.rows, of_rows)) {
    if constexpr (!Layout<W>::kBytes && !Follows) return;
    const TileRows rows = out.rows(tile);
    const int at[2] = {rows.low + Lane().row, rows.high + Lane().row};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Layout<W>::kBytes) scales[half] = of_weights[at[half]];
      if constexpr (Follows) {
        if (in.sums) sums[half] = in.sums[at[half]];
        if (in.biases) biases[half] = in.biases[at[half]];
      }
    }
  }
  // The sums with the norm of their rows of x behind them.
  __device__ __forceinline__ void finish(float (&c)[4], const Behind& behind) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Layout<W>::kBytes) c[i] *= scales[i / 2];
      if constexpr (Follows)
        c[i] = fmaf(behind.factors[i % 2], fmaf(-behind.means[i % 2], sums[i / 2], c[i]), biases[i / 2]);
      else
        c[i] *= behind.factors[i % 2];
    }
  }
};

// Lets the next kernel come and asks for the first weights, and for what a norm has learned where the rows get theirs here.
template <int Batch, bool Norms, class Source>
__device__ __forceinline__ void begin(const In& in, Source& source) {
  let_next_begin();
#pragma unroll 1
  for (int i = 0; i < source.ring.kStages; i += Batch) source.fetch(i);
  if constexpr (Norms) bring_learned_near(in);
}

// A warp's sums of a tile of w over its eighth of the columns.
template <class W, Rows How, int Batch, class Source>
__device__ __forceinline__ float4 multiply_tile(Source& source, Columns<W, How, Batch>& columns, Counter<How>& counter, int steps,
                                                int& stage) {
  float c[2][4] = {};
#pragma unroll 1
  for (int s = 0; s < steps; s += Batch, stage = stage + Batch == source.ring.kStages ? 0 : stage + Batch) {
    uint4 b[Batch][Layout<W>::kXChunks];
    columns.take(s, b);
    if constexpr (Counts<How>::kCounts)
      if (counter.on) counter.add(b);
    source.wait(stage);
#pragma unroll
    for (int i = 0; i < Batch; ++i) {
      const uint4 low = read16(source.ring.chunk(stage + i, 0)), high = read16(source.ring.chunk(stage + i, 1));
      multiply_step<W>(c, low, high, b[i]);
    }
    source.fetch(stage);
  }
  return make_float4(c[0][0] + c[1][0], c[0][1] + c[1][1], c[0][2] + c[1][2], c[0][3] + c[1][3]);
}

// Tiles of w belong to blocks in turns, `round` of them before their sums over the warps are made; a warp multiplies its eighth of the
// columns. Steps are asked for in batches, so that memory gives long pieces of few rows at a time.
// In bf16 registers leave room for two blocks of a multiprocessor: its shared memory decides (few_rows.cu).
template <class R, class W, Rows How, int Batch, class Out>
__global__ void __launch_bounds__(kThreads, Layout<W>::kBytes ? 1 : 2) product_kernel(const In in, const WeightMatrix<W> w, const Out out) {
  constexpr bool Raw = !in_shared(How), Follows = How == Rows::counted || How == Rows::held || How == Rows::kept;
  extern __shared__ __align__(128) char memory[];
  __shared__ float places[kWarps];
  __shared__ Counts<How> counts;
  __shared__ Factors known;
  bf16* const x = reinterpret_cast<bf16*>(memory + R::kBytes);
  const int ldx = in.columns + Layout<W>::kPad, lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = gridDim.x,
            steps = in.columns / Layout<W>::kSlice;
  auto* const partial = reinterpret_cast<float4*>(x + (Raw ? 0 : static_cast<std::size_t>(in.rows) * ldx));
  const Learned learned(in.site.p);  // before the weights: it would wait behind them
  typename Out::OfRows of_rows(out);
  Source<R, W, Batch, Out> source(w, out, memory, steps);
  begin<Batch, How == Rows::kept>(in, source);
  // The warps below `round` make the sums of one tile each.
  int own = static_cast<int>(blockIdx.x) + warp * stride;
  typename Out::OfTile of_tile = out.of_tile(own);
  const int row = min(lane / 4, in.rows - 1), at = warp * steps * Layout<W>::kStep + lane % 4 * Layout<W>::kLane;
  Columns<W, How, Batch> columns((Raw ? in.x + row * in.ld : x + row * ldx) + at, steps);
  if constexpr (Raw) made_before(columns.own);
  wait_for_previous();
  if constexpr (!Raw) of_rows.ask(out, in.rows);
  RowScale of_lane{};
  if constexpr (How == Rows::kept) take_rows(in, x, ldx, known, places);
  if constexpr (How == Rows::held || How == Rows::held_bounded) of_lane = take_columns<How == Rows::held_bounded>(in, learned, x, ldx);
  columns.begin();
  const bool follows = Out::kAfterNorms && in.after;
  Counter<How> counter(in, follows);
  Behind behind;
  if constexpr (How == Rows::held_bounded) behind.factors[0] = behind.factors[1] = in.site.p.out_factor;
  int stage = 0;
  for (int first = blockIdx.x; first < w.tiles; first += w.round * stride) {
    const bool finishes = warp < w.round && own < w.tiles;
    Asked<W, Follows, Out> asked;
    if (Raw && finishes) of_rows.ask(out, in.rows);
    if (finishes) asked = {in, w.scales, out, of_rows, own, of_tile};
    for (int r = 0; r < w.round && first + r * stride < w.tiles; ++r) {
      partial[(r * kWarps + warp) * 32 + lane] = multiply_tile(source, columns, counter, steps, stage);
      counter.keep(counts);
    }
    if (finishes) of_rows.settle();
    __syncthreads();
    if (finishes) {
      float c[4];
      sum_of_warps(partial + warp * kWarps * 32 + lane, c);
      if (follows && first == blockIdx.x) {
        if constexpr (How == Rows::plain) factors_of(in, learned, counts.squares, own == 0, behind.factors);
        if constexpr (How == Rows::counted) behind.take(in, counted_scale(in, learned, counts, counter.pivot, own == 0));
        if constexpr (How == Rows::held) behind.take(in, of_lane);
        if constexpr (How == Rows::kept) behind.take(in, known);
      }
      asked.finish(c, behind);
      out.store(of_tile, c, in.rows, of_rows, asked.more);
    }
    own += w.round * stride;
    if (own < w.tiles) of_tile = out.of_tile(own);
    __syncthreads();
  }
}

// The same for one or two rows and weights of one byte; own_x: where this lane's columns lie, back: what their integers stand for.
template <class S, class Source>
__device__ __forceinline__ float4 multiply_scaled_tile(Source& source, const char* own_x, const float (&back)[kScaledRows], int steps,
                                                       int& stage) {
  constexpr int kBatch = kScaledBatch;
  typename S::Sum c[2][4] = {};
#pragma unroll 1
  for (int s = 0; s < steps; s += kBatch, stage = stage + kBatch == source.ring.kStages ? 0 : stage + kBatch) {
    uint4 b[kBatch][S::kXChunks];
#pragma unroll
    for (int k = 0; k < kBatch; ++k)
#pragma unroll
      for (int i = 0; i < S::kXChunks; ++i) b[k][i] = *reinterpret_cast<const uint4*>(own_x + ((s + k) * 4 * S::kXChunks + i) * 16);
    source.wait(stage);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint4 low = read16(source.ring.chunk(stage + i, 0)), high = read16(source.ring.chunk(stage + i, 1));
      S::multiply_step(c, low, high, b[i]);
    }
    source.fetch(stage);
  }
  return make_float4(static_cast<float>(c[0][0] + c[1][0]) * back[0], static_cast<float>(c[0][1] + c[1][1]) * back[1],
                     static_cast<float>(c[0][2] + c[1][2]) * back[0], static_cast<float>(c[0][3] + c[1][3]) * back[1]);
}

// Whole: the norm is applied to the rows before, not to their products.
template <class R, class W, bool Whole, class Out>
__global__ void __launch_bounds__(kThreads, 1) scaled_kernel(const In in, const WeightMatrix<W> w, const Out out) {
  using S = Scaled<W>;
  constexpr int kStep = Layout<W>::kStep, kBatch = kScaledBatch;
  extern __shared__ __align__(128) char memory[];
  __shared__ float places[kWarps];
  __shared__ alignas(8) float squares[kWarps][kRows];
  __shared__ Factors known;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = gridDim.x, columns = in.columns / kWarps, steps = columns / kStep;
  const int ldx = in.columns + Layout<W>::kPad, of_warp = in.rows * S::kLines * S::line(columns);
  char* const lines = memory + R::kBytes + warp * of_warp;
  auto* const partial = reinterpret_cast<float4*>(memory + R::kBytes + kWarps * of_warp);
  auto* const x = reinterpret_cast<bf16*>(partial + w.round * kWarps * 32);
  const Learned learned(in.site.p);
  typename Out::OfRows of_rows(out);
  Source<R, W, kBatch, Out> source(w, out, memory, steps);
  begin<kBatch, Whole>(in, source);
  int own = static_cast<int>(blockIdx.x) + warp * stride;
  typename Out::OfTile of_tile = out.of_tile(own);
  wait_for_previous();
  of_rows.ask(out, in.rows);
  if constexpr (Whole) take_rows(in, x, ldx, known, places);
  float back[kScaledRows] = {};
  scale_rows<W, Whole>(in, x, ldx, lines, back, squares);
  const char* const own_x = lines + S::place(lane, in.rows, columns);

  Behind behind;
  int stage = 0;
  for (int first = blockIdx.x; first < w.tiles; first += w.round * stride) {
    const bool finishes = warp < w.round && own < w.tiles;
    Asked<W, Whole, Out> asked;
    if (finishes) asked = {in, w.scales, out, of_rows, own, of_tile};
    for (int r = 0; r < w.round && first + r * stride < w.tiles; ++r) {
      partial[(r * kWarps + warp) * 32 + lane] = multiply_scaled_tile<S>(source, own_x, back, steps, stage);
    }
    if (finishes) of_rows.settle();
    __syncthreads();
    if (finishes) {
      float c[4];
      sum_of_warps(partial + warp * kWarps * 32 + lane, c);
      S::join(c);
      if (Out::kAfterNorms && in.after && first == blockIdx.x) {
        if constexpr (Whole)
          behind.take(in, known);
        else
          factors_of(in, learned, squares, own == 0, behind.factors);
      }
      asked.finish(c, behind);
      out.store(of_tile, c, in.rows, of_rows, asked.more);
    }
    own += w.round * stride;
    if (own < w.tiles) of_tile = out.of_tile(own);
    __syncthreads();
  }
}

// A block has a row.
__global__ void __launch_bounds__(kThreads) norm_kernel(In in, const LinearOut<false> out) {
  extern __shared__ __align__(128) char memory[];
  __shared__ float places[kWarps];
  __shared__ Factors unused;
  bf16* const row = reinterpret_cast<bf16*>(memory);
  const int i = static_cast<int>(blockIdx.x);
  let_next_begin();
  bring_learned_near(in);
  wait_for_previous();
  in.x += i * in.ld;
  in.rows = 1;
  take_rows(in, row, 0, unused, places);
  for (int c = threadIdx.x * 8; c < in.columns; c += kThreads * 8) {
    float v[8], other[8];
    Vec<bf16>::load(row + c, v);
    if (out.residual) {
      Vec<bf16>::load(out.residual + i * out.ld_residual + c, other);
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] += other[k];
    }
    const uint4 packed = Vec<bf16>::pack(v);
    *reinterpret_cast<uint4*>(out.y + i * out.ldy + c) = packed;
    if (out.moments) {
      Vec<bf16>::unpack(packed, v);
      out.keep_moments_of_eight(i, c / kTile, v);
    }
  }
}

}  // namespace bhyt::cuda::few
