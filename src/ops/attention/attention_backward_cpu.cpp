// The backward on the CPU. Scores are recomputed tile by tile from the forward's log-sum-exp.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/parallel.h"
#include "core/scratch.h"
#include "ops/attention/attention.h"
#include "ops/attention/tile.h"

namespace bhyt::cpu {

namespace {

// One key/value head of one sequence and the group of query heads that look at it.
template <class T>
struct Group {
  const T *q, *k, *v;  // q, out, dout and dq: of the group's first head
  const T *out, *dout;
  T *dq, *dk, *dv;
  std::int64_t ld, ldout, lddout, ldd;
  const float* lse;           // [heads, seq]
  const std::int32_t* first;  // by position, or null
  std::int64_t seq, heads, d;
};

struct Tiles {
  std::int64_t begin, end;
};

struct Wanted {
  bool q, kv;
};

// Memory of a task: what belongs to each key tile of its range, and to the query tile in work.
struct Workspace {
  std::int64_t w;  // padded head width
  float *keys, *q, *dout, *dq, *p, *ds, *lse, *delta;

  Workspace(std::int64_t width, std::int64_t key_tiles) : w(width) {
    struct Room;
    const std::int64_t tile = kTile * w;
    keys = scratch<Room>(key_tiles * 5 * tile + 3 * tile + 2 * kTile * kTile + 2 * kTile);
    q = keys + key_tiles * 5 * tile;
    dout = q + tile;
    dq = dout + tile;
    p = dq + tile;
    ds = p + kTile * kTile;
    lse = ds + kTile * kTile;
    delta = lse + kTile;
  }
  float* k(std::int64_t j) const { return keys + j * 5 * kTile * w; }
  float* kt(std::int64_t j) const { return k(j) + kTile * w; }
  float* vt(std::int64_t j) const { return k(j) + 2 * kTile * w; }
  float* dk(std::int64_t j) const { return k(j) + 3 * kTile * w; }
  float* dv(std::int64_t j) const { return k(j) + 4 * kTile * w; }
};

template <class T>
void load_keys(const Group<T>& s, Tiles keys, const Workspace& m) {
  for (std::int64_t j = 0; j < keys.end - keys.begin; ++j) {
    const std::int64_t key = (keys.begin + j) * kTile, n = std::min(kTile, s.seq - key);
    load_tile(s.v + key * s.ld, s.ld, n, s.d, 1.0f, m.k(j), m.w);
    transpose_tile(m.k(j), m.w, m.vt(j));
    load_tile(s.k + key * s.ld, s.ld, n, s.d, 1.0f, m.k(j), m.w);
    transpose_tile(m.k(j), m.w, m.kt(j));
    std::fill_n(m.dk(j), 2 * kTile * m.w, 0.0f);
  }
}

// Also delta = Σ dout·out by row: what the softmax's gradient subtracts.
template <class T>
void load_queries(const Group<T>& s, std::int64_t head, std::int64_t t, std::int64_t n, float scale, const Workspace& m) {
  const T* const out = s.out + t * s.ldout + head * s.d;
  load_tile(s.q + t * s.ld + head * s.d, s.ld, n, s.d, scale, m.q, m.w);
  load_tile(s.dout + t * s.lddout + head * s.d, s.lddout, n, s.d, 1.0f, m.dout, m.w);
  std::fill_n(m.dq, kTile * m.w, 0.0f);
  std::fill_n(m.lse, 2 * kTile, 0.0f);
  row_dots(m.dout, m.w, out, s.ldout, m.delta, n, s.d);
  std::copy_n(s.lse + head * s.seq + t, n, m.lse);
}

// The query tile in work (positions t … t + n − 1) against key tile j of the range, which starts at position `key`.
void tile_gradient(const std::int32_t* first, std::int64_t t, std::int64_t n, std::int64_t d, std::int64_t key, std::int64_t j,
                   Wanted wanted, const Workspace& m) {
  constexpr auto ones = [] {
    std::array<float, kRows> a{};
    a.fill(1.0f);
    return a;
  }();
  const std::int64_t depth = std::max<std::int64_t>(d, 2);  // the padding is zero, as below
  bool any = false;
  for (std::int64_t i = 0; i < n; i += kRows) {
    float* const p = m.p + i * kTile;
    float* const ds = m.ds + i * kTile;
    const Block block = visible_block(first, t + i, t + n, key);
    if (block.n == 0) {
      std::fill_n(p, kRows * kTile, 0.0f);
      std::fill_n(ds, kRows * kTile, 0.0f);
      continue;
    }
    any = true;
    product(block.n, depth, m.q + i * m.w, m.w, m.kt(j), kTile, p, kTile, m.lse + i);
    product(block.n, depth, m.dout + i * m.w, m.w, m.vt(j), kTile, ds, kTile, m.delta + i);
    softmax_gradient(p, ds, block);
    if (wanted.q) product_add(m.w, block.n, ds, kTile, m.k(j), m.w, m.dq + i * m.w, m.w, ones.data());
  }
  if (!any || !wanted.kv) return;
  for (std::int64_t c = 0; c < kTile; c += kRows) {
    // On the diagonal, rows above these columns see none of them (and were not computed there).
    const std::int64_t from = key == t ? c : 0;
    if (from >= n) break;
    const std::int64_t rows = std::max<std::int64_t>(n - from, 2);
    product_transposed_add(m.w, rows, m.p + from * kTile + c, kTile, m.dout + from * m.w, m.w, m.dv(j) + c * m.w, m.w);
    product_transposed_add(m.w, rows, m.ds + from * kTile + c, kTile, m.q + from * m.w, m.w, m.dk(j) + c * m.w, m.w);
  }
}

// What the query tiles owe to the key tiles: dq of these queries, when wanted, and dk and dv of these keys, when wanted.
template <class T>
void backward_range(const Group<T>& s, Tiles queries, Tiles keys, Wanted wanted) {
  const Workspace m(round_up(s.d, kCols), keys.end - keys.begin);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  std::array<float, kTile> scales, ones;
  scales.fill(scale);
  ones.fill(1.0f);
  load_keys(s, keys, m);
  for (std::int64_t head = 0; head < s.heads; ++head) {
    for (std::int64_t i = std::max(queries.begin, keys.begin); i < queries.end; ++i) {
      const std::int64_t t = i * kTile, n = std::min(kTile, s.seq - t);
      load_queries(s, head, t, n, scale, m);
      for (std::int64_t j = keys.begin; j < std::min(keys.end, i + 1); ++j)
        tile_gradient(s.first, t, n, s.d, j * kTile, j - keys.begin, wanted, m);
      if (wanted.q) store_rows(m.dq, m.w, scales.data(), s.dq + t * s.ldd + head * s.d, s.ldd, n, s.d);
    }
  }
  for (std::int64_t j = keys.begin; wanted.kv && j < keys.end; ++j) {
    const std::int64_t t = j * kTile, n = std::min(kTile, s.seq - t);
    store_rows(m.dk(j - keys.begin), m.w, ones.data(), s.dk + t * s.ldd, s.ldd, n, s.d);
    store_rows(m.dv(j - keys.begin), m.w, ones.data(), s.dv + t * s.ldd, s.ldd, n, s.d);
  }
}

// Sums run over the same tiles in the same order whether a group is one task or many: the bits do not change.
template <class F>
void for_groups(std::int64_t groups, std::int64_t seq, F&& f) {
  const std::int64_t tiles = (seq + kTile - 1) / kTile, threads = num_threads();
  // A group in one task costs five products a tile. Cut up, it costs seven, two of them recomputed, but keeps every thread busy.
  if (5 * ((groups + threads - 1) / threads) * threads <= 7 * groups || tiles == 1)
    return parallel_tasks(groups, [&](std::int64_t g) { f(g, Tiles{0, tiles}, Tiles{0, tiles}, Wanted{true, true}); });
  const std::int64_t piece = std::max<std::int64_t>(1, tiles * groups / (8 * threads)), pieces = (tiles + piece - 1) / piece;
  parallel_tasks(2 * groups * pieces, [&](std::int64_t task) {
    const std::int64_t g = task % groups, i = task / groups;
    const auto range = [&](std::int64_t at) { return Tiles{at * piece, std::min(tiles, (at + 1) * piece)}; };
    // The first keys are seen by the most queries, the last queries see the most keys: heavy tasks first.
    if (i % 2 == 0)
      f(g, Tiles{0, tiles}, range(i / 2), Wanted{.q = false, .kv = true});
    else
      f(g, range(pieces - 1 - i / 2), Tiles{0, range(pieces - 1 - i / 2).end}, Wanted{.q = true, .kv = false});
  });
}

}  // namespace

void attention_backward(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& s) {
  const std::int64_t heads = s.heads / s.kv_heads, d = s.head_dim;
  dispatch_float(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_groups(s.batch * s.kv_heads, s.seq, [&](std::int64_t group, Tiles queries, Tiles keys, Wanted wanted) {
      const std::int64_t b = group / s.kv_heads, h = group % s.kv_heads, t = b * s.seq;
      const std::int64_t q = h * heads * d, k = (s.heads + h) * d, v = (s.heads + s.kv_heads + h) * d;
      const T* const x = qkv.as<T>() + t * qkv.ld;
      T* const dx = dqkv.as<T>() + t * dqkv.ld;
      backward_range(Group<T>{.q = x + q,
                              .k = x + k,
                              .v = x + v,
                              .out = out.as<T>() + t * out.ld + q,
                              .dout = dout.as<T>() + t * dout.ld + q,
                              .dq = dx + q,
                              .dk = dx + k,
                              .dv = dx + v,
                              .ld = qkv.ld,
                              .ldout = out.ld,
                              .lddout = dout.ld,
                              .ldd = dqkv.ld,
                              .lse = lse.as<float>() + (b * s.heads + h * heads) * s.seq,
                              .first = first ? first.as<std::int32_t>() + t : nullptr,
                              .seq = s.seq,
                              .heads = heads,
                              .d = d},
                     queries, keys, wanted);
    });
  });
}

}  // namespace bhyt::cpu
