// Attention over pages: the choice of a kernel, and the plain one for any head width up to 256, fp32 and bf16, with one warp per query.
#include "ops/attention/paged.cuh"

namespace bhyt::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 256, kPerLane = kMaxDim / 32;

template <class T>
__global__ void write_kernel(const T* kv, std::int64_t ld, T* pages, int cols, Places at) {
  const int i = blockIdx.x;
  const int position = at.positions[i];
  T* to = pages + (static_cast<std::int64_t>(at.pages_of(i)[position / kPage]) * kPage + position % kPage) * cols;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) to[c] = kv[i * ld + c];
}

// A block for each row; heads of queries and keys turn, then keys and values go to their page.
template <class T>
__global__ void rope_kernel(T* qkv, std::int64_t ld, const float* rope, T* pages, int heads, int kv_heads, int d, Places at) {
  begin_among_rows();
  const int i = blockIdx.x, position = at.positions[i], half = d / 2;
  const float *cosine = rope + static_cast<std::int64_t>(position) * d, *sine = cosine + half;
  T* const row = qkv + i * ld;
  T* const to = pages + (static_cast<std::int64_t>(at.pages_of(i)[position / kPage]) * kPage + position % kPage) * (2 * kv_heads * d);
  for (int k = threadIdx.x; k < (heads + kv_heads) * half; k += blockDim.x) {
    const int head = k / half, j = k % half;
    T* const low = row + static_cast<std::int64_t>(head) * d + j;
    const float a = load1(low), b = load1(low + half), c = cosine[j], s = sine[j];
    store1(low, a * c - b * s);
    store1(low + half, b * c + a * s);
    if (head < heads) continue;
    T* const key = to + static_cast<std::int64_t>(head - heads) * d + j;
    key[0] = low[0];
    key[half] = low[half];
  }
  for (int k = threadIdx.x; k < kv_heads * d; k += blockDim.x)
    to[kv_heads * d + k] = row[static_cast<std::int64_t>(heads + kv_heads) * d + k];
}

template <class T>
__global__ void any_kernel(const T* q, std::int64_t ldq, const T* pages, std::int64_t ld, T* out, std::int64_t ldo, int rows, int group,
                           int d, int value_at, float scale, Places at) {
  const int i = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (i >= rows) return;
  const int h = blockIdx.y, last = at.positions[i];
  const std::int32_t* const table = at.pages_of(i);
  const T* key_column = pages + static_cast<std::int64_t>(h / group) * d;
  float query[kPerLane], sum[kPerLane] = {}, top = -INFINITY, total = 0;
#pragma unroll
  for (int k = 0; k < kPerLane; ++k)
    query[k] = lane + 32 * k < d ? scale * load1(q + i * ldq + static_cast<std::int64_t>(h) * d + lane + 32 * k) : 0.f;
  for (int s = 0; s <= last; ++s) {
    const T* key = key_column + (static_cast<std::int64_t>(table[s / kPage]) * kPage + s % kPage) * ld;
    float score = 0;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k)
      if (lane + 32 * k < d) score += query[k] * load1(key + lane + 32 * k);
    score = warp_sum(score);
    const float high = fmaxf(top, score), shrink = __expf(top - high), p = __expf(score - high);
    total = total * shrink + p;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k)
      if (lane + 32 * k < d) sum[k] = sum[k] * shrink + p * load1(key + value_at + lane + 32 * k);
    top = high;
  }
#pragma unroll
  for (int k = 0; k < kPerLane; ++k)
    if (lane + 32 * k < d) store1(out + i * ldo + static_cast<std::int64_t>(h) * d + lane + 32 * k, sum[k] / total);
}

}  // namespace

void rope_to_pages(Context& ctx, const Tensor& qkv, const Tensor& rope, const Tensor& pages, const PagedRows& at, const AttentionShape& s) {
  dispatch_float(qkv.dtype, [&](auto t) {
    using T = decltype(t);
    launch_rows(ctx, qkv.rows(), rope_kernel<T>, static_cast<unsigned>(qkv.rows()), 256, qkv.as<T>(), qkv.ld, rope.as<float>(),
                pages.as<T>(), static_cast<int>(s.heads), static_cast<int>(s.kv_heads), static_cast<int>(s.head_dim), places_of(at));
  });
  check_launch("rope_to_pages");
}

void write_pages(Context& ctx, const Tensor& kv, const Tensor& pages, const PagedRows& at) {
  dispatch_float(kv.dtype, [&](auto t) {
    using T = decltype(t);
    write_kernel<T><<<static_cast<unsigned>(kv.rows()), 256, 0, stream(ctx)>>>(kv.as<T>(), kv.ld, pages.as<T>(),
                                                                               static_cast<int>(pages.cols()), places_of(at));
  });
  check_launch("write_pages");
}

namespace {

void attention_any(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at, const AttentionShape& s,
                   float scale) {
  if (s.head_dim > kMaxDim) fail("[attention_paged] expected a head width of at most 256 on the GPU, got " + std::to_string(s.head_dim));
  dispatch_float(q.dtype, [&](auto t) {
    using T = decltype(t);
    any_kernel<T><<<dim3(blocks_for(q.rows(), kWarps), static_cast<unsigned>(s.heads)), 32 * kWarps, 0, stream(ctx)>>>(
        q.as<T>(), q.ld, pages.as<T>(), pages.ld, out.as<T>(), out.ld, static_cast<int>(q.rows()), static_cast<int>(s.heads / s.kv_heads),
        static_cast<int>(s.head_dim), static_cast<int>(s.kv_heads * s.head_dim), scale, places_of(at));
  });
  check_launch("attention_paged");
}

}  // namespace

// Single rows that follow one another are one launch.
void attention_paged(Context& ctx, const Tensor& q, const Tensor& pages, const Tensor& out, const PagedRows& at, const AttentionShape& s) {
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
  if (!paged_takes(q, pages, out, s)) return attention_any(ctx, q, pages, out, at, s, scale);
  const PagedCall call{.q = q.as<bf16>(),
                       .pages = pages.as<bf16>(),
                       .out = out.as<bf16>(),
                       .ldq = q.ld,
                       .ld = pages.ld,
                       .ldo = out.ld,
                       .at = places_of(at),
                       .heads = static_cast<int>(s.heads),
                       .kv_heads = static_cast<int>(s.kv_heads),
                       .scale = scale};
  const int d = static_cast<int>(s.head_dim);
  for (std::size_t i = 0; i < at.pieces.size();) {
    std::size_t end = i;
    const bool single = at.pieces[i].rows == 1;
    std::int64_t longest = 0;
    for (; end < at.pieces.size() && (at.pieces[end].rows == 1) == single; ++end) longest = std::max(longest, at.pieces[end].past + 1);
    if (single)
      attention_paged_decode(ctx, call, static_cast<int>(at.pieces[i].row), static_cast<int>(end - i), std::max(longest, at.longest), d);
    else
      attention_paged_chunks(ctx, call, at.pieces.subspan(i, end - i), d);
    i = end;
  }
}

}  // namespace bhyt::cuda
