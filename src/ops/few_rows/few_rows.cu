#include "ops/few_rows/few_rows.h"

#include <algorithm>

#include "ops/few_rows/few_rows_outs.cuh"
#include "ops/few_rows/few_rows_sources.cuh"
#include "ops/few_rows/scaled_rows.cuh"
#include "ops/gemm/bytes.h"

namespace bhyt::cuda {

namespace few {
namespace {

constexpr int kSteps = 12, kMoreSteps = 16;  // of weights under way

// A lane's columns of x. Those that come as they are (Raw) are asked for a batch or two before they are needed, beside the weights, which
// take longer; others lie in shared memory.
template <class W, bool Raw, int Batch>
struct Columns {
  static constexpr int kChunks = Layout<W>::kXChunks;
  const bf16* own;
  bool live;
  int steps, asked = 0;
  uint4 next[Raw ? 2 : 1][Batch][kChunks];

  __device__ __forceinline__ Columns(const bf16* x, bool there, int in_tile) : own(x), live(there), steps(in_tile) {
    if constexpr (Raw) ask(0), ask(1);
  }
  __device__ __forceinline__ void ask(int to) {
#pragma unroll
    for (int k = 0; k < Batch; ++k)
#pragma unroll
      for (int i = 0; i < kChunks; ++i)
        next[to][k][i] =
            live ? __ldcg(reinterpret_cast<const uint4*>(own + (asked + k) * Layout<W>::kStep + 8 * i)) : make_uint4(0, 0, 0, 0);
    asked = asked + Batch == steps ? 0 : asked + Batch;
  }
  // Those of a batch, from its first step on.
  __device__ __forceinline__ void take(int step, uint4 (&b)[Batch][kChunks]) {
#pragma unroll
    for (int k = 0; k < Batch; ++k)
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if constexpr (Raw)
          b[k][i] = next[0][k][i], next[0][k][i] = next[1][k][i];
        else
          b[k][i] = live ? *reinterpret_cast<const uint4*>(own + (step + k) * Layout<W>::kStep + 8 * i) : make_uint4(0, 0, 0, 0);
      }
    if constexpr (Raw) ask(1);
  }
};

// The sum of squares of eight.
__device__ __forceinline__ float squares_of(const uint4& raw) {
  float v[8], sum = 0;
  Vec<bf16>::unpack(raw, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
  return sum;
}

// What the sums of a tile meet, asked for long before: the scales of a lane's two rows of w, where it has any, and what Out needs.
template <class W, class Out>
struct Asked {
  float low = 1, high = 1;
  typename Out::Asked more = {};

  __device__ __forceinline__ Asked() = default;
  __device__ __forceinline__ Asked(const float* scales, const Out& out, int tile, int n) : more(out.ask(tile, n)) {
    if constexpr (Layout<W>::kBytes) {
      const TileRows rows = out.rows(tile);
      low = scales[rows.low + Lane().row];
      high = scales[rows.high + Lane().row];
    }
  }
  __device__ __forceinline__ void scale(float (&c)[4]) const {
    if constexpr (Layout<W>::kBytes) c[0] *= low, c[1] *= low, c[2] *= high, c[3] *= high;
  }
};

// A lane's sums of a tile, one behind the other from all warps.
__device__ __forceinline__ void sum_of_warps(const float4* parts, float (&c)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const float4 part = parts[i * 32];
    c[0] += part.x, c[1] += part.y, c[2] += part.z, c[3] += part.w;
  }
}

// What the products of row i are multiplied by: the norm's scale, from its squares in all warps' columns. keep: this warp keeps the
// statistic, too.
__device__ __forceinline__ float factor_of(const In& in, const float (&squares)[kWarps][kRows], int i, bool keep) {
  if (i >= in.rows) return 0;
  RowStats s;
#pragma unroll
  for (int k = 0; k < kWarps; ++k) s.s0 += squares[k][i];
  s.s0 /= static_cast<float>(in.columns);
  if (keep && Lane().row == 0) keep_stats(in.site.p, i, s, 0.f);
  const NormParams& p = in.site.p;
  // row_scale() of the two statistics that can follow a product; all of it is ten times the code.
  return p.factor * p.out_factor * value_or(p.scale, 1.f) * (p.stat == Stat::rms ? rsqrtf(s.s0 + p.eps) : 1.f);
}

// Tiles of w belong to blocks in turns, `round` of them before their sums over the warps are made; a warp multiplies its eighth of the
// columns. Steps are asked for in batches, so that memory gives long pieces of few rows at a time.
template <class W, bool Raw, int Batch, class Out>
__global__ void __launch_bounds__(kThreads, 1) product_kernel(const In in, const WeightMatrix<W> w, const Out out) {
  using R = Ring<kSteps>;
  constexpr int kStep = Layout<W>::kStep, kStages = R::kStages;
  extern __shared__ __align__(16) char memory[];
  __shared__ float places[kWarps], scales[kRows], squares[kWarps][kRows];
  bf16* const x = reinterpret_cast<bf16*>(memory + R::kBytes);
  const int ldx = in.columns + Layout<W>::kPad, lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = gridDim.x,
            steps = in.columns / Layout<W>::kSlice;
  auto* const partial = reinterpret_cast<float4*>(x + (Raw ? 0 : static_cast<std::size_t>(in.rows) * ldx));
  Source<R, W, Batch, Out> source(w, out, memory, steps);
  let_next_begin();
#pragma unroll 1
  for (int i = 0; i < kStages; i += Batch) source.fetch(i);
  if constexpr (!Raw) bring_learned_near(in);
  wait_for_previous();
  if constexpr (!Raw) take_rows(in, x, ldx, scales, places);
  const std::int64_t at = static_cast<std::int64_t>(warp) * steps * kStep + lane % 4 * Layout<W>::kLane;
  Columns<W, Raw, Batch> columns((Raw ? in.x + lane / 4 * in.ld : x + lane / 4 * ldx) + at, lane / 4 < in.rows, steps);

  // Of rows that come as they are, but have a scale behind the product, the first tile counts the squares.
  bool counting = Raw && in.after;
  float factors[2] = {1, 1};
  int stage = 0;
  for (int first = blockIdx.x; first < w.tiles; first += w.round * stride) {
    // The warps below `round` make the sums of one tile each.
    const int own = first + warp * stride;
    const bool finishes = warp < w.round && own < w.tiles;
    Asked<W, Out> asked;
    if (finishes) asked = Asked<W, Out>(w.scales, out, own, in.rows);
    for (int r = 0; r < w.round && first + r * stride < w.tiles; ++r) {
      float c[2][4] = {}, square = 0;
#pragma unroll 1
      for (int s = 0; s < steps; s += Batch, stage = stage + Batch == kStages ? 0 : stage + Batch) {
        uint4 b[Batch][Layout<W>::kXChunks];
        columns.take(s, b);
        if (counting)
#pragma unroll
          for (int k = 0; k < Batch * Layout<W>::kXChunks; ++k) square += squares_of(b[k / Layout<W>::kXChunks][k % Layout<W>::kXChunks]);
        source.wait(stage);
#pragma unroll
        for (int i = 0; i < Batch; ++i) {
          const uint4 low = read16(source.ring.chunk(stage + i, 0)), high = read16(source.ring.chunk(stage + i, 1));
          multiply_step<W>(c, low, high, b[i]);
        }
        source.fetch(stage);
      }
      partial[(r * kWarps + warp) * 32 + lane] = make_float4(c[0][0] + c[1][0], c[0][1] + c[1][1], c[0][2] + c[1][2], c[0][3] + c[1][3]);
      if (counting) {
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        square += __shfl_xor_sync(0xffffffffu, square, 2);
        if (lane % 4 == 0) squares[warp][lane / 4] = square;
      }
      counting = false;
    }
    __syncthreads();
    if (finishes) {
      float c[4];
      sum_of_warps(partial + warp * kWarps * 32 + lane, c);
      asked.scale(c);
      if (in.after && first == blockIdx.x) {
        const Lane place;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = place.at + e;
          if constexpr (Raw)
            factors[e] = factor_of(in, squares, i, own == 0);
          else
            factors[e] = i < in.rows ? scales[i] : 0.f;
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) c[e] *= factors[e % 2];
      out.store(own, c, in.rows, asked.more);
    }
    __syncthreads();
  }
}

// The same for one or two rows and weights of one byte.
template <class R, class W, bool Whole, class Out>
__global__ void __launch_bounds__(kThreads, 1) scaled_kernel(const In in, const WeightMatrix<W> w, const Out out) {
  using S = Scaled<W>;
  constexpr int kStep = Layout<W>::kStep, kStages = R::kStages, kBatch = kScaledBatch;
  extern __shared__ __align__(16) char memory[];
  __shared__ float places[kWarps], scales[kRows], squares[kWarps][kRows];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, stride = gridDim.x, columns = in.columns / kWarps, steps = columns / kStep;
  const int ldx = in.columns + Layout<W>::kPad, of_warp = in.rows * S::kLines * S::line(columns);
  char* const lines = memory + R::kBytes + warp * of_warp;
  auto* const partial = reinterpret_cast<float4*>(memory + R::kBytes + kWarps * of_warp);
  auto* const x = reinterpret_cast<bf16*>(partial + w.round * kWarps * 32);
  Source<R, W, kBatch, Out> source(w, out, memory, steps);
  let_next_begin();
#pragma unroll 1
  for (int i = 0; i < kStages; i += kBatch) source.fetch(i);
  if constexpr (Whole) bring_learned_near(in);
  wait_for_previous();
  if constexpr (Whole) take_rows(in, x, ldx, scales, places);
  float back[kScaledRows] = {};
  scale_rows<W, Whole>(in, x, ldx, lines, back, squares);
  const char* const own_x = lines + S::place(lane, in.rows, columns);

  float factors[2] = {1, 1};
  int stage = 0;
  for (int first = blockIdx.x; first < w.tiles; first += w.round * stride) {
    const int own = first + warp * stride;
    const bool finishes = warp < w.round && own < w.tiles;
    Asked<W, Out> asked;
    if (finishes) asked = Asked<W, Out>(w.scales, out, own, in.rows);
    for (int r = 0; r < w.round && first + r * stride < w.tiles; ++r) {
      typename S::Sum c[2][4] = {};
#pragma unroll 1
      for (int s = 0; s < steps; s += kBatch, stage = stage + kBatch == kStages ? 0 : stage + kBatch) {
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
      partial[(r * kWarps + warp) * 32 + lane] =
          make_float4(static_cast<float>(c[0][0] + c[1][0]) * back[0], static_cast<float>(c[0][1] + c[1][1]) * back[1],
                      static_cast<float>(c[0][2] + c[1][2]) * back[0], static_cast<float>(c[0][3] + c[1][3]) * back[1]);
    }
    __syncthreads();
    if (finishes) {
      float c[4];
      sum_of_warps(partial + warp * kWarps * 32 + lane, c);
      S::join(c);
      asked.scale(c);
      if (in.after && first == blockIdx.x) {
        const Lane place;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = place.at + e;
          factors[e] = Whole ? (i < in.rows ? scales[i] : 0.f) : factor_of(in, squares, i, own == 0);
        }
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) c[e] *= factors[e % 2];
      out.store(own, c, in.rows, asked.more);
    }
    __syncthreads();
  }
}

// A product's scale may follow it where the norm is nothing but a scale of the row.
bool only_scales(const NormSite& s) {
  return s.map == Map::id && (s.stat == Stat::rms || s.stat == Stat::none) && !s.gamma && !s.beta && !s.shift && !s.gate;
}

In in_of(const FewRows& r) {
  In in{};
  in.x = r.x.as<bf16>();
  in.ld = r.x.ld;
  in.rows = static_cast<int>(r.x.rows());
  in.columns = static_cast<int>(r.x.cols());
  in.normed = r.site != nullptr;
  if (!r.site) return in;
  const NormSite& site = *r.site;
  if (!aligned16(site.gamma) || !aligned16(site.beta) || !aligned16(site.gate) || !aligned16(site.direction))
    fail("[few_rows] expected what a norm learns on 16 bytes");
  in.site = {make_params(site, r.x, r.stats, nullptr), site.map};
  in.after = only_scales(site);
  if (!r.add) return in;
  in.add = r.add.as<bf16>();
  in.ld_add = r.add.ld;
  in.sum = r.sum.as<bf16>();
  in.ld_sum = r.sum.ld;
  return in;
}

template <class W, bool Raw, class Out>
void launch(Context& ctx, const In& in, const Tensor& w, int tiles, const Out& out) {
  using L = Layout<W>;
  const int blocks = std::min(tiles, multiprocessors(ctx)), round = std::min(kWarps, (tiles + blocks - 1) / blocks);
  const std::size_t rows = Raw ? 0 : static_cast<std::size_t>(in.rows) * static_cast<std::size_t>(in.columns + L::kPad) * sizeof(bf16);
  const std::size_t bytes = Ring<kSteps>::kBytes + rows + static_cast<std::size_t>(round) * kWarps * 32 * sizeof(float4);
  const auto kernel = in.columns % (4 * L::kSlice) == 0 ? product_kernel<W, Raw, 4, Out> : product_kernel<W, Raw, 1, Out>;
  const WeightMatrix<W> matrix{w.as<W>(), L::kBytes ? byte_scales(w) : nullptr, w.ld, tiles, round};
  launch_early(ctx, kernel, dim3(static_cast<unsigned>(blocks)), kThreads, bytes, in, matrix, out);
}

template <class R, class W, class Out>
void launch_scaled(Context& ctx, const In& in, const WeightMatrix<W>& w, int blocks, bool whole, const Out& out) {
  using S = Scaled<W>;
  const int bytes = R::kBytes +
                    kWarps * (in.rows * S::kLines * S::line(in.columns / kWarps) + w.round * 32 * static_cast<int>(sizeof(float4))) +
                    (whole ? in.rows * (in.columns + Layout<W>::kPad) * static_cast<int>(sizeof(bf16)) : 0);
  launch_early(ctx, whole ? scaled_kernel<R, W, true, Out> : scaled_kernel<R, W, false, Out>, dim3(static_cast<unsigned>(blocks)), kThreads,
               static_cast<std::size_t>(bytes), in, w, out);
}
// Whether it was launched: there are few rows, of widths that suit it.
template <class W, class Out>
bool scaled(Context& ctx, const In& in, const Tensor& w, int tiles, bool whole, const Out& out) {
  if constexpr (Layout<W>::kBytes) {
    const int columns = in.columns / kWarps;
    if (in.rows > kScaledRows || in.columns % (kWarps * kPieceColumns) != 0 || columns > kMostPieces * kPieceColumns) return false;
    const int blocks = std::min(tiles, multiprocessors(ctx)), of_block = (tiles + blocks - 1) / blocks;
    const WeightMatrix<W> matrix{w.as<W>(), byte_scales(w), w.ld, tiles, std::min(kWarps, of_block)};
    // A kernel that has no use for more leaves room for the blocks of the next one.
    if (of_block * columns / Layout<W>::kStep <= kSteps)
      launch_scaled<Ring<kSteps>>(ctx, in, matrix, blocks, whole, out);
    else
      launch_scaled<Ring<kMoreSteps>>(ctx, in, matrix, blocks, whole, out);
    return true;
  } else {
    return false;
  }
}

template <class W, class Out>
void product_of(Context& ctx, const FewRows& rows, const Tensor& w, int tiles, const Out& out) {
  const In in = in_of(rows);
  // Rows that a block needs once come with the weights, and few of them always; else it keeps them for all of its tiles. A norm needs the
  // row first, unless it is a scale that can follow.
  const bool whole = in.normed && (!in.after || in.add),
             often = tiles > multiprocessors(ctx) && in.rows > kFew && in.columns <= kFewRowsWidest;
  if (scaled<W>(ctx, in, w, tiles, whole, out)) return;
  if (whole || often)
    launch<W, false>(ctx, in, w, tiles, out);
  else
    launch<W, true>(ctx, in, w, tiles, out);
}

template <class Out>
void product(Context& ctx, const char* name, const FewRows& rows, const Tensor& w, int tiles, const Out& out) {
  if (w.dtype == DType::i8)
    product_of<std::int8_t>(ctx, rows, w, tiles, out);
  else if (w.dtype == DType::f8)
    product_of<Fp8>(ctx, rows, w, tiles, out);
  else
    product_of<bf16>(ctx, rows, w, tiles, out);
  check_launch(name);
}

}  // namespace
}  // namespace few

