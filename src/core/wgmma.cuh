// Hopper's products of a warpgroup (four warps, sm_90a): tiles of 64×64 bf16 that the tensor memory accelerator brings to shared memory,
// and wgmma, which reads them there by itself. A tile has the hardware's 128-byte swizzle and begins at a multiple of 1024 bytes. The
// fragments of warp w are those of mma.m16n8k16 for rows 16·w … 16·w+15.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include "core/bulk_copy.cuh"
#include "core/cuda.cuh"

namespace bhyt::cuda::wgmma {

constexpr int kRows = 64, kTile = kRows * 64 * 2;

// 64 rows by 64 columns: this warp's 16 rows, as eight fragments.
using Block = float[1][8][4];

// Whether this device runs the kernel's code for Hopper: compiled for anything else, the kernels here are empty.
template <class Kernel>
bool compiled_here(Kernel kernel) {
  cudaFuncAttributes f{};
  BHYT_CUDA(cudaFuncGetAttributes(&f, kernel));
  return f.ptxVersion == 90 && f.binaryVersion == 90;
}

// Describes `batch` matrices behind one another, of `rows` rows and `columns` columns each, in tiles; rows past the end of one read as
// zeros. False: the driver does not take it.
inline bool make_map(CUtensorMap& map, const bf16* matrix, std::int64_t columns, std::int64_t ld, std::int64_t rows, std::int64_t batch) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    BHYT_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(result == cudaDriverEntryPointSuccess ? found : nullptr);
  }();
  const auto n = [](std::int64_t i) { return static_cast<cuuint64_t>(i); };
  const cuuint64_t sizes[3] = {n(columns), n(rows), n(batch)}, distances[2] = {n(ld * 2), n(ld * 2 * rows)};
  const cuuint32_t box[3] = {64, kRows, 1}, every[3] = {1, 1, 1};
  return encode && encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(matrix), sizes, distances, box, every,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Begins to bring a tile: 64 columns from `column` on of rows row … row+63 of sequence b; zeros for rows past its end.
__device__ __forceinline__ void load_tile(unsigned tile, const CUtensorMap& map, int column, int row, int b, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(tile),
      "l"(&map), "r"(column), "r"(row), "r"(b), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void load_tile(unsigned tile, const CUtensorMap& map, int column, int row, int b, unsigned barrier,
                                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], "
      "%6;" ::"r"(tile),
      "l"(&map), "r"(column), "r"(row), "r"(b), "r"(barrier), "l"(policy)
      : "memory");
}
// How the tensor core finds a tile: address and the distance of groups of eight rows (1024 bytes), in 16 bytes; 128-byte swizzle.
__device__ __forceinline__ std::uint64_t descriptor(unsigned tile) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 16) | ((tile & 0x3FFFF) >> 4);
}

// Before products that use registers written since the last ones.
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes a group of products; products run in the order of their groups.
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `Pending` groups are under way.
template <int Pending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses of registers across the calls around this one.
__device__ __forceinline__ void pin(Block& c) {
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[0][n][i])::"memory");
}
#define BHYT_FRAGMENT(how, n) how(c[0][n][0]), how(c[0][n][1]), how(c[0][n][2]), how(c[0][n][3])
#define BHYT_BLOCK(how)                                                                                              \
  BHYT_FRAGMENT(how, 0), BHYT_FRAGMENT(how, 1), BHYT_FRAGMENT(how, 2), BHYT_FRAGMENT(how, 3), BHYT_FRAGMENT(how, 4), \
      BHYT_FRAGMENT(how, 5), BHYT_FRAGMENT(how, 6), BHYT_FRAGMENT(how, 7)
#define BHYT_PRODUCT(add)                                                                                 \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " add                                                             \
  ", 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

// c = a · bᵀ over the columns of both tiles.
__device__ __forceinline__ void multiply_rows(Block& c, std::uint64_t a, std::uint64_t b) {
  asm volatile(BHYT_PRODUCT("0") "%32, %33, add, 1, 1, 0, 0;\n}" : BHYT_BLOCK("=f") : "l"(a), "l"(b));
#pragma unroll
  for (int k = 1; k < 4; ++k)  // 16 columns: 32 bytes
    asm volatile(BHYT_PRODUCT("1") "%32, %33, add, 1, 1, 0, 0;\n}" : BHYT_BLOCK("+f") : "l"(a + 2 * k), "l"(b + 2 * k));
}

// c += a · bᵀ.
__device__ __forceinline__ void add_rows(Block& c, std::uint64_t a, std::uint64_t b) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    asm volatile(BHYT_PRODUCT("1") "%32, %33, add, 1, 1, 0, 0;\n}" : BHYT_BLOCK("+f") : "l"(a + 2 * k), "l"(b + 2 * k));
}

// c += p · b over the rows of the tile; p: fragments in registers.
template <class Left>
__device__ __forceinline__ void multiply_columns(Block& c, const Left& p, std::uint64_t b) {
#pragma unroll
  for (int k = 0; k < 4; ++k)  // 16 rows: 2048 bytes
    asm volatile(BHYT_PRODUCT("1") "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
                 : BHYT_BLOCK("+f")
                 : "r"(p.a[k][0][0]), "r"(p.a[k][0][1]), "r"(p.a[k][0][2]), "r"(p.a[k][0][3]), "l"(b + 128 * k));
}

#undef BHYT_PRODUCT
#undef BHYT_BLOCK
#undef BHYT_FRAGMENT

#endif

}  // namespace bhyt::cuda::wgmma
