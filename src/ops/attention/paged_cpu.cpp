// Attention over pages on the CPU: keys and values are read in their own type, where they lie. A row's bits do not depend on the others:
// scores are products by row (gemm/row_tiles.h, row_mmla.h), and every sum goes over the keys in order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/threads.h"
#include "ops/attention/paged.h"
#include "ops/attention/tile.h"
#include "ops/gemm/instructions.h"
#include "ops/gemm/row_mmla.h"
#include "ops/gemm/row_tiles.h"

namespace bhyt::cpu {

namespace {

// Queries of a piece that are worked on together: with the heads that share their keys, this many rows.
constexpr std::int64_t kTogether = 32, kFewTogether = 8;
std::int64_t queries_together(std::int64_t heads) { return std::max<std::int64_t>(1, kTogether / heads); }

// Some queries of one sequence, of the heads that share a key/value head.
template <class T>
struct Group {
  const T *q, *k, *v;  // of the group's first head; k and v: of the pages
  std::int64_t ldq, ld;
  T* out;
  std::int64_t ldout;
  const std::int32_t* table;  // of the sequence
  std::int64_t past, queries, heads, d;
  bool mmla;  // makes the scores, else vectors do,
  int lanes;  // of so many lanes

  // The same of the n-th key/value head behind it.
  Group other(std::int64_t n) const {
    Group g = *this;
    g.q += n * heads * d;
    g.out += n * heads * d;
    g.k += n * d;
    g.v += n * d;
    return g;
  }
  std::int64_t rows() const { return heads * queries; }
  std::int64_t keys() const { return past + queries; }
  std::int64_t seen_by(std::int64_t row) const { return past + row / heads + 1; }  // keys, from the first on
  const T* page(const T* base, std::int64_t key) const { return base + table[key / kPageTokens] * kPageTokens * ld; }
};

// What a group needs to compute in, one behind the other.
struct Scratch {
  float *panel, *q, *values, *o, *p, *inverse, *one_row;
  std::int64_t ldq, ldo, ldp;

