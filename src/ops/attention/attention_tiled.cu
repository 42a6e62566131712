// Attention by tiles on the ordinary cores: fp32, and bf16 that tensor cores do not take; head widths up to 128, document masks. A block
// owns 64 queries (or keys) of one head and streams the other side through shared memory, 64 rows at a time; a thread computes a few rows
// by four columns of every product, all in fp32. Every sum has one owner: deterministic.
#include <cmath>

#include "core/cuda.cuh"
#include "ops/attention/attention.cuh"

namespace bhyt::cuda {

namespace {

constexpr int kRows = 64;    // of a tile
constexpr int kAcross = 16;  // threads beside each other, which share rows

template <class T>
struct Call {
  const T* qkv;
  T* out;
  float* lse;                 // [B,H,T], or null
  const std::int32_t* first;  // [B,T], or null
  const T* dout;
  float* delta;  // [B,H,T], rowsum(dout·out)
  T* dqkv;
  std::int64_t ld, ld_out, ld_dout, ld_dqkv;
  int seq, heads, kv_heads, d;
  float scale;

  __device__ int group() const { return heads / kv_heads; }
  __device__ std::int64_t key_column(int kv) const { return static_cast<std::int64_t>(heads + kv) * d; }
  __device__ std::int64_t value_column(int kv) const { return static_cast<std::int64_t>(heads + kv_heads + kv) * d; }
};

// Heads of up to D columns, which tiles hold with zeros behind the last; R rows to a thread. A row of a tile begins four banks behind the
// one above it: the 16-byte reads of eight threads, each of its own row, take turns with no bank.
template <int D, int R>
struct Tiles {
  static constexpr int kStride = D + 4, kTile = kRows * kStride, kThreads = kRows / R * kAcross, kColumns = D / kAcross;
  static constexpr int kScoreStride = kRows + 4, kScores = kRows * kScoreStride, kRowsOfThread = R;
  // Bytes of shared memory of the kernels.
  static constexpr int kForwardBytes = 3 * kTile * 4, kQueryBytes = 4 * kTile * 4, kKeyBytes = (4 * kTile + kScores + 3 * kRows) * 4;

  static __device__ int across() { return threadIdx.x % kAcross; }
  static __device__ int row(int i) { return static_cast<int>(threadIdx.x) / kAcross + i * (kRows / R); }
  static __device__ int score_column(int j) { return across() + kAcross * j; }
  static __device__ int column(int c) { return c / 4 * 4 * kAcross + 4 * across() + c % 4; }

  // Rows from..from + 63 of one head; zeros where there is none.
  template <class T>
  static __device__ void load(float* tile, const T* head, std::int64_t ld, int from, int seq, int d) {
#pragma unroll 8
    for (int i = threadIdx.x; i < kRows * D; i += kThreads) {
      const int r = i / D, c = i % D;
      tile[r * kStride + c] = c < d && from + r < seq ? load1(head + (from + r) * ld + c) : 0.f;
    }
  }

  // A row of `a` with a row of `b`, for each of the thread's rows and score columns.
  static __device__ void multiply_rows(float (&s)[R][4], const float* a, const float* b) {
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = 0;
#pragma unroll 4
    for (int k = 0; k < D; k += 4) {
      float4 x[R];
#pragma unroll
      for (int i = 0; i < R; ++i) x[i] = *reinterpret_cast<const float4*>(a + row(i) * kStride + k);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 y = *reinterpret_cast<const float4*>(b + score_column(j) * kStride + k);
#pragma unroll
        for (int i = 0; i < R; ++i) s[i][j] += x[i].x * y.x + x[i].y * y.y + x[i].z * y.z + x[i].w * y.w;
      }
    }
  }

  // sum += scores · b, for each of the thread's rows and columns of a head.
  template <int ScoreStride>
  static __device__ void add_product(float (&sum)[R][kColumns], const float* scores, const float* b) {
#pragma unroll 4
    for (int k = 0; k < kRows; k += 4) {
      float4 x[R];
#pragma unroll
      for (int i = 0; i < R; ++i) x[i] = *reinterpret_cast<const float4*>(scores + row(i) * ScoreStride + k);
#pragma unroll
      for (int c = 0; c < kColumns; c += 4)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float4 y = *reinterpret_cast<const float4*>(b + (k + e) * kStride + column(c));
#pragma unroll
          for (int i = 0; i < R; ++i) {
            const float p = e == 0 ? x[i].x : e == 1 ? x[i].y : e == 2 ? x[i].z : x[i].w;
            sum[i][c] += p * y.x;
            sum[i][c + 1] += p * y.y;
            sum[i][c + 2] += p * y.z;
            sum[i][c + 3] += p * y.w;
          }
        }
    }
  }

