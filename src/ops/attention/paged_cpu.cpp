// Attention over pages on the CPU: keys and values are read in their own type, where they lie. A row's bits do not depend on the others:
// every score is one dot product, and every sum goes over the keys in order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/threads.h"
#include "ops/attention/paged.h"
#include "ops/attention/tile.h"
#include "ops/gemm/dot.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kQueries = 8;  // rows of a piece that share each key they read

// Some queries of one sequence, of the heads that share a key/value head.
template <class T>
struct Group {
  const T *q, *k, *v;  // of the group's first head; k and v: of the pages
  std::int64_t ldq, ld;
  T* out;
  std::int64_t ldout;
  const std::int32_t* table;  // of the sequence
  std::int64_t past, queries, heads, d;

  const T* row(const T* base, std::int64_t position) const {
    return base + (table[position / kPageTokens] * kPageTokens + position % kPageTokens) * ld;
  }
};

std::int64_t scratch_floats(std::int64_t heads, std::int64_t d, std::int64_t queries, std::int64_t length) {
  return heads * queries * (2 * d + round_up(length, kCols) + 1);
}

template <class T>
void attend(const Group<T>& s, float* scratch) {
  const std::int64_t total = s.past + s.queries, n = s.heads * s.queries, width = round_up(total, kCols);
  float* const q = scratch;
  float* const o = q + n * s.d;
  float* const p = o + n * s.d;
  float* const inverse = p + n * width;
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  const auto rows_of = [&](const T* base, std::int64_t key, const T** rows) {
    for (std::int64_t r = 0; r < 4; ++r) rows[r] = s.row(base, std::min(key + r, total - 1));
  };
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < s.d; ++j) q[i * s.d + j] = scale * to_float(s.q[i / s.heads * s.ldq + i % s.heads * s.d + j]);
  std::fill_n(o, n * s.d, 0.0f);
  const T* rows[4];
  for (std::int64_t key = 0; key < total; key += 4) {
    rows_of(s.k, key, rows);
    for (std::int64_t i = 0; i < n; ++i) dot4(q + i * s.d, rows, s.d, p + i * width + key);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t seen = s.past + i / s.heads + 1;
    std::fill(p + i * width + seen, p + (i + 1) * width, -std::numeric_limits<float>::infinity());
    inverse[i] = 1.0f / softmax_row(p + i * width, width);
  }
  for (std::int64_t key = 0; key < total; key += 4) {
    rows_of(s.v, key, rows);
    for (std::int64_t i = 0; i < n; ++i) add4(o + i * s.d, p + i * width + key, rows, s.d);
  }
  for (std::int64_t i = 0; i < n; ++i)
    store_rows(o + i * s.d, s.d, inverse + i, s.out + i / s.heads * s.ldout + i % s.heads * s.d, s.ldout, 1, s.d);
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
}

void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at, const AttentionShape& s) {
  struct Part {
    const PagedPiece* piece;
    std::int64_t begin;
  };
  std::vector<Part> parts;
  std::int64_t longest = 0;
  for (const PagedPiece& p : at.pieces) {
    for (std::int64_t begin = 0; begin < p.rows; begin += kQueries) parts.push_back({&p, begin});
    longest = std::max(longest, p.past + p.rows);
  }
  const std::int64_t heads = s.heads / s.kv_heads;
  const WorkerScratch scratch = ctx.worker_scratch(scratch_floats(heads, s.head_dim, kQueries, longest));
  dispatch_float(q.dtype, [&](auto zero) {
    using T = decltype(zero);
    parallel_tasks(ctx.threads(), std::ssize(parts) * s.kv_heads, [&](std::int64_t t, int worker) {
      const auto& [piece, begin] = parts[static_cast<std::size_t>(t / s.kv_heads)];
      const std::int64_t h = t % s.kv_heads, row = piece->row + begin;
      attend(Group<T>{.q = q.as<T>() + row * q.ld + h * heads * s.head_dim,
                      .k = pages.as<T>() + h * s.head_dim,
                      .v = pages.as<T>() + (s.kv_heads + h) * s.head_dim,
                      .ldq = q.ld,
                      .ld = pages.ld,
                      .out = out.as<T>() + row * out.ld + h * heads * s.head_dim,
                      .ldout = out.ld,
                      .table = at.table.as<std::int32_t>() + piece->sequence * at.table.cols(),
                      .past = piece->past + begin,
                      .queries = std::min(kQueries, piece->rows - begin),
                      .heads = heads,
                      .d = s.head_dim},
             scratch.of(worker));
    });
  });
}

void reserve_attention_paged(Context& ctx, std::int64_t, std::int64_t length, const AttentionShape& s) {
  ctx.worker_scratch(scratch_floats(s.heads / s.kv_heads, s.head_dim, kQueries, length));
}

}  // namespace bhyt::cpu
