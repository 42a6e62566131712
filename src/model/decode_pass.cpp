#include "model/decode_pass.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "core/parts.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/gemm/gemm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace bhyt {

using profile::from_here;

namespace {

// Where a call's int32 values lie, on the host and on the device alike.
struct CallLayout {
  std::int64_t rows = 0, targets = 0, logits = 0, needed = 0, tables = 0;

  std::int64_t positions() const { return rows; }
  std::int64_t sequences() const { return 2 * rows; }
  std::int64_t ids() const { return 3 * rows; }  // of the targets
  std::int64_t wanted() const { return ids() + targets; }
  std::int64_t scored() const { return wanted() + logits; }
  std::int64_t needed_rows() const { return scored() + targets; }
  std::int64_t needed_positions() const { return needed_rows() + needed; }
  std::int64_t needed_sequences() const { return needed_rows() + 2 * needed; }
  std::int64_t table() const { return needed_rows() + 3 * needed; }
  std::int64_t count() const { return table() + tables; }
};

}  // namespace

// What one call brings, on the device. wanted: the rows whose logits are asked for, then those that are scored, counted among the last
// norm's: all rows, or those that are needed.
struct DecodePass::Inputs {
  std::int64_t rows = 0, logits = 0, scored = 0, longest = 0;
  CallLayout lay;
  bool single = true;    // a token of each sequence
  bool narrows = false;  // the last block goes on with the needed rows alone
  Tensor tokens, wanted, targets, needed;
  PagedRows at, needed_at;
};

