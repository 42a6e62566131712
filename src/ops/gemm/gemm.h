// Matrix products, row major. CPU: oneDNN on x86-64, BLIS elsewhere, products by row (rows.h) our own; CUDA: cuBLASLt, and on Hopper for up
// to 64 rows by row our own (rows_cuda.h). fp32 accumulation whatever the operands' type; the same bits on any number of threads.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

struct GemmOptions {
  bool trans_a = false;     // a is stored [k, m]
  bool trans_b = false;     // b is stored [n, k]
  bool accumulate = false;  // c += instead of c =
  // Every row of c has the same bits whatever rows come with it, for b transposed and a not; on a GPU only where it has kernels for it
  // (rows_cuda.h), which read b early: no kernel in front may be writing it.
  bool by_row = false;
};

// c [m,n] = op(a) [m,k] · op(b) [k,n]. a and b share a type (fp32 or bf16), but for b in int8 (int8.h) in a product by_row; c is fp32 or
// bf16. Column slices (ld) are fine.
void gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, GemmOptions options = {});

// Takes the scratch of products by_row of up to `rows` rows and depth k, so that a settled context can go on.
void reserve_gemm_by_row(Context& ctx, std::int64_t rows, std::int64_t k);

namespace cpu {
void gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options);
const char* gemm_library();  // "oneDNN 2.6.3", "BLIS 0.9.0"
}  // namespace cpu
namespace cuda {
void gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& options);
}

}  // namespace bhyt
