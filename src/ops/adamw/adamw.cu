// AdamW and the gradient norm over the whole arena, one launch each: the arena is cut into chunks of equal size, kept in a table on the
// device.
#include <array>
#include <cmath>
#include <vector>

#include "core/cuda.cuh"
#include "core/memory.h"
#include "ops/adamw/adamw.h"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kChunk = 8192;  // elements

struct Chunk {
  std::int64_t offset;
  void* value;  // of the chunk's first element
  int size;
  bool bf16_value, decays;
};

struct Table {
  std::vector<ArenaSpan> spans;
  OwnedTensor chunks, partial;
  int count = 0;
};
// The tables of the last spans seen in a context: a run has one for the norm and one for the update, or one for both.
struct Tables {
  explicit Tables(Context&) {}
  std::array<Table, 2> of;
  std::size_t next = 0;
};

bool same(const std::vector<ArenaSpan>& a, const std::vector<ArenaSpan>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].offset != b[i].offset || a[i].size != b[i].size || a[i].value.data != b[i].value.data ||
        a[i].value.dtype != b[i].value.dtype || a[i].decays != b[i].decays)
      return false;
  return true;
}

const Table& table(Context& ctx, const std::vector<ArenaSpan>& spans) {
  Tables& tables = ctx.keep<Tables>();
  for (const Table& t : tables.of)
    if (t.chunks.t && same(t.spans, spans)) return t;
  Table& t = tables.of[tables.next];
  tables.next = 1 - tables.next;
  std::vector<Chunk> chunks;
  for (const ArenaSpan& s : spans)
    for (std::int64_t at = 0; at < s.size; at += kChunk)
      chunks.push_back({s.offset + at, static_cast<char*>(s.value.data) + static_cast<std::size_t>(at) * size_of(s.value.dtype),
                        static_cast<int>(std::min(kChunk, s.size - at)), s.value.dtype == DType::bf16, s.decays});
  const auto count = static_cast<std::int64_t>(chunks.size());
  t.chunks = OwnedTensor(ctx, DType::u8, {count * static_cast<std::int64_t>(sizeof(Chunk))});
  t.partial = OwnedTensor(ctx, DType::f64, {count});
  from_host(ctx, chunks.data(), t.chunks);
  t.count = static_cast<int>(count);
  t.spans = spans;
  return t;
}

__global__ void square_kernel(const Chunk* chunks, const float* gradients, double* partial) {
  __shared__ double shared[33];
  const Chunk c = chunks[blockIdx.x];
  const float* g = gradients + c.offset;
  double s = 0;  // a gradient of 1e20 is large, not infinite
  if (c.offset % 4 == 0 && c.size % 4 == 0) {
    for (int i = threadIdx.x * 4; i < c.size; i += kThreads * 4) {
      const float4 v = *reinterpret_cast<const float4*>(g + i);
      s +=
          static_cast<double>(v.x) * v.x + static_cast<double>(v.y) * v.y + static_cast<double>(v.z) * v.z + static_cast<double>(v.w) * v.w;
    }
  } else {
    for (int i = threadIdx.x; i < c.size; i += kThreads) s += static_cast<double>(g[i]) * g[i];
  }
  s = block_sum(s, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

__global__ void sum_kernel(const double* partial, int count, double* sum) {
  __shared__ double shared[33];
  double s = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) s += partial[i];
  s = block_sum(s, shared);
  if (threadIdx.x == 0) *sum = s;
}

__global__ void root_kernel(const double* sum, float* norm) { *norm = static_cast<float>(sqrt(*sum)); }

struct Rates {
  float rate, beta1, beta2, one_minus_beta1, one_minus_beta2, inverse2, eps, decay, clip;  // w −= rate·m / (√(v·inverse2) + eps) + decay·w
};

__device__ __forceinline__ float update(float w, float g, float& m, float& v, const Rates& r, float scale, float decay) {
  g *= scale;
  m = r.beta1 * m + r.one_minus_beta1 * g;
  v = r.beta2 * v + r.one_minus_beta2 * g * g;
  return w - (r.rate * m / (sqrtf(v * r.inverse2) + r.eps) + decay * w);
}

// The masters of a chunk: fp32 values …
struct Plain {
  float* value;
  static constexpr unsigned kAlign = 16;
  __device__ __forceinline__ float load(int i) const { return value[i]; }
  __device__ __forceinline__ void store(int i, float w) const { value[i] = w; }
  __device__ __forceinline__ void load4(int i, float* w) const { Vec<float>::load(value + i, w); }
  __device__ __forceinline__ void store4(int i, const float* w) const { Vec<float>::store(value + i, w); }
};
// … or bf16 values and their low bits.
struct Split {
  bf16* value;
  std::uint16_t* low;
  static constexpr unsigned kAlign = 8;
  struct alignas(8) Values {
    bf16 at[4];
  };
  struct alignas(8) Low {
    std::uint16_t at[4];
  };
  __device__ __forceinline__ float load(int i) const { return join(value[i], low[i]); }
  __device__ __forceinline__ void store(int i, float w) const {
    const SplitFloat s = split(w);
    value[i] = s.value;
    low[i] = s.low;
  }
  __device__ __forceinline__ void load4(int i, float* w) const {
    const Values high = *reinterpret_cast<const Values*>(value + i);
    const Low bits = *reinterpret_cast<const Low*>(low + i);
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = join(high.at[k], bits.at[k]);
  }
  __device__ __forceinline__ void store4(int i, const float* w) const {
    Values high;
    Low bits;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const SplitFloat s = split(w[k]);
      high.at[k] = s.value;
      bits.at[k] = s.low;
    }
    *reinterpret_cast<Values*>(value + i) = high;
    *reinterpret_cast<Low*>(low + i) = bits;
  }
};

