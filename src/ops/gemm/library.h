// What cpu::gemm asks of the library behind it: gemm_blis.cpp and gemm_onednn.cpp, of which the build picks one.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/dtype.h"

namespace bhyt::cpu {

// c [m,n] = or += op(a) · op(b), all row major; m, n and k are at least 1 when a library sees it.
template <class In, class Out>
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  const In* a = nullptr;
  std::int64_t lda = 0;
  bool trans_a = false;
  const In* b = nullptr;
  std::int64_t ldb = 0;
  bool trans_b = false;
  Out* c = nullptr;
  std::int64_t ldc = 0;
  bool accumulate = false;
};

// On the calling thread alone, which is `worker` of a loop: cpu::gemm cuts c into pieces for the threads. The libraries' own threads wait
// for each other in busy loops, which is fast on an idle machine and many times slower on one that runs anything else.
void library_gemm(Context& ctx, const Product<float, float>& p, int worker);
// Before a loop over pieces, in the calling thread: what the library's calls for the workers may need.
void prepare_library(Context& ctx);

// Into how many pieces at least c should be cut. Cuts fall on multiples of kCut in both directions.
std::int64_t library_pieces(int threads, std::int64_t m, std::int64_t n, std::int64_t k);
#ifdef BHYT_GEMM_ONEDNN
constexpr std::int64_t kCut = 64;  // a multiple of the tiles of AMX
constexpr std::int64_t kRowsFirst = 256;
#else
constexpr std::int64_t kCut = 48;  // a multiple of the micro-tiles of every BLIS kernel
constexpr std::int64_t kRowsFirst = 0;
#endif
// kRowsFirst: where a is not transposed, c is cut into rows alone down to this many (0: into squares). Such pieces of the operands lie
// densely in memory, as oneDNN's best kernels want them.

// The same with bf16 operands. False when the library or this processor has no such products: nothing was done then, and
// cpu::gemm goes through fp32.
bool library_gemm_bf16(Context& ctx, const Product<bf16, float>& p, int worker);
bool library_gemm_bf16(Context& ctx, const Product<bf16, bf16>& p, int worker);

}  // namespace bhyt::cpu
