#include "model/decode_pass.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/gemm/gemm.h"
#include "ops/rope/rope.h"

namespace bhyt {

// What one call brings, on the device. wanted: the rows whose logits are asked for, then those that are scored.
struct DecodePass::Inputs {
  std::int64_t rows = 0, logits = 0, scored = 0;
  bool single = true;  // a token of each sequence
  Tensor tokens, wanted, targets;
  PagedRows at;
};

namespace {

// int32: tokens, positions and sequences; targets and the rows behind which they are; rows whose logits are wanted; the table of pages.
std::size_t input_bytes(const DecodePass::Limits& l, std::int64_t table_width) {
  return static_cast<std::size_t>(3 * l.tokens + 2 * l.scored + l.sequences * (1 + table_width)) * sizeof(std::int32_t);
}

DecodePass::Limits checked(DecodePass::Limits l) {
  check(l.tokens > 0 && l.sequences > 0 && l.length > 0,
        "[generate] expected room for at least one token of one sequence, got {} tokens, {} sequences of {}", l.tokens, l.sequences,
        l.length);
  if (l.scored == 0) l.scored = l.tokens;
  return l;
}

AttentionShape heads_of(const ModelConfig& c) { return {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim}; }

}  // namespace

DecodePass::DecodePass(Context& ctx, const Model& model, KvPages& pages, const Limits& limits)
    : ctx_(ctx),
      model_(model),
      pages_(pages),
      limits_(checked(limits)),
      table_width_(KvPages::pages_for(limits.length)),
      act_(ctx, model, {.batch = 1, .seq = limits.tokens}),
      rope_(rope_table(ctx, limits.length, model.config().head_dim, model.config().rope_theta, model.config().rope_scaling)),
      input_(ctx, input_bytes(limits_, table_width_)),
      rows_(ctx, model.type(), {limits.tokens, model.config().d}),
      logits_(ctx, DType::f32, {limits.sequences, model.config().vocab}),
      losses_(ctx, DType::f32, {limits_.scored}),
      greedy_(ctx, DType::i32, {limits_.scored}) {
  const ModelConfig& c = model.config();
  reserve_attention_paged(ctx, limits.tokens, limits.length, heads_of(c));
  reserve_gemm_by_row(ctx, limits.tokens, std::max({c.d, c.q_width(), c.mlp, model.lora().rank}));
  if (FewRowsPass::takes(model)) few_rows_.emplace(ctx, model, pages, rope_);
}

namespace {

// What can be said of a piece before anything is written.
void check_piece(const DecodePass::Piece& p, std::int64_t i, const DecodePass::Limits& limits, std::int64_t pages) {
  check(!p.tokens.empty(), "[generate] expected at least one token of every piece, got none of piece {}", i);
  const std::int64_t end = p.past + std::ssize(p.tokens);
  check(p.past >= 0 && end <= limits.length, "[generate] expected a sequence of at most {} tokens, got {}", limits.length, end);
  check(std::ssize(p.pages) >= KvPages::pages_for(end), "[generate] expected {} pages for {} tokens, got {}", KvPages::pages_for(end), end,
        p.pages.size());
  for (const std::int32_t page : p.pages) check(page >= 0 && page < pages, "[generate] expected pages below {}, got {}", pages, page);
  std::int64_t last = p.past;
  for (const Target& t : p.targets) {
    check(t.behind >= last && t.behind < end, "[generate] expected targets behind tokens {} to {} in their order, got one behind {}",
          p.past, end - 1, t.behind);
    last = t.behind;
  }
}

}  // namespace

// Everything that a call brings in one copy to the device.
DecodePass::Inputs DecodePass::put(std::span<const Piece> pieces) {
  check(!pieces.empty() && std::ssize(pieces) <= limits_.sequences, "[generate] expected tokens of 1 to {} sequences, got {}",
        limits_.sequences, pieces.size());
  Inputs in;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    check_piece(pieces[i], static_cast<std::int64_t>(i), limits_, pages_.count());
    in.rows += std::ssize(pieces[i].tokens);
    in.single &= pieces[i].tokens.size() == 1;
    longest = std::max(longest, pieces[i].past + std::ssize(pieces[i].tokens));
    in.logits += pieces[i].logits;
    in.scored += std::ssize(pieces[i].targets);
  }
  check(in.rows <= limits_.tokens, "[generate] expected at most {} tokens at a time, got {}", limits_.tokens, in.rows);
  check(in.scored <= limits_.scored, "[generate] expected at most {} targets at a time, got {}", limits_.scored, in.scored);
  const std::int64_t n = in.rows, head_rows = in.logits + in.scored;
  auto* const host = static_cast<std::int32_t*>(input_.host_side());
  std::int32_t *tokens = host, *positions = host + n, *sequences = host + 2 * n, *targets = host + 3 * n, *wanted = targets + in.scored,
               *scored = wanted + in.logits, *table = wanted + head_rows;
  const std::int64_t count = table - host + std::ssize(pieces) * table_width_;
  where_.clear();
  copies_.clear();
  std::int32_t row = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i, table += table_width_) {
    const Piece& p = pieces[i];
    where_.push_back({.row = row, .rows = std::ssize(p.tokens), .past = p.past, .sequence = static_cast<std::int64_t>(i)});
    if (p.begun_by >= 0)
      copies_.push_back(
          {.from = p.begun_by, .to = p.pages[static_cast<std::size_t>(p.past / kPageTokens)], .positions = p.past % kPageTokens});
    tokens = std::copy(p.tokens.begin(), p.tokens.end(), tokens);
    for (const Target& t : p.targets) {
      *targets++ = t.id;
      *scored++ = row + static_cast<std::int32_t>(t.behind - p.past);
    }
    for (std::size_t k = 0; k < p.tokens.size(); ++k, ++row) {
      *positions++ = static_cast<std::int32_t>(p.past + static_cast<std::int64_t>(k));
      *sequences++ = static_cast<std::int32_t>(i);
    }
    if (p.logits) *wanted++ = row - 1;
    std::copy_n(p.pages.begin(), std::min<std::int64_t>(std::ssize(p.pages), table_width_), table);
  }
  input_.release();
  input_.send(static_cast<std::size_t>(count) * sizeof(std::int32_t));
  input_.receive();
  act_.fit(1, n);
  auto* at = static_cast<std::int32_t*>(input_.device_side());
  const auto ints = [&](std::int64_t rows, std::int64_t cols) {
    const Tensor t(at, DType::i32, ctx_.device(), {rows, cols});
    at += rows * cols;
    return t;
  };
  in.tokens = ints(1, n);
  in.at.positions = ints(1, n);
  in.at.sequences = ints(1, n);
  in.targets = ints(1, in.scored);
  in.wanted = ints(1, head_rows);
  in.at.table = ints(std::ssize(pieces), table_width_);
  in.at.pieces = where_;
  in.at.copies = copies_;
  constexpr std::int64_t kShort = 1024;  // up to here the work is laid out alike: one recording serves all
  in.at.longest = std::max(kShort, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(longest))));
  return in;
}