  template <int ScoreStride>
  static __device__ void put_scores(float* scores, const float (&s)[R][4]) {
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[row(i) * ScoreStride + score_column(j)] = s[i][j];
  }

  template <class T>
  static __device__ void store(T* head, std::int64_t ld, int from, int seq, int d, const float (&sum)[R][kColumns]) {
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (from + row(i) < seq && column(c) < d) store1(head + (from + row(i)) * ld + column(c), sum[i][c]);
  }
};

// Over the threads that share rows.
__device__ __forceinline__ float sum_across(float v) {
#pragma unroll
  for (int m = 1; m < kAcross; m *= 2) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}
__device__ __forceinline__ float max_across(float v) {
#pragma unroll
  for (int m = 1; m < kAcross; m *= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
}

// A block of queries: head and sequence, and for each of the thread's rows the keys that it sees.
template <class T, class Tile>
struct Queries {
  static constexpr int R = Tile::kRowsOfThread;
  const Call<T>& a;
  int head, kv, q0, from[R];
  std::int64_t sequence;  // its first row

  // The last queries, which see the most keys, come first.
  __device__ explicit Queries(const Call<T>& call)
      : a(call),
        head(blockIdx.x),
        kv(head / call.group()),
        q0(static_cast<int>(gridDim.y - 1 - blockIdx.y) * kRows),
        sequence(static_cast<std::int64_t>(blockIdx.z) * call.seq) {
#pragma unroll
    for (int i = 0; i < R; ++i) from[i] = a.first ? a.first[sequence + min(position(i), a.seq - 1)] : 0;
  }
  __device__ int position(int i) const { return q0 + Tile::row(i); }
  __device__ bool sees(int i, int key) const { return from[i] <= key && key <= position(i); }
  __device__ int first_tile() const { return a.first ? a.first[sequence + q0] / kRows : 0; }
  __device__ int last_tile() const { return q0 / kRows; }
  __device__ const T* rows() const { return a.qkv + sequence * a.ld; }
  __device__ std::int64_t column() const { return static_cast<std::int64_t>(head) * a.d; }
  __device__ std::int64_t place(int i) const { return (static_cast<std::int64_t>(blockIdx.z) * a.heads + head) * a.seq + position(i); }
};

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) forward_kernel(const Call<T> a) {
  constexpr int R = Tile::kRowsOfThread;
  extern __shared__ __align__(16) float shared[];
  float *const q = shared, *const k = q + Tile::kTile, *const v = k + Tile::kTile, *const p = k;  // scores lie over keys
  const Queries<T, Tile> own(a);
  Tile::load(q, own.rows() + own.column(), a.ld, own.q0, a.seq, a.d);
  // Below any score, and finite: less itself it is zero.
  float top[R], sum[R], o[R][Tile::kColumns] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) {
    top[i] = -3e38f;
    sum[i] = 0;
  }
  for (int n = own.first_tile(); n <= own.last_tile(); ++n) {
    Tile::load(k, own.rows() + a.key_column(own.kv), a.ld, n * kRows, a.seq, a.d);
    Tile::load(v, own.rows() + a.value_column(own.kv), a.ld, n * kRows, a.seq, a.d);
    __syncthreads();
    float s[R][4];
    Tile::multiply_rows(s, q, k);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float high = top[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i][j] = own.sees(i, n * kRows + Tile::score_column(j)) ? s[i][j] * a.scale : -INFINITY;
        high = fmaxf(high, s[i][j]);
      }
      high = max_across(high);
      const float shrink = __expf(top[i] - high);
      top[i] = high;
      sum[i] *= shrink;
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i] += s[i][j] = __expf(s[i][j] - high);
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) o[i][c] *= shrink;
    }
    __syncthreads();
    Tile::template put_scores<Tile::kStride>(p, s);
    __syncthreads();
    Tile::template add_product<Tile::kStride>(o, p, v);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float whole = sum_across(sum[i]);
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) o[i][c] /= whole;
    if (a.lse && Tile::across() == 0 && own.position(i) < a.seq) a.lse[own.place(i)] = top[i] + __logf(whole);
  }
  Tile::store(a.out + own.sequence * a.ld_out + own.column(), a.ld_out, own.q0, a.seq, a.d, o);
}