namespace {

std::size_t input_bytes(const DecodePass::Limits& l, std::int64_t table_width) {
  const CallLayout most{l.tokens, l.scored, l.sequences, l.tokens, l.sequences * table_width};
  return static_cast<std::size_t>(most.count()) * sizeof(std::int32_t);
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
      greedy_(ctx, DType::i32, {limits_.scored}),
      needed_q_(ctx, model.type(), {limits.tokens, model.config().q_width()}),
      needed_stats_(ctx, DType::f32, {2, limits.tokens}) {
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

// Rows that are scored or whose logits are wanted, each once, and where they stand.
void DecodePass::needed_rows(std::span<const Piece> pieces) {
  needed_.clear();
  needed_where_.clear();
  std::int64_t first = 0;  // row of the piece
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& p = pieces[i];
    const auto need = [&](std::int64_t row) {
      const auto at = static_cast<std::int32_t>(first + row);
      if (!needed_.empty() && needed_.back() == at) return;
      if (!needed_.empty() && needed_.back() == at - 1 && needed_where_.back().sequence == static_cast<std::int64_t>(i))
        ++needed_where_.back().rows;
      else
        needed_where_.push_back({.row = std::ssize(needed_), .rows = 1, .past = p.past + row, .sequence = static_cast<std::int64_t>(i)});
      needed_.push_back(at);
    };
    for (const Target& t : p.targets) need(t.behind - p.past);
    if (p.logits) need(std::ssize(p.tokens) - 1);
    first += std::ssize(p.tokens);
  }
}

// What a call asks for, as far as it can be had.
DecodePass::Inputs DecodePass::counted(std::span<const Piece> pieces) {
  check(!pieces.empty() && std::ssize(pieces) <= limits_.sequences, "[generate] expected tokens of 1 to {} sequences, got {}",
        limits_.sequences, pieces.size());
  Inputs in;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    check_piece(pieces[i], static_cast<std::int64_t>(i), limits_, pages_.count());
    in.rows += std::ssize(pieces[i].tokens);
    in.single &= pieces[i].tokens.size() == 1;
    in.longest = std::max(in.longest, pieces[i].past + std::ssize(pieces[i].tokens));
    in.logits += pieces[i].logits;
    in.scored += std::ssize(pieces[i].targets);
  }
  check(in.rows <= limits_.tokens, "[generate] expected at most {} tokens at a time, got {}", limits_.tokens, in.rows);
  check(in.scored <= limits_.scored, "[generate] expected at most {} targets at a time, got {}", limits_.scored, in.scored);
  needed_rows(pieces);
  in.narrows = std::ssize(needed_) < in.rows && !observers.any();
  return in;
}

// Everything that a call brings in one copy to the device.
DecodePass::Inputs DecodePass::put(std::span<const Piece> pieces) {
  Inputs in = counted(pieces);
  const CallLayout& lay = in.lay = {in.rows, in.scored, in.logits, in.narrows ? std::ssize(needed_) : 0, std::ssize(pieces) * table_width_};
  auto* const host = static_cast<std::int32_t*>(input_.host_side());
  std::int32_t *tokens = host, *positions = host + lay.positions(), *sequences = host + lay.sequences(), *ids = host + lay.ids(),
               *wanted = host + lay.wanted(), *scored = host + lay.scored(), *table = host + lay.table();
  where_.clear();
  copies_.clear();
  std::int32_t row = 0, next = 0;
  // Where the last norm has a row; they are asked for in order.
  const auto place = [&](std::int32_t of) {
    if (!in.narrows) return of;
    while (needed_[static_cast<std::size_t>(next)] < of) ++next;
    return next;
  };
  for (std::size_t i = 0; i < pieces.size(); ++i, table += table_width_) {
    const Piece& p = pieces[i];
    where_.push_back({.row = row, .rows = std::ssize(p.tokens), .past = p.past, .sequence = static_cast<std::int64_t>(i)});
    if (p.begun_by >= 0)
      copies_.push_back(
          {.from = p.begun_by, .to = p.pages[static_cast<std::size_t>(p.past / kPageTokens)], .positions = p.past % kPageTokens});
    tokens = std::copy(p.tokens.begin(), p.tokens.end(), tokens);
    for (const Target& t : p.targets) {
      *ids++ = t.id;
      *scored++ = place(row + static_cast<std::int32_t>(t.behind - p.past));
    }
    for (std::size_t k = 0; k < p.tokens.size(); ++k, ++row) {
      *positions++ = static_cast<std::int32_t>(p.past + static_cast<std::int64_t>(k));
      *sequences++ = static_cast<std::int32_t>(i);
    }
    if (p.logits) *wanted++ = place(row - 1);
    std::copy_n(p.pages.begin(), std::min<std::int64_t>(std::ssize(p.pages), table_width_), table);
  }
  for (std::int64_t i = 0; i < lay.needed; ++i) {
    const std::int32_t at = host[lay.needed_rows() + i] = needed_[static_cast<std::size_t>(i)];
    host[lay.needed_positions() + i] = host[lay.positions() + at];
    host[lay.needed_sequences() + i] = host[lay.sequences() + at];
  }
  input_.release();
  input_.send(static_cast<std::size_t>(lay.count()) * sizeof(std::int32_t));
  input_.receive();
  act_.fit(1, in.rows);
  look(in, std::ssize(pieces));
  return in;
}

// Views of what put() sent.
void DecodePass::look(Inputs& in, std::int64_t sequences) const {
  const CallLayout& lay = in.lay;
  const auto ints = [&](std::int64_t first, std::int64_t rows, std::int64_t cols) {
    return Tensor(static_cast<std::int32_t*>(input_.device_side()) + first, DType::i32, ctx_.device(), {rows, cols});
  };
  constexpr std::int64_t kShort = 1024;  // up to here the work is laid out alike: one recording serves all
  const std::int64_t longest = std::max(kShort, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(in.longest))));
  in.tokens = ints(0, 1, in.rows);
  in.targets = ints(lay.ids(), 1, in.scored);
  in.wanted = ints(lay.wanted(), 1, in.logits + in.scored);
  in.needed = ints(lay.needed_rows(), 1, lay.needed);
  in.at = {.positions = ints(lay.positions(), 1, in.rows),
           .sequences = ints(lay.sequences(), 1, in.rows),
           .table = ints(lay.table(), sequences, table_width_),
           .pieces = where_,
           .copies = copies_,
           .longest = longest};
  in.needed_at = {.positions = ints(lay.needed_positions(), 1, lay.needed),
                  .sequences = ints(lay.needed_sequences(), 1, lay.needed),
                  .table = in.at.table,
                  .pieces = needed_where_,
                  .copies = {},
                  .longest = longest};
}

namespace {

// The same places, for the first rows alone.
Kept first_rows(const Kept& of, std::int64_t rows) {
  const auto stats = [&](const Tensor& t) { return t ? Tensor(t.data, t.dtype, t.device, {2, rows}) : Tensor{}; };
  const auto part = [&](const Tensor& t) { return t ? t.row_slice(0, rows) : Tensor{}; };
  Kept k = of;
  for (Tensor* t : {&k.x, &k.z1, &k.z2, &k.qkv, &k.att, &k.x2, &k.gate_up, &k.h, &k.out1, &k.out2}) *t = part(*t);
  for (Tensor* t : {&k.stats1, &k.stats2, &k.stats_out1, &k.stats_out2}) *t = stats(*t);
  for (Tensor& t : k.lora) t = part(t);
  return k;
}

}  // namespace

