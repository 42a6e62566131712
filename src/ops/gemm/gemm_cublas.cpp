// Matrix products by cuBLASLt, and the choice of its algorithms (tuning.h).
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstring>
#include <map>
#include <vector>

#include "core/cuda_host.h"
#include "core/memory.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/rows_cuda.h"
#include "ops/gemm/tuning.h"

namespace bhyt::cuda {

namespace {

void check_blas(cublasStatus_t s, const char* what) {
  if (s != CUBLAS_STATUS_SUCCESS) fail(std::string("[gemm] ") + what + ": " + cublasLtGetStatusString(s));
}
#define BHYT_BLAS(call) check_blas((call), #call)

constexpr std::size_t kWorkspace = 64u << 20;
constexpr int kCandidates = 8;

// A product as it was called, to be measured later.
struct Seen {
  Tensor a, b, c;
  GemmOptions options;
};

// What an algorithm is chosen for.
struct Key {
  std::int64_t m, n, k, lda, ldb, ldc;
  std::uint32_t alignment;
  DType in, out;
  bool trans_a, trans_b, accumulate;
  auto operator<=>(const Key&) const = default;
};

// As it stands in tuning.json.
std::string text_of(const Key& p) {
  const auto text = [](auto number) { return std::to_string(number); };
  return text(p.m) + "x" + text(p.n) + "x" + text(p.k) + (p.trans_a ? " ta" : "") + (p.trans_b ? " tb" : "") + " " + name_of(p.in) + ">" +
         name_of(p.out) + (p.accumulate ? " +=" : "") + " ld " + text(p.lda) + "," + text(p.ldb) + "," + text(p.ldc) + " align " +
         text(p.alignment);
}

struct Library {
  cublasLtHandle_t handle = nullptr;
  Buffer workspace;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;     // in use
  std::map<std::string, cublasLtMatmulAlgo_t> saved;  // read back, not used yet
  std::map<Key, Seen> untuned;                        // large products that took the library's first choice

