#include <algorithm>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/threads.h"
#include "ops/embedding/embedding.h"

namespace bhyt::cpu {

namespace {

constexpr std::int64_t kGrain = 16384;  // elements to a task
constexpr std::int64_t kPiece = 512;    // columns that one task adds up for a token: frequent tokens are shared among threads

template <class T>
BHYT_BOTH void scale_loop(const T* in, float scale, T* out, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<T>(to_float(in[i]) * scale);
}
template <class T>
BHYT_BOTH void add_loop(const T* in, float scale, float* sum, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) sum[i] += scale * to_float(in[i]);
}
template <class T>
BHYT_BOTH float dot_loop(const T* a, const T* b, std::int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

BHYT_CLONES void scale_row(const float* in, float scale, float* out, std::int64_t n) { scale_loop(in, scale, out, n); }
BHYT_CLONES void scale_row(const bf16* in, float scale, bf16* out, std::int64_t n) { scale_loop(in, scale, out, n); }
BHYT_CLONES void add_row(const float* in, float scale, float* sum, std::int64_t n) { add_loop(in, scale, sum, n); }
BHYT_CLONES void add_row(const bf16* in, float scale, float* sum, std::int64_t n) { add_loop(in, scale, sum, n); }
BHYT_CLONES float dot_row(const float* a, const float* b, std::int64_t n) { return dot_loop(a, b, n); }
BHYT_CLONES float dot_row(const bf16* a, const bf16* b, std::int64_t n) { return dot_loop(a, b, n); }

float value_of(const EmbeddingScale& s) { return s.learned ? *s.learned.as<float>() : s.constant; }

std::int64_t rows_per_task(const Tensor& table) { return kGrain / std::max<std::int64_t>(1, table.cols()); }

void check_tokens(const Tensor& tokens, std::int64_t vocab) {
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t token = tokens.as<std::int32_t>()[i];
    check(token >= 0 && token < vocab, "[embedding] expected tokens from 0 to {}, got {} at {}", vocab - 1, token, i);
  }
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out, const EmbeddingScale& scale) {
  check_tokens(tokens, table.rows());
  const auto* token = tokens.as<std::int32_t>();
  const float s = value_of(scale);
  dispatch_float(table.dtype, [&]<class T>(T) {
    parallel_for(ctx.threads(), tokens.size(), rows_per_task(table), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* from = table.as<T>() + token[i] * table.ld;
        T* to = out.as<T>() + i * out.ld;
        if (s == 1.0f)
          std::copy_n(from, table.cols(), to);
        else
          scale_row(from, s, to, table.cols());
      }
    });
  });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& dout, const Tensor& dtable,
                        const EmbeddingScale& scale) {
  check_tokens(tokens, table.rows());
  const auto* token = tokens.as<std::int32_t>();
  const std::int64_t n = tokens.size(), c = table.cols(), pieces = (c + kPiece - 1) / kPiece;
  const float s = value_of(scale);

  // Rows in the order of their tokens; equal tokens keep their order, and one task adds them up before the table sees them.
  std::vector<std::int64_t> order(static_cast<std::size_t>(n)), first;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return token[a] < token[b]; });
  for (std::size_t i = 0; i < order.size(); ++i)
    if (i == 0 || token[order[i]] != token[order[i - 1]]) first.push_back(static_cast<std::int64_t>(i));
  const auto groups = dtable ? static_cast<std::int64_t>(first.size()) : 0;
  first.push_back(n);

  dispatch_float(table.dtype, [&]<class T>(T) {
    parallel_for(ctx.threads(), groups * pieces, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const auto group = static_cast<std::size_t>(task / pieces);
        const std::int64_t column = task % pieces * kPiece, width = std::min(kPiece, c - column);
        float sum[kPiece] = {};
        for (std::int64_t i = first[group]; i < first[group + 1]; ++i)
          add_row(dout.as<T>() + order[static_cast<std::size_t>(i)] * dout.ld + column, 1.0f, sum, width);
        const std::int64_t row = token[order[static_cast<std::size_t>(first[group])]];
        add_row(sum, s, dtable.as<float>() + row * dtable.ld + column, width);
      }
    });
    if (!scale.dlearned) return;
    std::vector<double> dots(static_cast<std::size_t>(n));
    parallel_for(ctx.threads(), n, rows_per_task(table), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        dots[static_cast<std::size_t>(i)] = dot_row(dout.as<T>() + i * dout.ld, table.as<T>() + token[i] * table.ld, c);
    });
    *scale.dlearned.as<float>() += static_cast<float>(std::accumulate(dots.begin(), dots.end(), 0.0));
  });
}

void take_fed(Context&, const Tensor& tokens, const Tensor& feed) {
  for (std::int64_t i = 0; i < tokens.size(); ++i) {
    std::int32_t& token = tokens.as<std::int32_t>()[i];
    if (token >= 0) continue;
    check(-1 - token < feed.size(), "[take_fed] expected references to {} fed tokens, got {}", feed.size(), token);
    token = std::max(feed.as<std::int32_t>()[-1 - token], 0);
  }
}

}  // namespace bhyt::cpu
