// Attention of sequences that are being continued. Their keys and values lie in pages, which need not follow one another in memory, and
// which several sequences that begin alike may share.
#pragma once

#include <span>

#include "ops/attention/attention.h"

namespace bhyt {

constexpr std::int64_t kPageTokens = 32;  // positions in a page

// Rows of one call that follow one another in a sequence.
struct PagedPiece {
  std::int64_t row = 0, rows = 1;  // in the call
  std::int64_t past = 0;           // positions of the sequence before them
  std::int64_t sequence = 0;       // row of the table
};

// The first `positions` of a page are to be those of another one too, which holds them or gets them in the same call.
struct PageCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t positions = 0;
};

// Where the rows of a call stand. Row i sees the positions 0…positions[i] of its sequence; position p lies in row
// table[sequences[i]][p / kPageTokens] · kPageTokens + p % kPageTokens of the pages.
struct PagedRows {
  Tensor positions, sequences;         // int32 [N]
  Tensor table;                        // int32 [S, P]
  std::span<const PagedPiece> pieces;  // the same by piece, on the host
  std::span<const PageCopy> copies;    // on the host, one after the other behind what is written; on a CPU only
  std::int64_t longest = 0;            // work is laid out for sequences at least this long: a recorded call may be replayed for longer ones
};

// Queries and keys of qkv [N, (H+2K)·D] rotated in place (rope: rope_table), and keys and values to their places in pages [·, 2·K·D].
void rope_to_pages(Context& ctx, const Tensor& qkv, const Tensor& rope, const Tensor& pages, const PagedRows& at,
                   const AttentionShape& shape);

// Error unless these fit together so.
void check_rows_of_pages(const char* op, const Tensor& qkv, const Tensor& rope, const Tensor& pages, const PagedRows& at,
                         const AttentionShape& shape);

// Keys and values, side by side in every row of kv [N, 2·K·D], to their places, and then the copies.
void write_pages(Context& ctx, const Tensor& kv, const Tensor& pages, const PagedRows& at);

// q [N, H·D], rotated; out [N, H·D]. shape.batch and shape.seq are not read. On the CPU a row's result has the same bits whatever rows
// come with it.
void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at,
                     const AttentionShape& shape);

// Takes the scratch for sequences of up to `length` positions and calls of up to `rows` rows, so that a settled context can go on to the
// end.
void reserve_attention_paged(Context& ctx, std::int64_t rows, std::int64_t length, const AttentionShape& shape);

namespace cpu {
void write_pages(Context& ctx, const Tensor& kv, const Tensor& pages, const PagedRows& at);
void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at,
                     const AttentionShape& shape);
void reserve_attention_paged(Context& ctx, std::int64_t rows, std::int64_t length, const AttentionShape& shape);
}  // namespace cpu
namespace cuda {
void rope_to_pages(Context& ctx, const Tensor& qkv, const Tensor& rope, const Tensor& pages, const PagedRows& at,
                   const AttentionShape& shape);
void write_pages(Context& ctx, const Tensor& kv, const Tensor& pages, const PagedRows& at);
void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at,
                     const AttentionShape& shape);
void reserve_attention_paged(Context& ctx, std::int64_t rows, std::int64_t length, const AttentionShape& shape);
}  // namespace cuda

}  // namespace bhyt
