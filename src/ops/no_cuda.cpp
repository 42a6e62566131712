// Stands in for the .cu files of the operations in a build without CUDA.
#include "core/error.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/paged.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/few_rows/few_rows.h"
#include "ops/gemm/bytes.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/rows_cuda.h"
#include "ops/gemm/tuning.h"
#include "ops/linear/fused.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"
#include "ops/sample/sample.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt::cuda {

namespace {
[[noreturn]] void absent() { fail("this build has no CUDA backend; rebuild with the cuda preset (make build CUDA=on) or use device=cpu"); }
}  // namespace

void adamw(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const std::vector<ArenaSpan>&, const AdamW&) { absent(); }
void sum_of_squares(Context&, const Tensor&, const std::vector<ArenaSpan>&, const Tensor&) { absent(); }
void square_root(Context&, const Tensor&, const Tensor&) { absent(); }

void attention(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) { absent(); }
void attention_backward(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const AttentionShape&) {
  absent();
}
void rope_to_pages(Context&, const Tensor&, const Tensor&, const Tensor&, const PagedRows&, const AttentionShape&) { absent(); }
void write_pages(Context&, const Tensor&, const Tensor&, const PagedRows&) { absent(); }
void attention_paged(Context&, const Tensor&, const Tensor&, const Tensor&, const PagedRows&, const AttentionShape&) { absent(); }
void reserve_attention_paged(Context&, std::int64_t, std::int64_t, const AttentionShape&) { absent(); }

void cross_entropy(Context&, const CrossEntropy&) { absent(); }

void take_fed(Context&, const Tensor&, const Tensor&) { absent(); }
void gather_rows(Context&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void scatter_rows(Context&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void embedding(Context&, const Tensor&, const Tensor&, const Tensor&, const EmbeddingScale&) { absent(); }
void embedding_backward(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const EmbeddingScale&) { absent(); }

bool few_rows_fit(Context&) { return false; }
void few_rows_tiles(Context&, const Tensor&, std::int64_t, const Tensor&) { absent(); }
void few_rows_qkv(Context&, const FewRows&, const Tensor&, const FewHeads&) { absent(); }
void few_rows_linear(Context&, const FewRows&, const Tensor&, const FewResidual&) { absent(); }
void few_rows_swiglu(Context&, const FewRows&, const Tensor&, const Tensor&) { absent(); }
void few_rows_logits(Context&, const FewRows&, const Tensor&, const Tensor&) { absent(); }
void few_rows_norm(Context&, const NormSite&, const Tensor&, const FewResidual&) { absent(); }
void few_rows_sum_weights(Context&, const Tensor&, const Tensor&, const WeightSums&) { absent(); }

void gemm(Context&, const Tensor&, const Tensor&, const Tensor&, const GemmOptions&) { absent(); }
bool takes_rows(Context&, const Tensor&, const Tensor&) { return false; }
void rows_product(Context&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void linear_swiglu(Context&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void linear_to_pages(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const PagedRows&,
                     const AttentionShape&) {
  absent();
}

void round_to_bytes(Context&, const Tensor&, const Tensor&, float, const Tensor&) { absent(); }
void widen(Context&, const Tensor&, const Tensor&) { absent(); }

void scale_columns(Context&, const Tensor&, const Tensor&, float) { absent(); }
void scale_masked(Context&, const Tensor&, const Tensor&, const ScaleMasked&) { absent(); }

std::map<std::string, std::string> tuning(Context&) { return {}; }
void set_tuning(Context&, const std::map<std::string, std::string>&) {}
void tune_products(Context&) {}
void forget_products(Context&) {}
std::string tuning_library() { return ""; }

void norm(Context&, const NormSite&, const NormForward&) { absent(); }
void norm_backward(Context&, const NormSite&, const NormGrads&, const NormBackward&) { absent(); }
void attention_constant(Context&, const Tensor&, const Tensor&, std::int64_t, std::int64_t, std::int64_t, const Tensor&) { absent(); }
void norm_constant(Context&, const Tensor&, const Tensor&, float, const Tensor&, const Tensor&) { absent(); }
void norm_scales(Context&, const NormSite&, const Tensor&, const Given*, const Tensor&, const Tensor&) { absent(); }
void row_moments(Context&, const Tensor&, const Tensor&) { absent(); }

void rope(Context&, const Tensor&, const Tensor&, const RopeOptions&) { absent(); }

void sample(Context&, const Sample&) { absent(); }

void swiglu(Context&, const Tensor&, const Tensor&) { absent(); }
void swiglu_backward(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) { absent(); }

}  // namespace bhyt::cuda
