// What the kernels of attention over pages share.
#pragma once

#include "ops/attention/flash.cuh"
#include "ops/attention/paged.h"

namespace bhyt::cuda {

constexpr int kPage = static_cast<int>(kPageTokens);

// Where a position of a sequence lies.
struct Places {
  const std::int32_t *positions, *sequences, *table;
  int width;  // of the table
  __device__ __forceinline__ const std::int32_t* pages_of(int row) const {
    return table + static_cast<std::int64_t>(sequences[row]) * width;
  }
};

inline Places places_of(const PagedRows& at) {
  return {at.positions.as<std::int32_t>(), at.sequences.as<std::int32_t>(), at.table.as<std::int32_t>(), static_cast<int>(at.table.cols())};
}

// One call, for all kernels.
struct PagedCall {
  const bf16 *q, *pages;
  bf16* out;
  std::int64_t ldq, ld, ldo;
  Places at;
  int heads, kv_heads;
  float scale;
};

// These take bf16, head widths 64 and 128, and as many query heads to a key/value head as a tile has rows.
inline bool paged_takes(const Tensor& q, const Tensor& pages, const Tensor& out, const AttentionShape& s) {
  return q.dtype == DType::bf16 && (s.head_dim == 64 || s.head_dim == 128) && s.heads / s.kv_heads <= 16 && aligned16(q) &&
         aligned16(pages) && aligned16(out);
}

// Rows [first, first + n) of the call, a sequence each: split over blocks along the keys where there are few. `longest`: the most
// positions that one of them sees, or more.
void attention_paged_decode(Context& ctx, const PagedCall& call, int first, int n, std::int64_t longest, int head_dim);
// Pieces of several rows.
void attention_paged_chunks(Context& ctx, const PagedCall& call, std::span<const PagedPiece> pieces, int head_dim);

}  // namespace bhyt::cuda