// The gradients of queries, and delta for those of keys and values.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) query_kernel(const Call<T> a) {
  constexpr int R = Tile::kRowsOfThread;
  extern __shared__ __align__(16) float shared[];
  float *const q = shared, *const g = q + Tile::kTile, *const k = g + Tile::kTile, *const v = k + Tile::kTile, *const ds = v;
  const Queries<T, Tile> own(a);
  Tile::load(q, own.rows() + own.column(), a.ld, own.q0, a.seq, a.d);
  Tile::load(g, a.dout + own.sequence * a.ld_dout + own.column(), a.ld_dout, own.q0, a.seq, a.d);
  __syncthreads();
  float lse[R], delta[R], dq[R][Tile::kColumns] = {};
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const bool real = own.position(i) < a.seq;
    const T* out = a.out + (own.sequence + own.position(i)) * a.ld_out + own.column();
    float sum = 0;
    for (int c = Tile::across(); c < a.d && real; c += kAcross) sum += load1(out + c) * g[Tile::row(i) * Tile::kStride + c];
    delta[i] = sum_across(sum);
    lse[i] = real ? a.lse[own.place(i)] : 0.f;
    if (Tile::across() == 0 && real) a.delta[own.place(i)] = delta[i];
  }
  for (int n = own.first_tile(); n <= own.last_tile(); ++n) {
    Tile::load(k, own.rows() + a.key_column(own.kv), a.ld, n * kRows, a.seq, a.d);
    Tile::load(v, own.rows() + a.value_column(own.kv), a.ld, n * kRows, a.seq, a.d);
    __syncthreads();
    float s[R][4], dp[R][4];
    Tile::multiply_rows(s, q, k);
    Tile::multiply_rows(dp, g, v);
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float p = own.sees(i, n * kRows + Tile::score_column(j)) ? __expf(s[i][j] * a.scale - lse[i]) : 0.f;
        s[i][j] = p * (dp[i][j] - delta[i]) * a.scale;
      }
    __syncthreads();
    Tile::template put_scores<Tile::kStride>(ds, s);
    __syncthreads();
    Tile::template add_product<Tile::kStride>(dq, ds, k);
    __syncthreads();
  }
  Tile::store(a.dqkv + own.sequence * a.ld_dqkv + own.column(), a.ld_dqkv, own.q0, a.seq, a.d, dq);
}

// The gradients of keys and values: scores stand with a row for each key.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) key_kernel(const Call<T> a) {
  constexpr int R = Tile::kRowsOfThread;
  extern __shared__ __align__(16) float shared[];
  float *const k = shared, *const v = k + Tile::kTile, *const q = v + Tile::kTile, *const g = q + Tile::kTile, *const p = g + Tile::kTile,
               *const lse = p + Tile::kScores, *const delta = lse + kRows, *const ds = g;
  int* const from = reinterpret_cast<int*>(delta + kRows);
  const int kv = blockIdx.x, k0 = static_cast<int>(blockIdx.y) * kRows;  // the first keys, which the most queries see, come first
  const std::int64_t sequence = static_cast<std::int64_t>(blockIdx.z) * a.seq;
  const T* const rows = a.qkv + sequence * a.ld;
  Tile::load(k, rows + a.key_column(kv), a.ld, k0, a.seq, a.d);
  Tile::load(v, rows + a.value_column(kv), a.ld, k0, a.seq, a.d);
  float dk[R][Tile::kColumns] = {}, dv[R][Tile::kColumns] = {};
  for (int h = kv * a.group(); h < (kv + 1) * a.group(); ++h)
    for (int q0 = k0; q0 < a.seq; q0 += kRows) {
      if (a.first && a.first[sequence + q0] >= k0 + kRows) break;  // later queries start later still
      const std::int64_t column = static_cast<std::int64_t>(h) * a.d;
      Tile::load(q, rows + column, a.ld, q0, a.seq, a.d);
      Tile::load(g, a.dout + sequence * a.ld_dout + column, a.ld_dout, q0, a.seq, a.d);
      for (int i = threadIdx.x; i < kRows; i += Tile::kThreads) {
        const int t = q0 + i;
        const std::int64_t place = (static_cast<std::int64_t>(blockIdx.z) * a.heads + h) * a.seq + t;
        const bool real = t < a.seq;
        lse[i] = real ? a.lse[place] : 0.f;
        delta[i] = real ? a.delta[place] : 0.f;
        from[i] = !real ? a.seq : a.first ? a.first[sequence + t] : 0;  // what is no query sees nothing
      }
      __syncthreads();
      float s[R][4], dp[R][4];
      Tile::multiply_rows(s, k, q);
      Tile::multiply_rows(dp, v, g);
#pragma unroll
      for (int i = 0; i < R; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int t = Tile::score_column(j), key = k0 + Tile::row(i);
          s[i][j] = from[t] <= key && key <= q0 + t ? __expf(s[i][j] * a.scale - lse[t]) : 0.f;
          dp[i][j] = s[i][j] * (dp[i][j] - delta[t]) * a.scale;
        }
      Tile::template put_scores<Tile::kScoreStride>(p, s);
      __syncthreads();
      Tile::template add_product<Tile::kScoreStride>(dv, p, g);
      __syncthreads();
      Tile::template put_scores<Tile::kStride>(ds, dp);
      __syncthreads();
      Tile::template add_product<Tile::kStride>(dk, ds, q);
      __syncthreads();
    }
  T* const grads = a.dqkv + sequence * a.ld_dqkv;
  Tile::store(grads + a.key_column(kv), a.ld_dqkv, k0, a.seq, a.d, dk);
  Tile::store(grads + a.value_column(kv), a.ld_dqkv, k0, a.seq, a.d, dv);
}

