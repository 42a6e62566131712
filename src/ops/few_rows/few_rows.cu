#include "ops/few_rows/few_rows.h"

#include <algorithm>

#include "ops/few_rows/few_rows_products.cuh"
#include "ops/gemm/bytes.h"

namespace bhyt::cuda {

namespace few {
namespace {

// Whether what follows is one factor that is made of the row's squares alone.
bool is_one_factor(const In& in) { return in.after && !in.sums && !in.biases; }
// A tanh of the scaled row and nothing else.
bool only_bounds(const Site& s) { return s.map == Map::tanh && s.p.stat != Stat::mean_var && !s.p.gamma && !s.p.beta && !s.p.gate; }

In in_of(const FewRows& r) {
  In in{};
  in.x = r.x.as<bf16>();
  in.ld = static_cast<int>(r.x.ld);
  in.rows = static_cast<int>(r.x.rows());
  in.columns = static_cast<int>(r.x.cols());
  in.per_column = 1 / static_cast<float>(in.columns);
  in.normed = r.site != nullptr;
  if (!r.site) return in;
  const NormSite& site = *r.site;
  in.moments = r.moments ? r.moments.as<float>() : nullptr;
  if (!aligned16(site.gamma) || !aligned16(site.beta) || !aligned16(site.gate) || !aligned16(site.direction))
    fail("[few_rows] expected what a norm learns on 16 bytes");
  in.site = {make_params(site, r.x, r.stats, nullptr), site.map};
  in.after = few_rows_may_follow(site, r.sums);
  if (in.after && is_centred(site.stat)) in.sums = pointer(r.sums->rows);
  if (in.after && site.beta) in.biases = pointer(r.sums->bias);
  return in;
}

// A block's shared memory decides what lies on a multiprocessor with it. Two blocks of one kernel should not: begun while the kernel before
// is still at work, they find two places on some multiprocessors and none on others, and a step of Llama-1B takes 3 to 5 % longer. So a
// block takes more than half, whatever it needs. But attention's projection with one or two rows takes what it needs: its blocks lie beside
// those of q, k and v where both fit, and so have their weights early.
std::size_t shared_of(Context& ctx, std::size_t needed, bool beside) {
  return beside ? needed : std::max(needed, shared_bytes(ctx) / 2 + 1);
}
// A product onto the stream whose weights are all under way at once, as those of attention's projection are.
template <class Out>
bool lies_beside(const In& in, int steps) {
  return !Out::kAfterNorms && in.rows <= kVeryFewRows && steps <= kFewSteps;
}

template <class R, class W, Rows How, class Out>
void launch_with(Context& ctx, const In& in, const WeightMatrix<W>& w, int blocks, bool beside, const Out& out) {
  using L = Layout<W>;
  const std::size_t rows =
      !in_shared(How) ? 0 : static_cast<std::size_t>(in.rows) * static_cast<std::size_t>(in.columns + L::kPad) * sizeof(bf16);
  const std::size_t bytes = R::kBytes + rows + static_cast<std::size_t>(w.round) * kWarps * 32 * sizeof(float4);
  const auto kernel = in.columns % (4 * L::kSlice) == 0 ? product_kernel<R, W, How, 4, Out> : product_kernel<R, W, How, 1, Out>;
  launch_early(ctx, kernel, dim3(static_cast<unsigned>(blocks)), kThreads, shared_of(ctx, bytes, beside), in, w, out);
}
template <class W, Rows How, class Out>
void launch(Context& ctx, const In& in, const Tensor& w, int tiles, const Out& out) {
  using L = Layout<W>;
  const int blocks = std::min(tiles, multiprocessors(ctx)), of_block = (tiles + blocks - 1) / blocks;
  const WeightMatrix<W> matrix{w.as<W>(), L::kBytes ? byte_scales(w) : nullptr, static_cast<int>(w.ld), tiles, std::min(kWarps, of_block)};
  const bool beside = lies_beside<Out>(in, of_block * in.columns / L::kSlice);
  if constexpr (How == Rows::plain && !Out::kAfterNorms)  // with two rows fewer steps under way are quicker, with one they are not
    if (beside && in.rows == 2) return launch_with<Ring<kFewSteps>, W, How>(ctx, in, matrix, blocks, beside, out);
  launch_with<Ring<kSteps>, W, How>(ctx, in, matrix, blocks, beside, out);
}

struct ScaledLaunch {
  int blocks;
  bool whole;   // the norm is applied to the rows before
  bool beside;  // blocks of two kernels may lie on one multiprocessor
};
template <class R, class W, class Out>
void launch_scaled(Context& ctx, const In& in, const WeightMatrix<W>& w, const ScaledLaunch& how, const Out& out) {
  using S = Scaled<W>;
  const int bytes = R::kBytes +
                    kWarps * (in.rows * S::kLines * S::line(in.columns / kWarps) + w.round * 32 * static_cast<int>(sizeof(float4))) +
                    (how.whole ? in.rows * (in.columns + Layout<W>::kPad) * static_cast<int>(sizeof(bf16)) : 0);
  auto kernel = scaled_kernel<R, W, false, Out>;
  if constexpr (Out::kAfterNorms)
    if (how.whole) kernel = scaled_kernel<R, W, true, Out>;
  launch_early(ctx, kernel, dim3(static_cast<unsigned>(how.blocks)), kThreads, shared_of(ctx, static_cast<std::size_t>(bytes), how.beside),
               in, w, out);
}
// Whether it was launched: there are few rows, of widths that suit it.
template <class W, class Out>
bool scaled(Context& ctx, const In& in, const Tensor& w, int tiles, bool whole, const Out& out) {
  if constexpr (Layout<W>::kBytes) {
    const int columns = in.columns / kWarps;
    if (in.rows > kScaledRows || in.columns % (kWarps * kPieceColumns) != 0 || columns > kMostPieces * kPieceColumns) return false;
    const int blocks = std::min(tiles, multiprocessors(ctx)), of_block = (tiles + blocks - 1) / blocks;
    const WeightMatrix<W> matrix{w.as<W>(), byte_scales(w), static_cast<int>(w.ld), tiles, std::min(kWarps, of_block)};
    const int steps = of_block * columns / Layout<W>::kStep;
    const ScaledLaunch how{.blocks = blocks, .whole = whole, .beside = lies_beside<Out>(in, steps)};
    if (steps <= kSteps)
      launch_scaled<Ring<kSteps>>(ctx, in, matrix, how, out);
    else
      launch_scaled<Ring<kMoreSteps>>(ctx, in, matrix, how, out);
    return true;
  } else {
    return false;
  }
}

template <class W, class Out>
void product_of(Context& ctx, const FewRows& rows, const Tensor& w, int tiles, const Out& out) {
  const In in = in_of(rows);
  // Rows that a block needs once come with the weights, and few of them always; else it keeps them for all of its tiles. A norm needs the
  // row first, unless it may follow.
  const bool one_factor = is_one_factor(in), whole = in.normed && !one_factor,
             often = tiles > multiprocessors(ctx) && in.rows > kVeryFewRows && in.columns <= kFewRowsWidest;
  if (scaled<W>(ctx, in, w, tiles, whole, out)) return;
  if (in.normed ? in.after && in.moments : often) return launch<W, Rows::held>(ctx, in, w, tiles, out);
  if constexpr (Out::kAfterNorms) {
    if (in.moments && only_bounds(in.site)) return launch<W, Rows::held_bounded>(ctx, in, w, tiles, out);
    if (in.after && !one_factor && !often) return launch<W, Rows::counted>(ctx, in, w, tiles, out);
    if (whole || often) return launch<W, Rows::kept>(ctx, in, w, tiles, out);
  }
  launch<W, Rows::plain>(ctx, in, w, tiles, out);
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

template <bool Normed>
LinearOut<Normed> linear_out(const FewResidual& out) {
  LinearOut<Normed> to{};
  to.residual = out.residual.as<bf16>();
  to.y = out.y.as<bf16>();
  to.z = out.z.as<bf16>();
  to.ld_residual = static_cast<int>(out.residual.ld);
  to.ldy = static_cast<int>(out.y.ld);
  to.ldz = static_cast<int>(out.z.ld);
  to.tiles = static_cast<int>(out.y.cols() / kTile);
  if (out.moments) {
    to.moments = out.moments.as<float>();
    to.centred = is_centred(out.site->stat);
  }
  if (out.z) to.site = {make_params(*out.site, out.y, {}, out.given), out.site->map};
  return to;
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
                           .ldq = static_cast<int>(out.q.ld),
                           .ld_pages = static_cast<int>(out.pages.ld),
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
  const int tiles = static_cast<int>(w.rows() / few::kTile);
  if (out.z)
    few::product(ctx, "few_rows_linear", in, w, tiles, few::linear_out<true>(out));
  else
    few::product(ctx, "few_rows_linear", in, w, tiles, few::linear_out<false>(out));
}

void few_rows_swiglu(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& h) {
  few::product(ctx, "few_rows_swiglu", in, w, static_cast<int>(h.cols() / 8),
               few::SwigluOut{h.as<bf16>(), static_cast<int>(h.ld), static_cast<int>(h.cols())});
}

void few_rows_norm(Context& ctx, const NormSite& site, const Tensor& x, const FewResidual& out) {
  few::In in = few::in_of({.x = x, .site = &site});
  in.after = false;
  launch_early(ctx, few::norm_kernel, dim3(static_cast<unsigned>(x.rows())), few::kThreads,
               static_cast<std::size_t>(x.cols()) * sizeof(bf16), in, few::linear_out<false>(out));
  check_launch("few_rows_norm");
}

void few_rows_logits(Context& ctx, const FewRows& in, const Tensor& w, const Tensor& logits) {
  few::product(ctx, "few_rows_logits", in, w, static_cast<int>((w.rows() + few::kTile - 1) / few::kTile),
               few::LogitsOut{logits.as<float>(), static_cast<int>(logits.ld), static_cast<int>(w.rows())});
}

}  // namespace bhyt::cuda