// gradients, m, v: of the chunk's first element.
template <class Masters>
__device__ __forceinline__ void update_chunk(const Chunk& c, const Masters& masters, const float* gradients, float* m, float* v,
                                             const Rates& r, float scale) {
  const float decay = c.decays ? r.decay : 0.f;
  if (c.offset % 4 == 0 && c.size % 4 == 0 && reinterpret_cast<std::uintptr_t>(c.value) % Masters::kAlign == 0) {
    for (int i = threadIdx.x * 4; i < c.size; i += kThreads * 4) {
      float w[4], g[4], a[4], b[4];
      masters.load4(i, w);
      Vec<float>::load(gradients + i, g);
      Vec<float>::load(m + i, a);
      Vec<float>::load(v + i, b);
#pragma unroll
      for (int k = 0; k < 4; ++k) w[k] = update(w[k], g[k], a[k], b[k], r, scale, decay);
      masters.store4(i, w);
      Vec<float>::store(m + i, a);
      Vec<float>::store(v + i, b);
    }
    return;
  }
  for (int i = threadIdx.x; i < c.size; i += kThreads) masters.store(i, update(masters.load(i), gradients[i], m[i], v[i], r, scale, decay));
}

__global__ void adamw_kernel(const Chunk* chunks, std::uint16_t* low_bits, const float* gradients, float* m, float* v, Rates r,
                             const float* grad_norm, const float* loss) {
  if (loss && !isfinite(*loss)) return;
  float scale = 1;
  if (grad_norm) {
    if (!isfinite(*grad_norm)) return;
    if (r.clip > 0 && *grad_norm > r.clip) scale = r.clip / *grad_norm;
  }
  const Chunk c = chunks[blockIdx.x];
  gradients += c.offset;
  m += c.offset;
  v += c.offset;
  if (c.bf16_value)
    update_chunk(c, Split{static_cast<bf16*>(c.value), low_bits + c.offset}, gradients, m, v, r, scale);
  else
    update_chunk(c, Plain{static_cast<float*>(c.value)}, gradients, m, v, r, scale);
}

}  // namespace

void sum_of_squares(Context& ctx, const Tensor& gradients, const std::vector<ArenaSpan>& spans, const Tensor& sum) {
  const Table& t = table(ctx, spans);
  if (t.count)
    square_kernel<<<t.count, kThreads, 0, stream(ctx)>>>(t.chunks.t.as<Chunk>(), gradients.as<float>(), t.partial.t.as<double>());
  sum_kernel<<<1, 1024, 0, stream(ctx)>>>(t.partial.t.as<double>(), t.count, sum.as<double>());
  check_launch("sum_of_squares");
}

void square_root(Context& ctx, const Tensor& sum, const Tensor& norm) {
  root_kernel<<<1, 1, 0, stream(ctx)>>>(sum.as<double>(), norm.as<float>());
  check_launch("square_root");
}

void adamw(Context& ctx, const Tensor& low_bits, const Tensor& gradients, const Tensor& m, const Tensor& v,
           const std::vector<ArenaSpan>& spans, const AdamW& s) {
  const Table& t = table(ctx, spans);
  if (!t.count) return;
  const auto correction = [&](double beta) { return 1.0 - std::pow(beta, static_cast<double>(s.step)); };
  const auto f = [](double x) { return static_cast<float>(x); };
  const Rates r{f(s.lr / correction(s.beta1)), f(s.beta1), f(s.beta2), f(1 - s.beta1), f(1 - s.beta2), f(1 / correction(s.beta2)), f(s.eps),
                f(s.lr * s.weight_decay),      f(s.clip)};
  adamw_kernel<<<t.count, kThreads, 0, stream(ctx)>>>(t.chunks.t.as<Chunk>(), low_bits.as<std::uint16_t>(), gradients.as<float>(),
                                                      m.as<float>(), v.as<float>(), r, s.grad_norm ? s.grad_norm.as<float>() : nullptr,
                                                      s.loss ? s.loss.as<float>() : nullptr);
  check_launch("adamw");
}

}  // namespace bhyt::cuda
