// The forward on the CPU. Every row of the result is computed the same way however the rows are spread over tasks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/threads.h"
#include "ops/attention/attention.h"
#include "ops/attention/tile_bf16.h"
#include "ops/gemm/instructions.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kChunkTiles = 4;  // query tiles of a task: they share each key tile that it loads

// One key/value head of one sequence and the group of query heads that look at it.
template <class T>
struct Group {
  const T *q, *k, *v;  // q and out: of the group's first head
  std::int64_t ldq, ldk, ldv;
  T* out;
  std::int64_t ldout;
  float* lse = nullptr;                 // [heads, queries], or null
  const std::int32_t* first = nullptr;  // by position, or null
  std::int64_t queries, heads, d;
};

// The results of queries [begin, end) from their sums o [heads,rows,w] and the softmax's largest scores and sums.
template <class T>
void finish(const Group<T>& s, std::int64_t begin, std::int64_t end, std::int64_t rows, std::int64_t w, const float* o, const float* max,
            float* sum) {
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float* const m = max + h * rows;
    float* const l = sum + h * rows;
    for (std::int64_t i = 0; i < end - begin; ++i) {
      if (s.lse) s.lse[h * s.queries + begin + i] = m[i] + std::log(l[i]);
      l[i] = 1.0f / l[i];
    }
    store_rows(o + h * rows * w, w, l, s.out + begin * s.ldout + h * s.d, s.ldout, end - begin, s.d);
  }
}

// The first key that one of the queries sees, rounded down to a tile.
template <class T>
std::int64_t first_key(const Group<T>& s, std::int64_t begin, std::int64_t end) {
  return s.first ? *std::min_element(s.first + begin, s.first + end) / kTile * kTile : 0;
}

// The floats that a piece of up to `queries` queries of a group needs: of forward_rows, of forward_rows_bf16.
std::int64_t forward_floats(std::int64_t heads, std::int64_t d, std::int64_t queries) {
  const std::int64_t w = round_up(d, kCols), rows = round_up(queries, kTile);
  return heads * rows * (2 * w + 2) + 3 * kTile * w + kRows * kTile;
}
std::int64_t forward_floats_bf16(std::int64_t heads, std::int64_t d, std::int64_t queries) {
  const std::int64_t w = round_up(d, kUnit), rows = round_up(queries, kTile);
  return heads * rows * (w + 2) + kTile * kTile + (heads * rows * w + 3 * kTile * w + kTile * kTile) / 2;
}

// Queries [begin, end) of all heads of the group: begin is a multiple of kTile.
template <class T>
void forward_rows(const Group<T>& s, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int64_t w = round_up(s.d, kCols), rows = round_up(end - begin, kTile);
  float* const q = scratch;
  float* const o = q + s.heads * rows * w;
  float* const max = o + s.heads * rows * w;
  float* const sum = max + s.heads * rows;
  float* const k = sum + s.heads * rows;
  float* const kt = k + kTile * w;
  float* const v = kt + kTile * w;
  float* const p = v + kTile * w;

  constexpr float none[kRows] = {};
  const std::int64_t depth = std::max<std::int64_t>(s.d, 2);  // the padding is zero
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t i = 0; i < rows; i += kTile)
      load_tile(s.q + (begin + i) * s.ldq + h * s.d, s.ldq, std::min(kTile, end - begin - i), s.d, scale, q + (h * rows + i) * w, w);
  std::fill_n(o, s.heads * rows * w, 0.0f);
  std::fill_n(max, s.heads * rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, s.heads * rows, 0.0f);

  for (std::int64_t key = first_key(s, begin, end); key < end; key += kTile) {
    const std::int64_t n = std::min(kTile, s.queries - key);
    load_tile(s.k + key * s.ldk, s.ldk, n, s.d, 1.0f, k, w);
    transpose(k, kTile, w, kt);
    load_tile(s.v + key * s.ldv, s.ldv, n, s.d, 1.0f, v, w);
    for (std::int64_t i = std::max<std::int64_t>(0, key - begin) / kRows * kRows; i < end - begin; i += kRows) {
      const Block block = visible_block(s.first, begin + i, end, key);
      if (block.n == 0) continue;
      for (std::int64_t h = 0; h < s.heads; ++h) {
        const std::int64_t at = h * rows + i;
        float keep[kRows];
        product(block.n, depth, q + at * w, w, kt, kTile, p, kTile, none);
        softmax_step(p, block, max + at, sum + at, keep);
        product_add(w, block.n, p, kTile, v, w, o + at * w, w, keep);
      }
    }
  }

  finish(s, begin, end, rows, w, o, max, sum);
}

