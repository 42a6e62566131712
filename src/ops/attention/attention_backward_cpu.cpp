// The backward on the CPU. Scores are recomputed tile by tile from the forward's log-sum-exp.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/threads.h"
#include "ops/attention/attention.h"
#include "ops/attention/tile_bf16.h"
#include "ops/gemm/instructions.h"

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

  static std::int64_t floats(std::int64_t width, std::int64_t key_tiles) {
    return (key_tiles * 5 + 3) * kTile * width + 2 * kTile * kTile + 2 * kTile;
  }
  Workspace(std::int64_t width, std::int64_t key_tiles, float* scratch) : w(width) {
    const std::int64_t tile = kTile * w;
    keys = scratch;
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
    transpose(m.k(j), kTile, m.w, m.vt(j));
    load_tile(s.k + key * s.ld, s.ld, n, s.d, 1.0f, m.k(j), m.w);
    transpose(m.k(j), kTile, m.w, m.kt(j));
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
void backward_range(const Group<T>& s, Tiles queries, Tiles keys, Wanted wanted, float* scratch) {
  const Workspace m(round_up(s.d, kCols), keys.end - keys.begin, scratch);
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

// The same with products of bf16 tiles: p and ds are rounded on their way into the second products, which yield dk and dv transposed.
struct WorkspaceBf16 {
  std::int64_t w;
  float *dkt, *dvt, *dq, *s, *ds, *lse, *delta;  // dkt and dvt: [w,kTile] a key tile
  bf16 *keys, *tile, *q, *qt, *dout, *doutt, *rounded, *p_pairs, *ds_pairs;

  static std::int64_t floats(std::int64_t width, std::int64_t key_tiles) {
    const std::int64_t tile_size = kTile * width, square = kTile * kTile;
    return (2 * key_tiles + 1) * tile_size + 2 * square + 2 * kTile + (3 * key_tiles + 5) * tile_size / 2 + 3 * square / 2;
  }
  WorkspaceBf16(std::int64_t width, std::int64_t key_tiles, float* scratch) : w(width) {
    const std::int64_t tile_size = kTile * w, square = kTile * kTile;
    dkt = scratch;
    dvt = dkt + key_tiles * tile_size;
    dq = dvt + key_tiles * tile_size;
    s = dq + tile_size;
    ds = s + square;
    lse = ds + square;
    delta = lse + kTile;
    keys = reinterpret_cast<bf16*>(delta + kTile);
    tile = keys + 3 * key_tiles * tile_size;
    q = tile + tile_size;
    qt = q + tile_size;
    dout = qt + tile_size;
    doutt = dout + tile_size;
    rounded = doutt + tile_size;
    p_pairs = rounded + square;
    ds_pairs = p_pairs + square;
  }
  bf16* k(std::int64_t j) const { return keys + j * 3 * kTile * w; }  // in pairs, as the next two
  bf16* kt(std::int64_t j) const { return k(j) + kTile * w; }
  bf16* vt(std::int64_t j) const { return k(j) + 2 * kTile * w; }
};

void load_keys(const Group<bf16>& s, Tiles keys, const WorkspaceBf16& m) {
  const std::int64_t tiles = keys.end - keys.begin;
  for (std::int64_t j = 0; j < tiles; ++j) {
    const std::int64_t key = (keys.begin + j) * kTile, n = std::min(kTile, s.seq - key);
    copy_tile(s.v + key * s.ld, s.ld, n, s.d, m.tile, m.w);
    transpose_pairs(m.tile, m.w, m.vt(j));
    copy_tile(s.k + key * s.ld, s.ld, n, s.d, m.tile, m.w);
    transpose_pairs(m.tile, m.w, m.kt(j));
    pair_rows(m.tile, m.w, m.k(j));
  }
  std::fill_n(m.dkt, 2 * tiles * kTile * m.w, 0.0f);
}

// lse and delta as what the scores' sums begin with: −lse before the scale, −delta.
void load_queries(const Group<bf16>& s, std::int64_t head, std::int64_t t, std::int64_t n, float scale, const WorkspaceBf16& m) {
  const auto both = [&](const bf16* from, std::int64_t ld, bf16* rows, bf16* transposed) {
    copy_tile(from, ld, n, s.d, rows, m.w);
    transpose_pairs(rows, m.w, m.tile);
    part_pairs(m.tile, m.w, transposed);
  };
  both(s.q + t * s.ld + head * s.d, s.ld, m.q, m.qt);
  const bf16* const dout = s.dout + t * s.lddout + head * s.d;
  both(dout, s.lddout, m.dout, m.doutt);
  std::fill_n(m.lse, 2 * kTile, 0.0f);
  load_tile(dout, s.lddout, n, s.d, -1.0f, m.dq, m.w);
  row_dots(m.dq, m.w, s.out + t * s.ldout + head * s.d, s.ldout, m.delta, n, s.d);
  for (std::int64_t i = 0; i < n; ++i) m.lse[i] = -s.lse[head * s.seq + t + i] / scale;
  std::fill_n(m.dq, kTile * m.w, 0.0f);
}

void tile_gradient(const Group<bf16>& s, std::int64_t t, std::int64_t n, std::int64_t key, std::int64_t j, Wanted wanted, float scale,
                   const WorkspaceBf16& m) {
  Block blocks[kTile / kRows];
  bool any = false;
  for (std::int64_t r = 0; r < n; r += kRows) {
    blocks[r / kRows] = visible_block(s.first, t + r, t + n, key);
    any |= blocks[r / kRows].n > 0;
  }
  if (!any) return;
  for (std::int64_t r = 0; r < kTile; ++r) {
    std::fill_n(m.s + r * kTile, kTile, m.lse[r]);
    std::fill_n(m.ds + r * kTile, kTile, m.delta[r]);
  }
  bf16_product(kTile, kTile, m.w, m.q, m.w, m.kt(j), m.s);
  bf16_product(kTile, kTile, m.w, m.dout, m.w, m.vt(j), m.ds);
  float scales[kRows];
  std::fill_n(scales, kRows, scale);
  for (std::int64_t r = 0; r < kTile; r += kRows) {
    const Block& block = blocks[r / kRows];
    float *const p = m.s + r * kTile, *const ds = m.ds + r * kTile;
    if (block.n > 0) {
      multiply_rows(p, kTile, scales);
      softmax_gradient(p, ds, block);
    }
    if (wanted.q) round_rows(ds, block.n, m.rounded + r * kTile);
    if (wanted.kv) {
      round_pairs(p, block.n, m.p_pairs + r * kTile);
      round_pairs(ds, block.n, m.ds_pairs + r * kTile);
    }
  }
  if (wanted.q) bf16_product(kTile, m.w, kTile, m.rounded, kTile, m.k(j), m.dq);
  if (!wanted.kv) return;
  bf16_product(m.w, kTile, kTile, m.doutt, kTile, m.p_pairs, m.dvt + j * kTile * m.w);
  bf16_product(m.w, kTile, kTile, m.qt, kTile, m.ds_pairs, m.dkt + j * kTile * m.w);
}

void backward_range_bf16(const Group<bf16>& s, Tiles queries, Tiles keys, Wanted wanted, float* scratch) {
  const MatrixUnit unit;
  const WorkspaceBf16 m(round_up(s.d, kUnit), keys.end - keys.begin, scratch);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  std::array<float, kTile> scales, ones;
  scales.fill(scale);
  ones.fill(1.0f);
  load_keys(s, keys, m);
  for (std::int64_t head = 0; head < s.heads; ++head)
    for (std::int64_t i = std::max(queries.begin, keys.begin); i < queries.end; ++i) {
      const std::int64_t t = i * kTile, n = std::min(kTile, s.seq - t);
      load_queries(s, head, t, n, scale, m);
      for (std::int64_t j = keys.begin; j < std::min(keys.end, i + 1); ++j)
        tile_gradient(s, t, n, j * kTile, j - keys.begin, wanted, scale, m);
      if (wanted.q) store_rows(m.dq, m.w, scales.data(), s.dq + t * s.ldd + head * s.d, s.ldd, n, s.d);
    }
  for (std::int64_t j = keys.begin; wanted.kv && j < keys.end; ++j) {
    const std::int64_t t = j * kTile, n = std::min(kTile, s.seq - t), at = (j - keys.begin) * kTile * m.w;
    transpose(m.dkt + at, m.w, kTile, m.dq);
    store_rows(m.dq, m.w, scales.data(), s.dk + t * s.ldd, s.ldd, n, s.d);
    transpose(m.dvt + at, m.w, kTile, m.dq);
    store_rows(m.dq, m.w, ones.data(), s.dv + t * s.ldd, s.ldd, n, s.d);
  }
}

// Sums run over the same tiles in the same order whether a group is one task or many: the bits do not change.
template <class F>
void for_groups(Context& ctx, std::int64_t groups, std::int64_t seq, std::int64_t d, F&& f) {
  const std::int64_t tiles = (seq + kTile - 1) / kTile, threads = ctx.threads().count();
  const WorkerScratch scratch =
      ctx.worker_scratch(std::max(Workspace::floats(round_up(d, kCols), tiles), WorkspaceBf16::floats(round_up(d, kUnit), tiles)));
  // A group in one task costs five products a tile. Cut up, it costs seven, two of them recomputed, but keeps every thread busy.
  if (5 * ((groups + threads - 1) / threads) * threads <= 7 * groups || tiles == 1)
    return parallel_tasks(ctx.threads(), groups, [&](std::int64_t g, int worker) {
      f(g, Tiles{0, tiles}, Tiles{0, tiles}, Wanted{true, true}, scratch.of(worker));
    });
  const std::int64_t piece = std::max<std::int64_t>(1, tiles * groups / (8 * threads)), pieces = (tiles + piece - 1) / piece;
  parallel_tasks(ctx.threads(), 2 * groups * pieces, [&](std::int64_t task, int worker) {
    const std::int64_t g = task % groups, i = task / groups;
    const auto range = [&](std::int64_t at) { return Tiles{at * piece, std::min(tiles, (at + 1) * piece)}; };
    // The first keys are seen by the most queries, the last queries see the most keys: heavy tasks first.
    if (i % 2 == 0)
      f(g, Tiles{0, tiles}, range(i / 2), Wanted{.q = false, .kv = true}, scratch.of(worker));
    else
      f(g, range(pieces - 1 - i / 2), Tiles{0, range(pieces - 1 - i / 2).end}, Wanted{.q = true, .kv = false}, scratch.of(worker));
  });
}

}  // namespace

void attention_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const Tensor& dout,
                        const Tensor& dqkv, const AttentionShape& s) {
  const std::int64_t heads = s.heads / s.kv_heads, d = s.head_dim;
  const bool bf16_tiles = ctx.keep<Instructions>().matrix_unit;
  dispatch_float(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_groups(ctx, s.batch * s.kv_heads, s.seq, d, [&](std::int64_t group, Tiles queries, Tiles keys, Wanted wanted, float* scratch) {
      const std::int64_t b = group / s.kv_heads, h = group % s.kv_heads, t = b * s.seq;
      const std::int64_t q = h * heads * d, k = (s.heads + h) * d, v = (s.heads + s.kv_heads + h) * d;
      const T* const x = qkv.as<T>() + t * qkv.ld;
      T* const dx = dqkv.as<T>() + t * dqkv.ld;
      const Group<T> own{.q = x + q,
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
                         .d = d};
      if constexpr (std::is_same_v<T, bf16>)
        if (bf16_tiles) return backward_range_bf16(own, queries, keys, wanted, scratch);
      backward_range(own, queries, keys, wanted, scratch);
    });
  });
}

}  // namespace bhyt::cpu
