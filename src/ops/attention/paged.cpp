// Checks and dispatch of attention over pages.
#include "ops/attention/paged.h"

#include <algorithm>

#include "core/check.h"
#include "ops/rope/rope.h"

namespace bhyt {

namespace {

void check_rows(const char* op, const Tensor& x, const Tensor& pages, const PagedRows& at) {
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "[{}] expected fp32 or bf16, got {}", op, name_of(x.dtype));
  check(pages.dtype == x.dtype && pages.device == x.device, "[{}] expected pages {} on {}, got {} on {}", op, name_of(x.dtype), x.device,
        name_of(pages.dtype), pages.device);
  for (const Tensor* t : {&at.positions, &at.sequences, &at.table})
    check(t->dtype == DType::i32 && t->device == x.device && t->contiguous(), "[{}] expected int32 on {}, got {} on {}", op, x.device,
          name_of(t->dtype), t->device);
  check(at.positions.size() == x.rows() && at.sequences.size() == x.rows(), "[{}] expected {} positions and sequences, got {} and {}", op,
        x.rows(), at.positions.size(), at.sequences.size());
  std::int64_t row = 0;
  for (const PagedPiece& p : at.pieces) {
    check(p.row == row && p.rows > 0 && p.past >= 0 && p.sequence >= 0 && p.sequence < at.table.rows() &&
              p.past + p.rows <= at.table.cols() * kPageTokens,
          "[{}] expected pieces one behind the other, within a table {}, got rows {} + {} of sequence {} behind {}", op,
          shape_string(at.table), p.row, p.rows, p.sequence, p.past);
    row += p.rows;
  }
  check(row == x.rows(), "[{}] expected pieces of {} rows in all, got {}", op, x.rows(), row);
  check(at.copies.empty() || !x.device.is_cuda(), "[{}] expected no copies of pages on a GPU, got {}", op, at.copies.size());
  for (const PageCopy& c : at.copies)
    check(c.from >= 0 && c.to >= 0 && std::max(c.from, c.to) < pages.rows() / kPageTokens && c.positions <= kPageTokens,
          "[{}] expected a copy of up to {} positions within {} pages, got {} from page {} to {}", op, kPageTokens,
          pages.rows() / kPageTokens, c.positions, c.from, c.to);
}

}  // namespace

void check_rows_of_pages(const char* op, const Tensor& qkv, const Tensor& table, const Tensor& pages, const PagedRows& at,
                         const AttentionShape& s) {
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  check_rows(op, qkv, pages, at);
  check(qkv.cols() == q + 2 * kv && pages.cols() == 2 * kv && table.cols() == s.head_dim,
        "[{}] expected qkv with {} columns, pages with {} and a table with {}, got {}, {} and {}", op, q + 2 * kv, 2 * kv, s.head_dim,
        shape_string(qkv), shape_string(pages), shape_string(table));
}

void rope_to_pages(Context& ctx, const Tensor& qkv, const Tensor& table, const Tensor& pages, const PagedRows& at,
                   const AttentionShape& s) {
  const std::int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  if (!ctx.device().is_cuda()) {
    rope(ctx, qkv, table, {.heads = s.heads + s.kv_heads, .head_dim = s.head_dim, .positions = at.positions});
    return write_pages(ctx, qkv.col_slice(q, 2 * kv), pages, at);
  }
  check_rows_of_pages("rope_to_pages", qkv, table, pages, at, s);
  const Operation operation(ctx, "rope_to_pages", profile::Kind::rope, qkv.device);
  cuda::rope_to_pages(ctx, qkv, table, pages, at, s);
}

void write_pages(Context& ctx, const Tensor& kv, const Tensor& pages, const PagedRows& at) {
  check_rows("write_pages", kv, pages, at);
  check(kv.cols() == pages.cols(), "[write_pages] expected rows as wide as the pages' {}, got {}", pages.cols(), kv.cols());
  const Operation operation(ctx, "write_pages", profile::Kind::attention, kv.device);
  if (ctx.device().is_cuda())
    cuda::write_pages(ctx, kv, pages, at);
  else
    cpu::write_pages(ctx, kv, pages, at);
}

void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at, const AttentionShape& s) {
  check_rows("attention_paged", q, pages, at);
  check(s.heads > 0 && s.kv_heads > 0 && s.head_dim > 0 && s.heads % s.kv_heads == 0,
        "[attention_paged] expected query heads that are a multiple of the key/value heads, got {}, {}, width {}", s.heads, s.kv_heads,
        s.head_dim);
  check(q.cols() == s.heads * s.head_dim && out.cols() == q.cols() && out.rows() == q.rows() && pages.cols() == 2 * s.kv_heads * s.head_dim,
        "[attention_paged] expected q and out [{}, {}] and pages of {} columns, got {}, {} and {}", q.rows(), s.heads * s.head_dim,
        2 * s.kv_heads * s.head_dim, shape_string(q), shape_string(out), shape_string(pages));
  check(out.dtype == q.dtype && out.device == q.device, "[attention_paged] expected out {} on {}, got {} on {}", name_of(q.dtype), q.device,
        name_of(out.dtype), out.device);
  const Operation operation(ctx, "attention_paged", profile::Kind::attention, q.device);
  if (ctx.device().is_cuda())
    cuda::attention_paged(ctx, q, pages, out, at, s);
  else
    cpu::attention_paged(ctx, q, pages, out, at, s);
}

void reserve_attention_paged(Context& ctx, std::int64_t rows, std::int64_t length, const AttentionShape& shape) {
  if (ctx.device().is_cuda())
    cuda::reserve_attention_paged(ctx, rows, length, shape);
  else
    cpu::reserve_attention_paged(ctx, rows, length, shape);
}

}  // namespace bhyt
