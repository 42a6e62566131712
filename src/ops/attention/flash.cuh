// Building blocks of flash attention on tensor cores (sm_80 and later): swizzled tiles in shared memory, asynchronous copies, fragments of
// mma.m16n8k16. Where a fragment's elements lie (lane l; a register holds two neighbours):
//   A 16×16: row l/4 (+8 in registers 1, 3), column 2·(l%4) (+8 in registers 2, 3)
//   B 16×8:  row 2·(l%4) (+8 in register 1), column l/4
//   C 16×8:  row l/4 (+8 in elements 2, 3), column 2·(l%4) (+1 in elements 1, 3)
// so two C side by side are an A: products follow each other in registers.
#pragma once

#include <cmath>

#include "core/cuda.cuh"
#include "ops/attention/attention.h"

namespace bhyt::cuda::flash {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kLog2e = 1.4426950408889634f;

// One call, for all kernels. Positions are counted within a sequence.
struct Call {
  const bf16* qkv;
  bf16* out;
  float* lse;                 // [B,H,T], or null
  const std::int32_t* first;  // [B,T], or null
  const bf16* dout;
  float* delta;  // [B,H,T], rowsum(dout·out)
  bf16* dqkv;
  int ld, ld_out, ld_dout, ld_dqkv;
  int batch, seq, heads, kv_heads;
  float scale;
};

// Host side: whether these kernels take the shape, and a launch with `bytes` of shared memory.
constexpr std::int64_t kMost = 1 << 30;
inline bool takes(const AttentionShape& s, const Tensor& qkv, const Tensor& out) {
  return qkv.dtype == DType::bf16 && (s.head_dim == 64 || s.head_dim == 128) && s.seq <= 1 << 20 && s.heads <= kMost && s.batch < 1 << 16 &&
         aligned16(qkv) && qkv.ld <= kMost && aligned16(out) && out.ld <= kMost;
}
inline Call call_of(const AttentionShape& s, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& first) {
  Call c{};
  c.qkv = qkv.as<bf16>();
  c.out = out.as<bf16>();
  c.lse = lse.as<float>();
  c.first = first.as<std::int32_t>();
  c.ld = static_cast<int>(qkv.ld);
  c.ld_out = static_cast<int>(out.ld);
  c.batch = static_cast<int>(s.batch);
  c.seq = static_cast<int>(s.seq);
  c.heads = static_cast<int>(s.heads);
  c.kv_heads = static_cast<int>(s.kv_heads);
  c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
  return c;
}
template <class Kernel>
void launch(Context& ctx, Kernel kernel, dim3 grid, int bytes, const Call& call) {
  BHYT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, kThreads, bytes, stream(ctx)>>>(call);
}

__device__ __forceinline__ int lane() { return threadIdx.x % 32; }
// By a shuffle, which tells the compiler that all lanes agree.
__device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

// 2^x, 0 for -∞.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two floats as bf16, the first in the lower half.
__device__ __forceinline__ unsigned pack(float low, float high) {
  const __nv_bfloat162 b = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&b);
}