bool few_rows_fit(Context& ctx) {
  using namespace few;
  constexpr std::size_t kSums = kWarps * 32 * sizeof(float4);  // of a tile
  static_assert(kRows == kFewRows && Layout<bf16>::kPad >= Layout<Fp8>::kPad);
  return shared_bytes(ctx) >=
         Ring<kMoreSteps>::kBytes + kRows * (kFewRowsWidest + Layout<bf16>::kPad) * sizeof(bf16) + kWarps * kSums + kStaticShared;
}

void few_rows_qkv(Context& ctx, const FewRows& in, const Tensor& w, const FewHeads& out) {
  const AttentionShape& s = out.shape;
  const int tiles = static_cast<int>((s.heads + 2 * s.kv_heads) * s.head_dim / few::kTile);
  few::product(ctx, "few_rows_qkv", in, w, tiles,
               few::QkvOut{.q = out.q.as<bf16>(),
                           .pages = out.pages.as<bf16>(),
                           .ldq = out.q.ld,
                           .ld_pages = out.pages.ld,
                           .rope = out.rope.as<float>(),
                           .positions = out.at.positions.as<std::int32_t>(),
                           .sequences = out.at.sequences.as<std::int32_t>(),
                           .table = out.at.table.as<std::int32_t>(),
                           .table_width = static_cast<int>(out.at.table.cols()),
                           .heads = static_cast<int>(s.heads),
                           .kv_heads = static_cast<int>(s.kv_heads),
                           .d = static_cast<int>(s.head_dim)});
}

void few_rows_linear(Context& ctx, const FewRows& in, const Tensor& w, const FewResidual& out) {
  const auto run = [&]<bool Normed>(few::LinearOut<Normed> to) {
    to.residual = out.residual.as<bf16>();
    to.y = out.y.as<bf16>();
    to.z = out.z.as<bf16>();
    to.ld_residual = out.residual.ld;
    to.ldy = out.y.ld;
    to.ldz = out.z.ld;
    if (out.site) to.site = {make_params(*out.site, out.y, {}, out.given), out.site->map};
    few::product(ctx, "few_rows_linear", in, w, static_cast<int>(w.rows() / few::kTile), to);
  };
  if (out.z)
    run(few::LinearOut<true>{});
  else
    run(few::LinearOut<false>{});
}

void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h) {
  few::product(ctx, "few_rows_swiglu", in, w, static_cast<int>(h.cols() / 8), few::SwigluOut{h.as<bf16>(), h.ld, h.cols()});
}

void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits) {
  few::product(ctx, "few_rows_logits", in, w, static_cast<int>((w.rows() + few::kTile - 1) / few::kTile),
               few::LogitsOut{logits.as<float>(), logits.ld, w.rows()});
}

}  // namespace bhyt::cuda