  explicit Library(Context& ctx) : workspace(ctx, kWorkspace) { BHYT_BLAS(cublasLtCreate(&handle)); }
  ~Library() { cublasLtDestroy(handle); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

// RAII for the library's descriptors, and for what measuring takes.
template <class H, auto Destroy>
struct Handle {
  H h = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (h) Destroy(h);
  }
};
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;
using Memory = Handle<void*, cudaFree>;

cudaDataType_t type_of(DType t) { return t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

std::uint32_t alignment(const Tensor& t) {
  const auto bits = reinterpret_cast<std::uintptr_t>(t.data) | static_cast<std::uintptr_t>(t.ld) * size_of(t.dtype) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// A product as the library sees it: column major, so the operands change places.
struct Problem {
  const Tensor &a, &b, &c;
  std::int64_t m, n, k;
  float beta;
  Description description;
  Layout first, second, result;

  Problem(const Tensor& a_, const Tensor& b_, const Tensor& c_, const GemmOptions& o)
      : a(a_), b(b_), c(c_), m(c_.rows()), n(c_.cols()), k(o.trans_a ? a_.rows() : a_.cols()), beta(o.accumulate ? 1.f : 0.f) {
    BHYT_BLAS(cublasLtMatmulDescCreate(&description.h, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t ta = o.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, tb = o.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    BHYT_BLAS(cublasLtMatmulDescSetAttribute(description.h, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    BHYT_BLAS(cublasLtMatmulDescSetAttribute(description.h, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    const auto layout = [](Layout& l, const Tensor& t) {
      BHYT_BLAS(cublasLtMatrixLayoutCreate(&l.h, type_of(t.dtype), static_cast<std::uint64_t>(t.cols()),
                                           static_cast<std::uint64_t>(t.rows()), t.ld));
    };
    layout(first, b);
    layout(second, a);
    layout(result, c);
  }
  Key key(const GemmOptions& o) const {
    return {.m = m,
            .n = n,
            .k = k,
            .lda = a.ld,
            .ldb = b.ld,
            .ldc = c.ld,
            .alignment = std::min({alignment(a), alignment(b), alignment(c), 16u}),
            .in = a.dtype,
            .out = c.dtype,
            .trans_a = o.trans_a,
            .trans_b = o.trans_b,
            .accumulate = o.accumulate};
  }
  cublasStatus_t run(Context& ctx, const cublasLtMatmulAlgo_t& algorithm, void* out) const {
    const Library& library = ctx.keep<Library>();
    const float alpha = 1;
    return cublasLtMatmul(library.handle, description.h, &alpha, b.data, first.h, a.data, second.h, &beta, c.data, result.h, out, result.h,
                          &algorithm, library.workspace.data(), kWorkspace, stream(ctx));
  }
  bool large() const { return 2.0 * static_cast<double>(m * n * k) >= 1e9; }
};

std::vector<cublasLtMatmulAlgo_t> candidates(Context& ctx, const Problem& p, int wanted) {
  Preference preference;
  BHYT_BLAS(cublasLtMatmulPreferenceCreate(&preference.h));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    BHYT_BLAS(cublasLtMatmulPreferenceSetAttribute(preference.h, what, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(ctx.keep<Library>().handle, p.description.h, p.first.h, p.second.h, p.result.h,
                                                          p.result.h, preference.h, wanted, found.data(), &count);
  if (s != CUBLAS_STATUS_SUCCESS || count == 0)
    fail("[gemm] cuBLASLt has no algorithm for " + shape_string(p.a).text() + " times " + shape_string(p.b).text());
  std::vector<cublasLtMatmulAlgo_t> out;
  for (int i = 0; i < count; ++i) out.push_back(found[static_cast<std::size_t>(i)].algo);
  return out;
}

// Milliseconds of one run; negative when the algorithm refuses.
float measure(Context& ctx, const Problem& p, const cublasLtMatmulAlgo_t& algorithm, void* out, cudaEvent_t begin, cudaEvent_t end) {
  BHYT_CUDA(cudaEventRecord(begin, stream(ctx)));
  if (p.run(ctx, algorithm, out) != CUBLAS_STATUS_SUCCESS) return -1;
  BHYT_CUDA(cudaEventRecord(end, stream(ctx)));
  BHYT_CUDA(cudaEventSynchronize(end));
  float ms = 0;
  BHYT_CUDA(cudaEventElapsedTime(&ms, begin, end));
  return ms;
}

// The fastest candidate, measured into a copy of the result so that accumulating products stay right; the library's first choice where
// there is no memory for the copy. The candidates take turns, so that a clock that rises favours none, and those within a hundredth of the
// best stand in the library's order, so that noise decides less.
cublasLtMatmulAlgo_t choose(Context& ctx, const Problem& p) {
  const auto all = candidates(ctx, p, kCandidates);
  Memory out;
  const std::size_t bytes = static_cast<std::size_t>(p.c.rows() * p.c.ld) * size_of(p.c.dtype);
  if (cudaMalloc(&out.h, bytes) != cudaSuccess) {
    cudaGetLastError();
    return all.front();
  }
  Event begin, end;
  BHYT_CUDA(cudaEventCreate(&begin.h));
  BHYT_CUDA(cudaEventCreate(&end.h));
  std::vector<float> best(all.size(), HUGE_VALF);
  for (int round = 0; round < 4; ++round)
    for (std::size_t i = 0; i < all.size(); ++i)
      if (const float ms = measure(ctx, p, all[i], out.h, begin.h, end.h); round > 0 && ms >= 0) best[i] = std::min(best[i], ms);
  const float least = *std::min_element(best.begin(), best.end());
  const auto chosen = std::find_if(best.begin(), best.end(), [&](float ms) { return ms <= least * 1.01f; });
  return all[static_cast<std::size_t>(chosen - best.begin())];
}

// A choice that was read back is taken if the library still takes it.
bool takes(Context& ctx, const Problem& p, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(ctx.keep<Library>().handle, p.description.h, p.first.h, p.second.h, p.result.h, p.result.h, &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspace;
}

}  // namespace

void gemm(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, const GemmOptions& o) {
  if (c.size() == 0) return;
  if (o.by_row && !o.accumulate && takes_rows(ctx, a, b) && aligned16(c)) return rows_product(ctx, a, b, c);
  const Problem p(a, b, c, o);
  if (p.k == 0) {
    const std::size_t size = size_of(c.dtype);
    if (!o.accumulate)
      BHYT_CUDA(cudaMemset2DAsync(c.data, static_cast<std::size_t>(c.ld) * size, 0, static_cast<std::size_t>(p.n) * size,
                                  static_cast<std::size_t>(p.m), stream(ctx)));
    return;
  }
  Library& library = ctx.keep<Library>();
  const Key key = p.key(o);
  auto it = library.algorithms.find(key);
  if (it == library.algorithms.end()) {
    const auto saved = library.saved.find(text_of(key));
    const bool reuse = saved != library.saved.end() && takes(ctx, p, saved->second);
    it = library.algorithms.emplace(key, reuse ? saved->second : candidates(ctx, p, 1).front()).first;
    if (!reuse && p.large()) library.untuned.emplace(key, Seen{a, b, c, o});
  }
  BHYT_BLAS(p.run(ctx, it->second, c.data));
}

void tune_products(Context& ctx) {
  if (!ctx.device().is_cuda()) return;
  use(ctx.device().index);
  Library& library = ctx.keep<Library>();
  for (const auto& [key, seen] : library.untuned) library.algorithms[key] = choose(ctx, Problem(seen.a, seen.b, seen.c, seen.options));
  library.untuned.clear();
}

void forget_products(Context& ctx) {
  if (ctx.device().is_cuda()) ctx.keep<Library>().untuned.clear();
}

std::map<std::string, std::string> tuning(Context& ctx) {
  const Library& library = ctx.keep<Library>();
  std::map<std::string, cublasLtMatmulAlgo_t> all;
  for (const auto& [key, algorithm] : library.algorithms) all.emplace(text_of(key), algorithm);
  all.insert(library.saved.begin(), library.saved.end());
  std::map<std::string, std::string> out;
  for (const auto& [key, algorithm] : all)
    for (const std::uint64_t word : algorithm.data) {
      char text[17];
      std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(word));
      out[key] += text;
    }
  return out;
}

void set_tuning(Context& ctx, const std::map<std::string, std::string>& saved) {
  std::map<std::string, cublasLtMatmulAlgo_t> read;
  for (const auto& [key, hex] : saved) {
    cublasLtMatmulAlgo_t algorithm{};
    constexpr std::size_t words = sizeof algorithm.data / sizeof algorithm.data[0];
    if (hex.size() != 16 * words || hex.find_first_not_of("0123456789abcdef") != std::string::npos)
      fail("[gemm] tuning: expected " + std::to_string(16 * words) + " hexadecimal digits for " + key);
    for (std::size_t i = 0; i < words; ++i) algorithm.data[i] = std::stoull(hex.substr(16 * i, 16), nullptr, 16);
    read[key] = algorithm;
  }
  ctx.keep<Library>().saved = std::move(read);
}

std::string tuning_library() { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }

}  // namespace bhyt::cuda