// Global to shared memory, zeros instead where `real` is false (the address must be good even then).
__device__ __forceinline__ void copy_async16(unsigned to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_async4(unsigned to, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(real ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Left` of this thread's committed groups are under way; others see the data after a barrier.
template <int Left>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// Four 8×8 matrices; lane l gives the address of row l%8 of matrix l/8. Lane l gets, of each, row l/4, columns 2·(l%4) and the next;
// transposed: rows 2·(l%4) and the next of column l/4.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// c += A·B.
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A tile is rows of D bf16. The low bits of the row permute its 16-byte chunks, so that any eight neighbouring rows of one chunk, which is
// what ldmatrix reads together, lie in distinct banks.
template <int D>
__host__ __device__ __forceinline__ constexpr int place(int row, int chunk) {
  return row * D * 2 + ((chunk ^ (row & 7)) << 4);
}
// The address of the same row an even number of chunks further, in a tile that begins at a multiple of 256.
__device__ __forceinline__ unsigned further(unsigned address, int chunks) { return address ^ (chunks << 4); }
template <int D>
constexpr int tile_bytes(int rows) {
  return rows * D * 2;
}

// Begins to copy rows row … row+Rows-1 of a matrix into a tile; rows from `end` on become zeros. With `others`: those of the same matrix
// `others` columns further too, into the tile that follows at `distance`.
template <int D, int Rows>
__device__ __forceinline__ void load_tile(unsigned tile, const bf16* matrix, int ld, int row, int end, int others = 0, int distance = 0) {
  constexpr int kChunks = D / 8, kStep = kThreads / kChunks;
  const int chunk = threadIdx.x % kChunks, begin = threadIdx.x / kChunks;
#pragma unroll
  for (int i = 0; i < Rows / kStep; ++i) {
    const int r = begin + i * kStep;
    const bool real = row + r < end;
    const unsigned to = tile + place<D>(r, chunk);
    const bf16* from = matrix + static_cast<std::int64_t>(real ? row + r : 0) * ld + chunk * 8;
    copy_async16(to, from, real);
    if (distance > 0) copy_async16(to + distance, from + others, real);
  }
}

// The left factor of a product with a tile: 16·MT rows of a tile, read at every use …
template <int D, int MT>
struct Rows {
  unsigned tile;
  __device__ __forceinline__ void fragments(int k, unsigned (&f)[MT][4]) const {
#pragma unroll
    for (int m = 0; m < MT; ++m) load_matrices(f[m], further(tile + place<D>(lane() % 16, lane() / 16), 2 * k) + tile_bytes<D>(16 * m));
  }
};
// … or once.
template <int D, int MT>
struct HeldRows {
  unsigned held[D / 16][MT][4];
  __device__ __forceinline__ explicit HeldRows(const Rows<D, MT>& rows) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) rows.fragments(k, held[k]);
  }
  __device__ __forceinline__ void fragments(int k, unsigned (&f)[MT][4]) const {
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) f[m][i] = held[k][m][i];
  }
};

template <int MT, int NT>
__device__ __forceinline__ void clear(float (&c)[MT][NT][4]) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0;
}

template <int MT, int NT>
__device__ __forceinline__ void scale_by(float (&c)[MT][NT][4], float factor) {
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] *= factor;
}

// From `begin` on, the first query that sees nothing up to `key`: first is non-decreasing.
__device__ __forceinline__ int end_of_view(const std::int32_t* first, int key, int begin, int seq) {
  int low = begin, high = seq;
  while (low < high) {
    const int middle = (low + high) / 2;
    first[middle] <= key ? low = middle + 1 : high = middle;
  }
  return low;
}

// c = left · tileᵀ over D: column n of c belongs to row n of the tile.
template <int D, int MT, int NT, class Left>
__device__ __forceinline__ void multiply_rows(float (&c)[MT][NT][4], const Left& left, unsigned tile) {
  const unsigned at = tile + place<D>(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2);
  clear(c);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    unsigned a[MT][4];
    left.fragments(k, a);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      unsigned b[4];
      load_matrices(b, further(at, 2 * k) + tile_bytes<D>(8 * n));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply(c[m][n], a[m], b[0], b[1]);
        multiply(c[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// A product's result, rounded to bf16, as the left factor of the next.
template <int MT, int NT>
struct Packed {
  unsigned a[NT / 2][MT][4];
  __device__ __forceinline__ explicit Packed(const float (&p)[MT][NT][4]) {
#pragma unroll
    for (int k = 0; k < NT / 2; ++k)
#pragma unroll
      for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) a[k][m][i] = pack(p[m][2 * k + i / 2][i % 2 * 2], p[m][2 * k + i / 2][i % 2 * 2 + 1]);
  }
};

// c += p · tile: p's columns belong to the tile's 8·NT rows.
template <int D, int MT, int NT>
__device__ __forceinline__ void multiply_columns(float (&c)[MT][D / 8][4], const Packed<MT, NT>& p, unsigned tile) {
  const unsigned at = tile + place<D>(lane() % 16, lane() / 16);
#pragma unroll
  for (int k = 0; k < NT / 2; ++k)
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      unsigned b[4];
      load_matrices_transposed(b, further(at, n) + tile_bytes<D>(16 * k));
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        multiply(c[m][n], p.a[k][m], b[0], b[1]);
        multiply(c[m][n + 1], p.a[k][m], b[2], b[3]);
      }
    }
}

// Writes a warp's 16·MT rows of c to a matrix from row `row` on, those before `end`. They pass through `shared`, rows of a tile that only
// this warp used, so that the matrix is written in whole 16-byte chunks.
template <int D, int MT>
__device__ __forceinline__ void store_rows(const float (&c)[MT][D / 8][4], char* shared, bf16* matrix, int ld, int row, int end) {
  __syncwarp();
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<unsigned*>(shared + place<D>(16 * m + 8 * half + lane() / 4, n) + lane() % 4 * 4) =
            pack(c[m][n][2 * half], c[m][n][2 * half + 1]);
  __syncwarp();
  constexpr int kChunks = D / 8, kStep = 32 / kChunks;
  const int chunk = lane() % kChunks, begin = lane() / kChunks;
#pragma unroll
  for (int r = 0; r < 16 * MT; r += kStep)
    if (row + r + begin < end)
      *reinterpret_cast<uint4*>(matrix + static_cast<std::int64_t>(row + r + begin) * ld + chunk * 8) =
          *reinterpret_cast<const uint4*>(shared + place<D>(r + begin, chunk));
}

}  // namespace bhyt::cuda::flash