// The rest of the last block and the last norm, for the rows that the head is asked about: of the others nobody reads more than keys and
// values.
void DecodePass::finish_needed(const Inputs& in, const Stream& stream, const ForwardOptions& how) {
  const std::int64_t rows = in.needed.size(), q = model_.config().q_width();
  if (rows == 0) return;
  const Kept& all = act_.kept.back();
  Kept keep = first_rows(all, rows);
  const Tensor ms(needed_stats_.t.data, DType::f32, ctx_.device(), {rows, 1}), queries = needed_q_.t.row_slice(0, rows),
                                                                               x = rows_.t.row_slice(0, rows);
  from_here(ctx_, {"rows for the head"});
  gather_rows(ctx_, all.qkv.col_slice(0, q), in.needed, queries);
  gather_rows(ctx_, stream.x, in.needed, x);
  gather_rows(ctx_, Tensor(all.stats1.data, DType::f32, ctx_.device(), {in.rows, 1}), in.needed, ms);
  keep.stats1 = Tensor(ms.data, DType::f32, ctx_.device(), {2, rows});
  BlockScratch scratch = act_.scratch;
  scratch.branch = scratch.branch.row_slice(0, rows);
  from_here(ctx_, {"attention"});
  attention_paged(ctx_, queries, pages_.layer(model_.config().layers - 1), keep.att, in.needed_at, heads_of(model_.config()));
  Stream narrow{x, {}};
  model_.blocks().back().after_attention(ctx_, narrow, keep, scratch, how, observers);
  from_here(ctx_, {"last norm"});
  norm(ctx_, model_.last(),
       {.x = narrow.x,
        .add = narrow.pending,
        .sum = act_.last.row_slice(0, rows),
        .z = act_.z.row_slice(0, rows),
        .stats = Tensor(act_.last_stats.data, DType::f32, ctx_.device(), {2, rows})});
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
    if (in.narrows && l + 1 == act_.kept.size()) return finish_needed(in, stream, how);
    from_here(ctx_, {"attention"});
    attention_paged(ctx_, keep.qkv.col_slice(0, q), pages, keep.att, in.at, heads_of(c));
    block.after_attention(ctx_, stream, keep, act_.scratch, how, observers);
  }
  from_here(ctx_, {"last norm"});
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
    from_here(ctx_, {"head"}, model_.weights().head);
    const Tensor rows = rows_.t.row_slice(0, in.logits);
    embedding(ctx_, part(in.wanted, 0, in.logits), act_.z, rows);
    gemm(ctx_, rows, model_.weights().head, out.logits, {.trans_b = true, .by_row = true});
    observers.show(ctx_, Point::logits, model_.config().layers + 1, out.logits);
  }
  for (std::int64_t first = 0; first < in.scored; first += in.rows) {  // as many as the workspace has room for
    const std::int64_t count = std::min(in.rows, in.scored - first);
    from_here(ctx_, {"head+cross entropy"}, model_.weights().head);
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
  from_here(ctx_, {"embedding"});
  if (feed) take_fed(ctx_, in.tokens, feed);
  if (few_rows_ && in.rows <= kFewRows && in.single && in.logits == in.rows && in.scored == 0 && !observers.any())
    return few_rows_->run(in.tokens, in.at, out.logits);
  blocks(in);
  heads(in, out);
}

DecodePass::Result DecodePass::run(std::span<const Piece> pieces) {
  from_here(ctx_, {"input"});
  const Inputs in = put(pieces);
  const Result out{.logits = logits_.t.row_slice(0, in.logits),
                   .losses = Tensor(losses_.t.data, DType::f32, ctx_.device(), {in.scored}),
                   .greedy = Tensor(greedy_.t.data, DType::i32, ctx_.device(), {in.scored})};
  // Single tokens come again and again in the same shape; prompts hardly ever do.
  if (!in.single || observers.any()) {
    compute(in, out);
  } else {
    const GraphCache::Key key{static_cast<std::uint64_t>(in.rows),
                              static_cast<std::uint64_t>(in.logits),
                              static_cast<std::uint64_t>(in.scored),
                              static_cast<std::uint64_t>(in.at.longest),
                              static_cast<std::uint64_t>(in.needed.size()),
                              reinterpret_cast<std::uint64_t>(feed.data),
                              ctx_.scratch_version()};
    graphs_.run(ctx_, key, [&] { compute(in, out); });
  }
  return out;
}

}  // namespace bhyt