  // Some rows of keys, or of queries before they are packed.
  static std::int64_t panel_size(std::int64_t d) { return std::max(kPanelFloats, kMmlaRows * d); }
  // Of the queries, either way.
  static std::int64_t packed(std::int64_t rows, std::int64_t d) {
    const std::int64_t groups = (rows + kMmlaRows - 1) / kMmlaRows * mmla_distance(d) / static_cast<std::int64_t>(sizeof(float));
    return std::max(rows * row_distance(d), groups);
  }
  static std::int64_t size(std::int64_t rows, std::int64_t d, std::int64_t keys) {
    const std::int64_t n = round_up(rows, kRows), width = round_up(d, kCols);
    return round_up(
        panel_size(d) + packed(rows, d) + kPageTokens * width + n * width + n * (round_up(keys, kPageTokens) + 1) + std::max(d, kRows), 64);
  }
  Scratch(float* at, std::int64_t rows, std::int64_t d, std::int64_t keys)
      : ldq(row_distance(d)), ldo(round_up(d, kCols)), ldp(round_up(keys, kPageTokens)) {
    const std::int64_t n = round_up(rows, kRows);
    panel = at;
    q = panel + panel_size(d);
    values = q + packed(rows, d);
    o = values + kPageTokens * ldo;
    p = o + n * ldo;
    inverse = p + n * ldp;
    one_row = inverse + n;
  }
};

template <class T>
float score_scale(const Group<T>& g) {
  return 1.0f / std::sqrt(static_cast<float>(g.d));
}

// Rows of q, by query and then by head, as the products want them: scaled, or as they are where they stay in bf16.
template <class T>
void load_queries(const Group<T>& g, const Scratch& s) {
  const auto row_of = [&](std::int64_t i) { return g.q + i / g.heads * g.ldq + i % g.heads * g.d; };
  if constexpr (std::is_same_v<T, bf16>)
    if (g.mmla) {
      auto* const rows = reinterpret_cast<bf16*>(s.panel);
      for (std::int64_t i = 0; i < g.rows(); i += kMmlaRows) {
        const std::int64_t n = std::min(kMmlaRows, g.rows() - i);
        for (std::int64_t r = 0; r < n; ++r) std::copy_n(row_of(i + r), g.d, rows + r * g.d);
        pack_mmla<bf16>(rows, g.d, n, g.d, g.rows() == 1, reinterpret_cast<char*>(s.q) + i / kMmlaRows * mmla_distance(g.d), nullptr);
      }
      return;
    }
  for (std::int64_t i = 0; i < g.rows(); ++i) {
    const T* const q = row_of(i);
    for (std::int64_t j = 0; j < g.d; ++j) s.one_row[j] = score_scale(g) * to_float(q[j]);
    pack_row(s.one_row, g.d, g.rows() >= kManyRows, g.lanes, s.q + i * s.ldq);
  }
}

// Rows [first, first + rows) of the scores of a page, as far as one of them sees its keys.
template <class T>
void page_scores(const Group<T>& g, const Scratch& s, std::int64_t key, std::int64_t first, std::int64_t rows) {
  const std::int64_t seen = std::min(kPageTokens, g.seen_by(first + rows - 1) - key);
  if (seen <= 0) return;
  if constexpr (std::is_same_v<T, bf16>)
    if (g.mmla)
      return run(MmlaTask<bf16>{.rows = rows,
                                .outs = seen,
                                .depth = g.d,
                                .alone = g.rows() == 1,
                                .x = reinterpret_cast<const char*>(s.q) + first / kMmlaRows * mmla_distance(g.d),
                                .w = g.page(g.k, key),
                                .ldw = g.ld,
                                .sums = s.p + first * s.ldp + key,
                                .ldsums = s.ldp});
  static_assert(kPageTokens <= kManyOuts);
  run(RowTask<T>{.rows = rows,
                 .outs = seen,
                 .depth = g.d,
                 .many = g.rows() >= kManyRows,
                 .x = s.q + first * s.ldq,
                 .ldx = s.ldq,
                 .w = g.page(g.k, key),
                 .ldw = g.ld,
                 .sums = s.p + first * s.ldp + key,
                 .ldsums = s.ldp,
                 .panel = s.panel},
      g.lanes);
}

// Where not all rows see a page to its end, the first half of them sees less of it.
template <class T>
void scores_of_page(const Group<T>& g, const Scratch& s, std::int64_t key) {
  static_assert(kMmlaRows % kManyRows == 0);
  const std::int64_t half = g.rows() / 2 / kMmlaRows * kMmlaRows, cut = key + kPageTokens > g.seen_by(0) ? half : 0;
  if (cut > 0) page_scores(g, s, key, 0, cut);
  page_scores(g, s, key, cut, g.rows() - cut);
}

// A page's values in fp32 with zeros behind the last key, and how far apart their rows are: where they lie if they are like that there.
template <class T>
std::pair<const float*, std::int64_t> values_of(const Group<T>& g, const Scratch& s, std::int64_t key) {
  const T* const v = g.page(g.v, key);
  const std::int64_t there = std::min(kPageTokens, g.keys() - key);
  if constexpr (std::is_same_v<T, float>)
    if (there == kPageTokens && g.d == s.ldo) return {v, g.ld};
  for (std::int64_t k = 0; k < there; ++k) {
    float* const row = s.values + k * s.ldo;
    for (std::int64_t j = 0; j < g.d; ++j) row[j] = to_float(v[k * g.ld + j]);
    std::fill(row + g.d, row + s.ldo, 0.0f);
  }
  std::fill(s.values + there * s.ldo, s.values + kPageTokens * s.ldo, 0.0f);
  return {s.values, s.ldo};
}

bool all_finite(const float* rows, std::int64_t ld, std::int64_t from, std::int64_t to, std::int64_t n) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  bool non_finite = false;
  for (std::int64_t i = from; i < to; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      std::uint32_t bits;
      std::memcpy(&bits, rows + i * ld + j, sizeof bits);
      non_finite |= (bits & kExponent) == kExponent;
    }
  return !non_finite;
}

// The same for kRows rows from `first` on where a key that some of them do not see has values that are not finite, of which 0 times is not
// 0: each query by itself, with zeros in the place of what it does not see.
template <class T>
void add_only_what_is_seen(const Group<T>& g, const Scratch& s, std::int64_t key, std::int64_t first,
                           const std::pair<const float*, std::int64_t>& values) {
  const std::int64_t end = std::min(first + kRows, g.rows());
  std::vector<float> own(static_cast<std::size_t>(kPageTokens * s.ldo)), sums(static_cast<std::size_t>(kRows * s.ldo));
  for (std::int64_t i = first; i < end;) {
    const std::int64_t seen = std::min(kPageTokens, g.seen_by(i) - key), next = std::min((i / g.heads + 1) * g.heads, end);
    if (seen > 0) {
      std::fill(own.begin(), own.end(), 0.0f);
      for (std::int64_t k = 0; k < seen; ++k) std::copy_n(values.first + k * values.second, s.ldo, own.data() + k * s.ldo);
      std::copy_n(s.o + first * s.ldo, kRows * s.ldo, sums.data());
      product_add(s.ldo, std::max<std::int64_t>(seen, 2), s.p + first * s.ldp + key, s.ldp, own.data(), s.ldo, sums.data(), s.ldo,
                  s.one_row);
      std::copy_n(sums.data() + (i - first) * s.ldo, (next - i) * s.ldo, s.o + i * s.ldo);
    }
    i = next;
  }
}

// o += p · values of a page, up to the last key that one of kRows rows sees; behind those of the others are zeros.
template <class T>
void add_values_of_page(const Group<T>& g, const Scratch& s, std::int64_t key) {
  const std::pair<const float*, std::int64_t> values = values_of(g, s, key);
  for (std::int64_t i = 0; i < g.rows(); i += kRows) {
    const std::int64_t seen = std::min(kPageTokens, g.seen_by(std::min(i + kRows, g.rows()) - 1) - key);
    if (seen <= 0) continue;
    const std::int64_t taken = std::max<std::int64_t>(seen, 2), by_all = std::clamp<std::int64_t>(g.seen_by(i) - key, 0, taken);
    if (!all_finite(values.first, values.second, by_all, taken, g.d))
      add_only_what_is_seen(g, s, key, i, values);
    else
      product_add(s.ldo, taken, s.p + i * s.ldp + key, s.ldp, values.first, values.second, s.o + i * s.ldo, s.ldo, s.one_row);
  }
}

// Scores become what a row takes of its values, but for a factor.
template <class T>
void softmax(const Group<T>& g, const Scratch& s) {
  const std::int64_t n = round_up(g.rows(), kRows);
  for (std::int64_t i = 0; i < g.rows(); ++i) {
    const std::int64_t seen = g.seen_by(i), end = round_up(seen, kCols);
    float* const row = s.p + i * s.ldp;
    if (g.mmla)
      for (std::int64_t k = 0; k < seen; ++k) row[k] *= score_scale(g);
    std::fill(row + seen, row + end, -std::numeric_limits<float>::infinity());
    s.inverse[i] = 1.0f / softmax_row(row, end);
    std::fill(row + end, row + s.ldp, 0.0f);
  }
  std::fill(s.p + g.rows() * s.ldp, s.p + n * s.ldp, 0.0f);
  std::fill_n(s.o, n * s.ldo, 0.0f);
  std::fill_n(s.one_row, kRows, 1.0f);
}

// Some key/value heads of the same queries, from `first` on. Page by page: what heads next to each other have of a page lies together.
template <class T>
void attend(const Group<T>& first, std::int64_t heads, float* memory) {
  const std::int64_t size = Scratch::size(first.rows(), first.d, first.keys());
  const auto each = [&](auto&& f) {
    for (std::int64_t h = 0; h < heads; ++h) f(first.other(h), Scratch(memory + h * size, first.rows(), first.d, first.keys()));
  };
  each([](const Group<T>& g, const Scratch& s) { load_queries(g, s); });
  for (std::int64_t key = 0; key < first.keys(); key += kPageTokens)
    each([&](const Group<T>& g, const Scratch& s) { scores_of_page(g, s, key); });
  each([](const Group<T>& g, const Scratch& s) { softmax(g, s); });
  for (std::int64_t key = 0; key < first.keys(); key += kPageTokens)
    each([&](const Group<T>& g, const Scratch& s) { add_values_of_page(g, s, key); });
  each([](const Group<T>& g, const Scratch& s) {
    for (std::int64_t i = 0; i < g.rows(); ++i)
      store_rows(s.o + i * s.ldo, s.ldo, s.inverse + i, g.out + i / g.heads * g.ldout + i % g.heads * g.d, g.ldout, 1, g.d);
  });
}

// How many key/value heads a task has: one for many rows, whose scores are large; for single queries as many as leave every thread some.
std::int64_t heads_together(Context& ctx, std::int64_t parts, std::int64_t rows, std::int64_t kv_heads) {
  if (rows > kFewTogether) return 1;
  std::int64_t n = 1;
  while (kv_heads % (2 * n) == 0 && parts * kv_heads / (2 * n) >= 2 * ctx.threads().count()) n *= 2;
  return n;
}

}  // namespace