template <class Kernel, class T>
void launch(Context& ctx, Kernel kernel, dim3 grid, int threads, int bytes, const Call<T>& call) {
  BHYT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(bytes), stream(ctx)>>>(call);
}

template <class T>
Call<T> call_of(const AttentionShape& s, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first) {
  Call<T> c{};
  c.qkv = qkv.as<T>();
  c.out = out.as<T>();
  c.lse = lse ? lse.as<float>() : nullptr;
  c.first = first ? first.as<std::int32_t>() : nullptr;
  c.ld = qkv.ld;
  c.ld_out = out.ld;
  c.seq = static_cast<int>(s.seq);
  c.heads = static_cast<int>(s.heads);
  c.kv_heads = static_cast<int>(s.kv_heads);
  c.d = static_cast<int>(s.head_dim);
  c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
  return c;
}

// The tiles for a call, by the width of its heads: wide ones leave a thread registers for fewer rows.
using Narrow = Tiles<64, 8>;
using Wide = Tiles<128, 4>;
bool narrow(const AttentionShape& s) { return s.head_dim <= 64; }
bool takes(const AttentionShape& s) { return s.head_dim <= 128 && s.seq <= 1 << 21 && s.batch < 1 << 16; }

template <class Tile, class T>
void forward(Context& ctx, const Call<T>& call, dim3 grid) {
  launch(ctx, forward_kernel<T, Tile>, grid, Tile::kThreads, Tile::kForwardBytes, call);
}
template <class Tile, class T>
void backward(Context& ctx, const Call<T>& call, dim3 queries, dim3 keys) {
  launch(ctx, query_kernel<T, Tile>, queries, Tile::kThreads, Tile::kQueryBytes, call);
  launch(ctx, key_kernel<T, Tile>, keys, Tile::kThreads, Tile::kKeyBytes, call);
}

}  // namespace

bool attention_tiled(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first, const AttentionShape& s) {
  const int bytes = narrow(s) ? Narrow::kForwardBytes : Wide::kForwardBytes;
  if (!takes(s) || shared_bytes(ctx) < static_cast<std::size_t>(bytes)) return false;
  const dim3 grid(static_cast<unsigned>(s.heads), blocks_for(s.seq, kRows), static_cast<unsigned>(s.batch));
  dispatch_float(qkv.dtype, [&](auto t) {
    const auto call = call_of<decltype(t)>(s, qkv, out, lse, first);
    if (narrow(s))
      forward<Narrow>(ctx, call, grid);
    else
      forward<Wide>(ctx, call, grid);
  });
  check_launch("attention_tiled");
  return true;
}

bool attention_tiled_backward(Context& ctx, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first,
                              const Tensor& dout, const Tensor& dqkv, const AttentionShape& s) {
  const int bytes = narrow(s) ? Narrow::kKeyBytes : Wide::kKeyBytes;
  if (!takes(s) || shared_bytes(ctx) < static_cast<std::size_t>(bytes)) return false;
  const dim3 queries(static_cast<unsigned>(s.heads), blocks_for(s.seq, kRows), static_cast<unsigned>(s.batch));
  const dim3 keys(static_cast<unsigned>(s.kv_heads), queries.y, queries.z);
  float* delta = static_cast<float*>(ctx.scratch(static_cast<std::size_t>(s.batch * s.heads * s.seq) * sizeof(float)));
  dispatch_float(qkv.dtype, [&](auto t) {
    using T = decltype(t);
    Call<T> call = call_of<T>(s, qkv, out, lse, first);
    call.dout = dout.as<T>();
    call.ld_dout = dout.ld;
    call.dqkv = dqkv.as<T>();
    call.ld_dqkv = dqkv.ld;
    call.delta = delta;
    if (narrow(s))
      backward<Narrow>(ctx, call, queries, keys);
    else
      backward<Wide>(ctx, call, queries, keys);
  });
  check_launch("attention_tiled_backward");
  return true;
}

}  // namespace bhyt::cuda