void DecodePass::blocks(const Inputs& in) {
  const ModelConfig& c = model_.config();
  const std::int64_t q = c.q_width();
  const ForwardOptions how{.by_row = true};
  Positions at{.batch = 1, .seq = in.rows, .table = rope_, .positions = in.at.positions, .first = {}, .paged = &in.at};
  embedding(ctx_, in.tokens, model_.weights().embedding, act_.kept[0].x, model_.embedding_scale());
  observers.show(ctx_, Point::embedding, 0, act_.kept[0].x);
  Stream stream{act_.kept[0].x, {}};
  for (std::size_t l = 0; l < act_.kept.size(); ++l) {
    const Block& block = model_.blocks()[l];
    const Kept& keep = act_.kept[l];
    const Tensor pages = pages_.layer(static_cast<std::int64_t>(l));
    at.pages = pages;
    block.before_attention(ctx_, stream, keep, act_.scratch, at, how, observers);
    attention_paged(ctx_, keep.qkv.col_slice(0, q), pages, keep.att, in.at, heads_of(c));
    block.after_attention(ctx_, stream, keep, act_.scratch, how, observers);
  }
  norm(ctx_, model_.last(), {.x = stream.x, .add = stream.pending, .sum = act_.last, .z = act_.z, .stats = act_.last_stats});
  observers.show(ctx_, Point::block_output, c.layers, act_.last);
  observers.show(ctx_, Point::last, c.layers + 1, act_.z);
}

// Logits and losses of the rows that are asked for; the others never reach the head.
void DecodePass::heads(const Inputs& in, const Result& out) {
  const auto part = [](const Tensor& t, std::int64_t first, std::int64_t count) {  // of a row of 32-bit values
    return Tensor(static_cast<std::int32_t*>(t.data) + first, t.dtype, t.device, {1, count});
  };
  if (in.logits > 0) {
    const Tensor rows = rows_.t.row_slice(0, in.logits);
    embedding(ctx_, part(in.wanted, 0, in.logits), act_.z, rows);
    gemm(ctx_, rows, model_.weights().head, out.logits, {.trans_b = true, .by_row = true});
    observers.show(ctx_, Point::logits, model_.config().layers + 1, out.logits);
  }
  for (std::int64_t first = 0; first < in.scored; first += in.rows) {  // as many as the workspace has room for
    const std::int64_t count = std::min(in.rows, in.scored - first);
    const Tensor rows = rows_.t.row_slice(0, count);
    embedding(ctx_, part(in.wanted, in.logits + first, count), act_.z, rows);
    cross_entropy(ctx_, {.x = rows,
                         .w = model_.weights().head,
                         .targets = part(in.targets, first, count),
                         .weights = {},
                         .scale = 1,
                         .loss = {},
                         .losses = part(out.losses, first, count),
                         .greedy = part(out.greedy, first, count),
                         .dx = {},
                         .dw = {},
                         .workspace = act_.workspace,
                         .by_row = true});
  }
}

void DecodePass::compute(const Inputs& in, const Result& out) {
  if (feed) take_fed(ctx_, in.tokens, feed);
  if (few_rows_ && in.rows <= kFewRows && in.single && in.logits == in.rows && in.scored == 0 && !observers.any())
    return few_rows_->run(in.tokens, in.at, out.logits);
  blocks(in);
  heads(in, out);
}

DecodePass::Result DecodePass::run(std::span<const Piece> pieces) {
  const Inputs in = put(pieces);
  const Result out{.logits = logits_.t.row_slice(0, in.logits),
                   .losses = Tensor(losses_.t.data, DType::f32, ctx_.device(), {in.scored}),
                   .greedy = Tensor(greedy_.t.data, DType::i32, ctx_.device(), {in.scored})};
  // Single tokens come again and again in the same shape; prompts hardly ever do.
  if (!in.single || observers.any()) {
    compute(in, out);
  } else {
    const GraphCache::Key key{static_cast<std::uint64_t>(in.rows),        static_cast<std::uint64_t>(in.logits),
                              static_cast<std::uint64_t>(in.scored),      static_cast<std::uint64_t>(in.at.longest),
                              reinterpret_cast<std::uint64_t>(feed.data), ctx_.scratch_version()};
    graphs_.run(ctx_, key, [&] { compute(in, out); });
  }
  return out;
}

}  // namespace bhyt
