// BLIS behind cpu::gemm.
#ifdef BHYT_GEMM_BLIS

#include <blis.h>

#include <string>

#include "ops/gemm/gemm.h"
#include "ops/gemm/library.h"

namespace bhyt::cpu {

void library_gemm(Context&, const Product<float, float>& p, int) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  // The path for small matrices is chosen by their size, so its results would depend on how c is cut.
  bli_rntm_disable_l3_sup(&runtime);
  float alpha = 1, beta = p.accumulate ? 1.0f : 0.0f;
  bli_sgemm_ex(p.trans_a ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE, p.trans_b ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE, p.m, p.n, p.k, &alpha,
               const_cast<float*>(p.a), p.lda, 1, const_cast<float*>(p.b), p.ldb, 1, &beta, p.c, p.ldc, 1, nullptr, &runtime);
}

void prepare_library(Context&) {}

// BLIS runs over k in the same order for every micro-tile, wherever in a piece that lies: pieces may follow the number of threads.
// Two for each thread even out what else the machine does, as long as they stay large enough to pack well.
std::int64_t library_pieces(int threads, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (threads == 1 || m * n * k < 200'000) return 1;
  return m * n >= 2 * threads * 512 * 512 ? 2 * threads : threads;
}

bool library_gemm_bf16(Context&, const Product<bf16, float>&, int) { return false; }
bool library_gemm_bf16(Context&, const Product<bf16, bf16>&, int) { return false; }

const char* gemm_library() {
  static const std::string name = std::string("BLIS ") + bli_info_get_version_str();
  return name.c_str();
}

}  // namespace bhyt::cpu

#endif
