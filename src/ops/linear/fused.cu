// What products of few rows end in: SwiGLU, and queries, keys and values in their places.
#include "ops/linear/fused.h"

#include "ops/attention/paged.cuh"
#include "ops/gemm/gemm_rows.cuh"

namespace bhyt::cuda {

namespace rows {
namespace {

// h = silu(gate) · up: a block's first tile is of gates, its second of ups.
struct SwigluOut {
  bf16* h;
  std::int64_t ld;
  static constexpr int kItems = kRows / 8;

  template <class Sums>
  __device__ __forceinline__ void operator()(int row, int block, int item, const Sums& sums) const {
    float gate[8], up[8];
    sums(row, item * 8, gate);
    sums(row, kRows + item * 8, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] *= 1.f / (1.f + __expf(-gate[i])) * up[i];
    Vec<bf16>::store(h + row * ld + block * kRows + item * 8, gate);
  }
};

// Queries and keys rotated, keys and values to their pages; all of them to qkv, too. An item: eight of a lower half of a head and the eight
// that they turn with.
struct PagesOut {
  bf16 *qkv, *pages;
  std::int64_t ld;
  const float* rope;
  int heads, kv_heads, d;
  Places at;
  static constexpr int kItems = kOwned / 16;

  template <class Sums>
  __device__ __forceinline__ void operator()(int row, int block, int item, const Sums& sums) const {
    const int half = d / 2, of_half = half / 8, in_head = item % of_half * 8, low = item / of_half * d + in_head;
    const int column = block * kOwned + low, head = column / d;
    if (head >= heads + 2 * kv_heads) return;
    float a[8], b[8];
    sums(row, low, a);
    sums(row, low + half, b);
    const int position = at.positions[row];
    if (head < heads + kv_heads) {
      const float* const cosine = rope + static_cast<std::int64_t>(position) * d + in_head;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float c = cosine[i], s = cosine[half + i], x = a[i];
        a[i] = x * c - b[i] * s;
        b[i] = b[i] * c + x * s;
      }
    }
    Vec<bf16>::store(qkv + row * ld + column, a);
    Vec<bf16>::store(qkv + row * ld + column + half, b);
    if (head < heads) return;
    bf16* const to = pages +
                     (static_cast<std::int64_t>(at.pages_of(row)[position / kPage]) * kPage + position % kPage) * (2 * kv_heads * d) +
                     (head - heads) * d + in_head;
    Vec<bf16>::store(to, a);
    Vec<bf16>::store(to + half, b);
  }
};

}  // namespace
}  // namespace rows

void linear_swiglu(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& h) {
  rows::launch(ctx, x, w, rows::SwigluOut{h.as<bf16>(), h.ld}, h.cols());
}

void linear_to_pages(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& qkv, const Tensor& rope, const Tensor& pages,
                     const PagedRows& at, const AttentionShape& s) {
  rows::launch(ctx, x, w,
               rows::PagesOut{.qkv = qkv.as<bf16>(),
                              .pages = pages.as<bf16>(),
                              .ld = qkv.ld,
                              .rope = rope.as<float>(),
                              .heads = static_cast<int>(s.heads),
                              .kv_heads = static_cast<int>(s.kv_heads),
                              .d = static_cast<int>(s.head_dim),
                              .at = places_of(at)});
}

}  // namespace bhyt::cuda
