// A chunk of rows at a time: logits by one product, softmax and loss per row, the logits turned into their gradient where they stand, and
// two more products. In a bf16 run a row's gradient is kept as bf16 in the first half of its own logits.
#include <cmath>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "core/math.h"
#include "core/threads.h"
#include "ops/cross_entropy/cross_entropy.h"
#include "ops/gemm/gemm.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kBytes = 64 << 20;  // of logits at a time, unless 64 rows take more
constexpr std::int64_t kRows = 64;         // chunks are multiples of it, so that the products stay efficient
constexpr std::int64_t kPiece = 2048;      // elements summed in fp32 before the sum goes on in double

// Elements from row to row. A vocabulary is often a power of two, and products that walk down columns then meet the same few lines of
// the cache again and again.
std::int64_t row_distance(std::int64_t vocab) { return vocab % 1024 == 0 ? vocab + 16 : vocab; }

std::int64_t chunk_rows(std::int64_t tokens, std::int64_t vocab) {
  const std::int64_t fit = kBytes / (4 * std::max<std::int64_t>(vocab, 1)) / kRows * kRows;
  return std::min(tokens, std::max(kRows, fit));
}

BHYT_CLONES float largest(const float* x, std::int64_t n) { return max_of(x, n); }

// Replaces x by e^(x − top) and returns the sum.
BHYT_CLONES float exponentials(float* x, float top, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = fast_exp(x[i] - top);
    sum += x[i];
  }
  return sum;
}

BHYT_CLONES void scale(float* x, float by, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] *= by;
}

BHYT_CLONES void scale(const float* x, float by, bf16* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_bf16(x[i] * by);
}

// Scales a row and packs it as bf16 into its own first half; memcpy because the same memory changes its type.
void scale_and_pack(float* x, float by, std::int64_t n) {
  bf16 piece[kPiece];
  for (std::int64_t i = 0; i < n; i += kPiece) {
    const std::int64_t size = std::min(kPiece, n - i);
    scale(x + i, by, piece, size);
    std::memcpy(reinterpret_cast<char*>(x) + 2 * i, piece, static_cast<std::size_t>(2 * size));
  }
}

// −log p(target) of one row of logits. With `grad`, the row becomes (p − onehot)·factor, as bf16 in its first half where `pack` says so.
double row_loss(float* logits, std::int64_t vocab, std::int32_t target, bool grad, float factor, bool pack) {
  const float top = largest(logits, vocab), wanted = logits[target];
  double sum = 0;
  for (std::int64_t i = 0; i < vocab; i += kPiece) sum += exponentials(logits + i, top, std::min(kPiece, vocab - i));
  const double loss = std::log(sum) - (static_cast<double>(wanted) - static_cast<double>(top));
  if (grad) {
    const auto by = static_cast<float>(factor / sum);
    logits[target] = static_cast<float>(static_cast<double>(logits[target]) - sum);  // (p − 1)·sum, without loss of digits near p = 1
    if (pack)
      scale_and_pack(logits, by, vocab);
    else
      scale(logits, by, vocab);
  }
  return loss;
}

std::int32_t argmax(const float* x, std::int64_t n) {
  const float top = largest(x, n);
  for (std::int64_t i = 0; i < n; ++i)
    if (x[i] == top) return static_cast<std::int32_t>(i);
  return 0;  // all NaN
}

void check_targets(const CrossEntropy& job) {
  for (std::int64_t i = 0; i < job.x.rows(); ++i) {
    const std::int32_t t = job.targets.as<std::int32_t>()[i];
    check(t < job.w.rows(), "[cross_entropy] expected targets below {}, got {} at {}", job.w.rows(), t, i);
  }
}

// Loss and gradient of the logits of rows [first, first + logits.rows()); row_losses[i] = weight · loss.
void softmax_rows(Context& ctx, const CrossEntropy& job, std::int64_t first, const Tensor& logits, double* row_losses) {
  const bool pack = job.x.dtype == DType::bf16;
  const std::int64_t vocab = logits.cols();
  const float scale = job.scale_by ? job.scale * *job.scale_by.as<float>() : job.scale;
  parallel_tasks(ctx.threads(), logits.rows(), [&](std::int64_t r) {
    const std::int64_t i = first + r;
    float* row = logits.as<float>() + r * logits.ld;
    const std::int32_t target = job.targets.as<std::int32_t>()[i];
    const float weight = job.weights ? job.weights.as<float>()[i] : 1.0f;
    if (job.greedy) job.greedy.as<std::int32_t>()[i] = argmax(row, vocab);
    double loss = 0;
    if (target >= 0)
      loss = row_loss(row, vocab, target, static_cast<bool>(job.dx), weight * scale, pack);
    else if (job.dx)
      std::memset(row, 0, static_cast<std::size_t>(vocab) * sizeof(float));
    if (job.losses) job.losses.as<float>()[i] = static_cast<float>(loss);
    row_losses[r] = weight == 0 ? 0 : weight * loss;
  });
}

}  // namespace

std::size_t cross_entropy_workspace(std::int64_t tokens, std::int64_t, std::int64_t vocab, DType) {
  return static_cast<std::size_t>(chunk_rows(tokens, vocab) * row_distance(vocab)) * sizeof(float);
}

void cross_entropy(Context& ctx, const CrossEntropy& job) {
  check_targets(job);
  const std::int64_t n = job.x.rows(), vocab = job.w.rows(), rows = chunk_rows(n, vocab);
  std::vector<double> row_losses(static_cast<std::size_t>(rows));
  double total = 0;
  for (std::int64_t first = 0; first < n; first += rows) {
    const std::int64_t r = std::min(rows, n - first);
    const Tensor x = job.x.row_slice(first, r);
    Tensor logits(job.workspace.data, DType::f32, job.x.device, {r, vocab});
    logits.ld = row_distance(vocab);
    bhyt::gemm(ctx, x, job.w, logits, {.trans_b = true, .by_row = job.by_row});
    softmax_rows(ctx, job, first, logits, row_losses.data());
    for (std::int64_t i = 0; i < r; ++i) total += row_losses[static_cast<std::size_t>(i)];
    if (!job.dx) continue;
    Tensor dlogits = logits;
    dlogits.dtype = job.x.dtype;
    if (dlogits.dtype == DType::bf16) dlogits.ld = 2 * logits.ld;
    if (job.dw) bhyt::gemm(ctx, dlogits, x, job.dw, {.trans_a = true, .accumulate = job.accumulate || first > 0});
    bhyt::gemm(ctx, dlogits, job.w, job.dx.row_slice(first, r));
  }
  if (job.loss) *job.loss.as<float>() += static_cast<float>(total);
}

}  // namespace bhyt::cpu