void write_pages(Context& ctx, const Tensor& kv, const Tensor& pages, const PagedRows& at) {
  const std::size_t bytes = static_cast<std::size_t>(kv.cols()) * size_of(kv.dtype);
  const auto* positions = at.positions.as<std::int32_t>();
  const auto* sequences = at.sequences.as<std::int32_t>();
  parallel_for(ctx.threads(), kv.rows(), static_cast<std::int64_t>(65536 / (bytes + 1)) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t page = at.table.as<std::int32_t>()[sequences[i] * at.table.cols() + positions[i] / kPageTokens];
      std::memcpy(pages.row_slice(page * kPageTokens + positions[i] % kPageTokens, 1).data, kv.row_slice(i, 1).data, bytes);
    }
  });
  for (const PageCopy& c : at.copies)
    for (std::int64_t i = 0; i < c.positions; ++i)
      std::memcpy(pages.row_slice(c.to * kPageTokens + i, 1).data, pages.row_slice(c.from * kPageTokens + i, 1).data, bytes);
}

void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at, const AttentionShape& s) {
  struct Part {
    const PagedPiece* piece;
    std::int64_t begin;
  };
  const std::int64_t heads = s.heads / s.kv_heads, together = queries_together(heads);
  std::vector<Part> parts;
  std::int64_t longest = 0, most_rows = 0;
  for (const PagedPiece& p : at.pieces) {
    for (std::int64_t begin = 0; begin < p.rows; begin += together) parts.push_back({&p, begin});
    longest = std::max(longest, p.past + p.rows);
    most_rows = std::max(most_rows, heads * std::min(p.rows, together));
  }
  const Instructions& has = ctx.keep<Instructions>();
  const std::int64_t some = heads_together(ctx, std::ssize(parts), most_rows, s.kv_heads);
  const WorkerScratch scratch = ctx.worker_scratch(some * Scratch::size(most_rows, s.head_dim, longest));
  dispatch_float(q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t tasks = s.kv_heads / some;
    parallel_tasks(ctx.threads(), std::ssize(parts) * tasks, [&](std::int64_t t, int worker) {
      const auto& [piece, begin] = parts[static_cast<std::size_t>(t / tasks)];
      const std::int64_t h = t % tasks * some, row = piece->row + begin;
      attend(Group<T>{.q = q.as<T>() + row * q.ld + h * heads * s.head_dim,
                      .k = pages.as<T>() + h * s.head_dim,
                      .v = pages.as<T>() + (s.kv_heads + h) * s.head_dim,
                      .ldq = q.ld,
                      .ld = pages.ld,
                      .out = out.as<T>() + row * out.ld + h * heads * s.head_dim,
                      .ldout = out.ld,
                      .table = at.table.as<std::int32_t>() + piece->sequence * at.table.cols(),
                      .past = piece->past + begin,
                      .queries = std::min(together, piece->rows - begin),
                      .heads = heads,
                      .d = s.head_dim,
                      .mmla = std::is_same_v<T, bf16> && has.mmla_for(DType::bf16),
                      .lanes = has.lanes},
             some, scratch.of(worker));
    });
  });
}

void reserve_attention_paged(Context& ctx, std::int64_t rows, std::int64_t length, const AttentionShape& s) {
  const std::int64_t heads = s.heads / s.kv_heads, most = heads * std::min(rows, queries_together(heads));
  ctx.worker_scratch(
      std::max(Scratch::size(most, s.head_dim, length), s.kv_heads * Scratch::size(std::min(most, kFewTogether), s.head_dim, length)));
}

}  // namespace bhyt::cpu