// The same with products of bf16 tiles: the probabilities are rounded on their way into the second one.
void forward_rows_bf16(const Group<bf16>& s, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int64_t w = round_up(s.d, kUnit), rows = round_up(end - begin, kTile);
  float* const o = scratch;
  float* const max = o + s.heads * rows * w;
  float* const sum = max + s.heads * rows;
  float* const scores = sum + s.heads * rows;
  bf16* const q = reinterpret_cast<bf16*>(scores + kTile * kTile);
  bf16* const tile = q + s.heads * rows * w;
  bf16* const kt = tile + kTile * w;
  bf16* const v = kt + kTile * w;
  bf16* const p = v + kTile * w;

  const MatrixUnit unit;
  float scale[kRows];
  std::fill_n(scale, kRows, 1.0f / std::sqrt(static_cast<float>(s.d)));
  for (std::int64_t h = 0; h < s.heads; ++h)
    for (std::int64_t i = 0; i < rows; i += kTile)
      copy_tile(s.q + (begin + i) * s.ldq + h * s.d, s.ldq, std::min(kTile, end - begin - i), s.d, q + (h * rows + i) * w, w);
  std::fill_n(o, s.heads * rows * w, 0.0f);
  std::fill_n(max, s.heads * rows, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, s.heads * rows, 0.0f);

  for (std::int64_t key = first_key(s, begin, end); key < end; key += kTile) {
    const std::int64_t n = std::min(kTile, s.queries - key);
    copy_tile(s.k + key * s.ldk, s.ldk, n, s.d, tile, w);
    transpose_pairs(tile, w, kt);
    copy_tile(s.v + key * s.ldv, s.ldv, n, s.d, tile, w);
    pair_rows(tile, w, v);
    for (std::int64_t i = std::max<std::int64_t>(0, key - begin) / kTile * kTile; i < end - begin; i += kTile) {
      Block blocks[kTile / kRows];
      bool any = false;
      for (std::int64_t r = 0; r < kTile && i + r < end - begin; r += kRows) {
        blocks[r / kRows] = visible_block(s.first, begin + i + r, end, key);
        any |= blocks[r / kRows].n > 0;
      }
      for (std::int64_t h = 0; any && h < s.heads; ++h) {
        const std::int64_t at = h * rows + i;
        std::fill_n(scores, kTile * kTile, 0.0f);
        bf16_product(kTile, kTile, w, q + at * w, w, kt, scores);
        for (std::int64_t r = 0; r < kTile; r += kRows) {
          const Block& block = blocks[r / kRows];
          float* const row = scores + r * kTile;
          if (block.n > 0) {
            float keep[kRows];
            multiply_rows(row, kTile, scale);
            softmax_step(row, block, max + at + r, sum + at + r, keep);
            if (std::any_of(keep, keep + kRows, [](float x) { return x != 1.0f; })) multiply_rows(o + (at + r) * w, w, keep);
          }
          round_rows(row, block.n, p + r * kTile);
        }
        bf16_product(kTile, w, kTile, p, kTile, v, o + at * w);
      }
    }
  }
  finish(s, begin, end, rows, w, o, max, sum);
}

template <class T>
void forward_any(const Group<T>& s, bool bf16_tiles, std::int64_t begin, std::int64_t end, float* scratch) {
  if constexpr (std::is_same_v<T, bf16>)
    if (bf16_tiles) return forward_rows_bf16(s, begin, end, scratch);
  forward_rows(s, begin, end, scratch);
}

// Runs f(group, begin, end, scratch) over `groups` and pieces of their queries; pieces are made smaller when there are few of them.
template <class F>
void for_chunks(Context& ctx, std::int64_t groups, std::int64_t queries, const AttentionShape& s, F&& f) {
  const std::int64_t tiles = (queries + kTile - 1) / kTile;
  const std::int64_t chunk = kTile * std::clamp<std::int64_t>(tiles * groups / (4 * ctx.threads().count()), 1, kChunkTiles);
  const std::int64_t chunks = (queries + chunk - 1) / chunk;
  // The last queries see the most keys: they go first.
  const std::int64_t heads = s.heads / s.kv_heads, most = std::min(chunk, queries);
  const WorkerScratch scratch =
      ctx.worker_scratch(std::max(forward_floats(heads, s.head_dim, most), forward_floats_bf16(heads, s.head_dim, most)));
  parallel_tasks(ctx.threads(), groups * chunks, [&](std::int64_t t, int worker) {
    const std::int64_t begin = (chunks - 1 - t / groups) * chunk;
    f(t % groups, begin, std::min(queries, begin + chunk), scratch.of(worker));
  });
}

}  // namespace

void attention(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  const std::int64_t heads = s.heads / s.kv_heads;
  const bool bf16_tiles = ctx.keep<Instructions>().matrix_unit;
  dispatch_float(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_chunks(ctx, s.batch * s.kv_heads, s.seq, s, [&](std::int64_t group, std::int64_t begin, std::int64_t end, float* scratch) {
      const std::int64_t b = group / s.kv_heads, h = group % s.kv_heads;
      const T* const row = qkv.as<T>() + b * s.seq * qkv.ld;
      forward_any(Group<T>{.q = row + h * heads * s.head_dim,
                           .k = row + (s.heads + h) * s.head_dim,
                           .v = row + (s.heads + s.kv_heads + h) * s.head_dim,
                           .ldq = qkv.ld,
                           .ldk = qkv.ld,
                           .ldv = qkv.ld,
                           .out = out.as<T>() + b * s.seq * out.ld + h * heads * s.head_dim,
                           .ldout = out.ld,
                           .lse = lse ? lse.as<float>() + (b * s.heads + h * heads) * s.seq : nullptr,
                           .first = first ? first.as<std::int32_t>() + b * s.seq : nullptr,
                           .queries = s.seq,
                           .heads = heads,
                           .d = s.head_dim},
                  bf16_tiles, begin, end, scratch);
    });
  });
}

}  // namespace bhyt::cpu
