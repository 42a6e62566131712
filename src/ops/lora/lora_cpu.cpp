#include <algorithm>

#include "core/rng.h"
#include "core/threads.h"
#include "ops/lora/lora.h"

namespace bhyt::cpu {

namespace {

template <class T>
void put(const T* x, T* y, std::int64_t i, float factor, bool add) {
  y[i] = from_float<T>(to_float(x[i]) * factor + (add ? to_float(y[i]) : 0.0f));
}

// A row whose first element is number `first` of the matrix. One draw of Philox serves four neighbours.
template <class T>
void masked_row(const T* x, T* y, std::int64_t n, std::int64_t first, const ScaleMasked& how) {
  const std::uint32_t least = dropout_threshold(how.dropout.p);
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t at = first + i, end = std::min(n, i + 4 - at % 4);
    const Philox r = philox(how.dropout.seed, how.dropout.stream, static_cast<std::uint64_t>(at / 4));
    for (std::int64_t k = at % 4; i < end; ++i, ++k) {
      if (r.v[k] >= least)
        put(x, y, i, how.factor, how.add);
      else if (!how.add)
        y[i] = from_float<T>(0.0f);
    }
  }
}

}  // namespace

void scale_masked(Context& ctx, const Tensor& x, const Tensor& y, const ScaleMasked& how) {
  dispatch_float(x.dtype, [&]<class T>(T) {
    const std::int64_t n = x.cols();
    parallel_for(ctx.threads(), x.rows(), (1 << 14) / (n + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const in = x.as<T>() + row * x.ld;
        T* const out = y.as<T>() + row * y.ld;
        if (how.dropout.p > 0)
          masked_row(in, out, n, row * n, how);
        else
          for (std::int64_t i = 0; i < n; ++i) put(in, out, i, how.factor, how.add);
      }
    });
  });
}

}  // namespace bhyt::cpu
