// Stands in for the .cu files of the operations in a build without CUDA.
#include "core/error.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/tuning.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt::cuda {

namespace {
[[noreturn]] void absent() { fail("this build has no CUDA backend; rebuild with the cuda preset (make build CUDA=on) or use device=cpu"); }
}  // namespace

void adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const std::vector<ArenaSpan>&, const AdamW&) { absent(); }
void gradient_norm(const Tensor&, const std::vector<ArenaSpan>&, const Tensor&) { absent(); }

void attention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) { absent(); }
void attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) {
  absent();
}
void attention_cached(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t, const AttentionShape&) { absent(); }

std::size_t cross_entropy_workspace(std::int64_t, std::int64_t, std::int64_t, DType) { absent(); }
void cross_entropy(const CrossEntropy&) { absent(); }

void embedding(const Tensor&, const Tensor&, const Tensor&, const EmbeddingScale&) { absent(); }
void embedding_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const EmbeddingScale&) { absent(); }

void gemm(const Tensor&, const Tensor&, const Tensor&, const GemmOptions&) { absent(); }

std::map<std::string, std::string> tuning() { return {}; }
void set_tuning(const std::map<std::string, std::string>&) {}
std::string tuning_library() { return ""; }

void norm(const NormSite&, const NormForward&) { absent(); }
void norm_backward(const NormSite&, const NormGrads&, const NormBackward&) { absent(); }
void attention_constant(const Tensor&, const Tensor&, std::int64_t, std::int64_t, std::int64_t, const Tensor&) { absent(); }
void norm_constant(const Tensor&, const Tensor&, float, const Tensor&, const Tensor&) { absent(); }
void row_moments(const Tensor&, const Tensor&) { absent(); }

void rope(const Tensor&, const Tensor&, const RopeOptions&) { absent(); }

void swiglu(const Tensor&, const Tensor&) { absent(); }
void swiglu_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { absent(); }

}  // namespace bhyt::cuda
