#include "model/decode_pass.h"

#include <algorithm>

#include "core/check.h"
#include "ops/gemm/gemm.h"
#include "ops/rope/rope.h"

namespace bhyt {

DecodePass::DecodePass(Context& ctx, const Model& model, KvCache& cache, std::int64_t tokens)
    : ctx_(ctx),
      model_(model),
      cache_(cache),
      most_(tokens),
      act_(ctx, model, {.batch = 1, .seq = tokens}),
      rope_(rope_table(ctx, cache.capacity(), model.config().head_dim, model.config().rope_theta, model.config().rope_scaling)),
      input_(ctx, static_cast<std::size_t>(2 * tokens) * sizeof(std::int32_t)),
      rows_(ctx, model.type(), {cache.sequences(), model.config().d}),
      logits_(ctx, DType::f32, {cache.sequences(), model.config().vocab}) {
  const ModelConfig& c = model.config();
  reserve_attention_cached(ctx, tokens, cache.capacity(), {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim});
}

// Tokens and positions to the device.
void DecodePass::put(std::span<const Piece> pieces) {
  auto* tokens = static_cast<std::int32_t*>(input_.host_side());
  std::int64_t n = 0;
  std::vector<bool> seen(static_cast<std::size_t>(cache_.sequences()));
  check(!pieces.empty(), "[generate] expected tokens of at least one sequence, got none");
  for (const Piece& p : pieces) {
    n += std::ssize(p.tokens);
    if (p.sequence < 0 || p.sequence >= cache_.sequences()) continue;  // said below
    check(!seen[static_cast<std::size_t>(p.sequence)], "[generate] expected a sequence once in a call, got {} twice", p.sequence);
    seen[static_cast<std::size_t>(p.sequence)] = true;
  }
  check(n <= most_, "[generate] expected at most {} tokens at a time, got {}", most_, n);
  std::int32_t* positions = tokens + n;
  for (const Piece& p : pieces) {
    check(p.sequence >= 0 && p.sequence < cache_.sequences() && !p.tokens.empty(),
          "[generate] expected tokens for a sequence below {}, got {} for sequence {}", cache_.sequences(), p.tokens.size(), p.sequence);
    std::int64_t at = cache_.length(p.sequence);
    check(at + std::ssize(p.tokens) <= cache_.capacity(), "[generate] expected at most {} tokens, got {}", cache_.capacity(),
          at + std::ssize(p.tokens));
    tokens = std::copy(p.tokens.begin(), p.tokens.end(), tokens);
    for (std::size_t i = 0; i < p.tokens.size(); ++i) *positions++ = static_cast<std::int32_t>(at++);
  }
  input_.release();
  input_.send(static_cast<std::size_t>(2 * n) * sizeof(std::int32_t));
  input_.receive();
  act_.fit(1, n);
}

// New keys and values go to their sequences' pages, and every sequence's queries look at its own.
void DecodePass::attend(std::size_t layer, std::span<const Piece> pieces, const Kept& keep) {
  const ModelConfig& c = model_.config();
  const std::int64_t q = c.q_width(), kv = c.kv_width();
  std::int64_t row = 0;
  for (const Piece& p : pieces) {
    const std::int64_t n = std::ssize(p.tokens), past = cache_.length(p.sequence);
    const Tensor page = cache_.page(static_cast<std::int64_t>(layer), p.sequence), own = keep.qkv.row_slice(row, n);
    copy_rows(ctx_, own.col_slice(q, 2 * kv), page.row_slice(past, n));
    const Tensor so_far = page.row_slice(0, past + n);
    attention_cached(ctx_, own.col_slice(0, q), so_far.col_slice(0, kv), so_far.col_slice(kv, kv), keep.att.row_slice(row, n), past,
                     {.batch = 1, .seq = n, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim});
    row += n;
  }
}

Tensor DecodePass::run(std::span<const Piece> pieces) {
  put(pieces);
  const std::int64_t n = act_.tokens;
  auto* ids = static_cast<std::int32_t*>(input_.device_side());
  const Tensor tokens(ids, DType::i32, ctx_.device(), {1, n});
  const Positions at{.batch = 1, .seq = n, .table = rope_, .positions = Tensor(ids + n, DType::i32, ctx_.device(), {1, n}), .first = {}};
  embedding(ctx_, tokens, model_.weights().embedding, act_.kept[0].x, model_.embedding_scale());
  observers.show(ctx_, Point::embedding, 0, act_.kept[0].x);
  Stream stream{act_.kept[0].x, {}};
  for (std::size_t l = 0; l < act_.kept.size(); ++l) {
    const Block& block = model_.blocks()[l];
    block.before_attention(ctx_, stream, act_.kept[l], at, observers);
    attend(l, pieces, act_.kept[l]);
    block.after_attention(ctx_, stream, act_.kept[l], act_.scratch, 0, observers);
  }
  const std::int64_t behind = model_.config().layers + 1;
  norm(ctx_, model_.last(), {.x = stream.x, .add = stream.pending, .sum = act_.last, .z = act_.z, .stats = act_.last_stats});
  observers.show(ctx_, Point::block_output, behind - 1, act_.last);
  observers.show(ctx_, Point::last, behind, act_.z);
  std::int64_t row = 0, i = 0;
  for (const Piece& p : pieces) {
    row += std::ssize(p.tokens);
    copy_rows(ctx_, act_.z.row_slice(row - 1, 1), rows_.t.row_slice(i++, 1));
    cache_.grow(p.sequence, std::ssize(p.tokens));
  }
  const Tensor out = logits_.t.row_slice(0, i);
  gemm(ctx_, rows_.t.row_slice(0, i), model_.weights().head, out, {.trans_b = true});
  observers.show(ctx_, Point::logits, behind, out);
  return out;
}

}  // namespace bhyt
