#include "analysis/host_rows.h"

#include <cstring>

#include "core/memory.h"

namespace bhyt::analysis {

Sample spread_over(std::int64_t every, std::int64_t seq) {
  // The golden section of a row further each time.
  const std::int64_t step = 2 * every < seq ? every : every + static_cast<std::int64_t>(0.382 * static_cast<double>(seq));
  return {.every = std::max<std::int64_t>(step, 1), .first = every / 2};
}

HostRows rows_on_host(Context& ctx, const Tensor& x, const Sample& sample) {
  if (sample.count(x.rows()) == 0) return {0, x.cols(), {}};
  Tensor some = x.row_slice(sample.first, sample.count(x.rows()));
  some.ld = x.ld * sample.every;
  OwnedTensor dense;
  if (!some.contiguous()) {
    dense = OwnedTensor(ctx, x.dtype, {some.rows(), some.cols()});
    copy_rows(ctx, some, dense);
    some = dense;
  }
  HostRows out{some.rows(), some.cols(), std::vector<float>(static_cast<std::size_t>(some.size()))};
  if (x.dtype == DType::f32) {
    to_host(ctx, some, out.values.data());
    return out;
  }
  std::vector<bf16> raw(out.values.size());
  to_host(ctx, some, raw.data());
  for (std::size_t i = 0; i < raw.size(); ++i) out.values[i] = to_float(raw[i]);
  return out;
}

std::vector<float> numbers_on_host(Context& ctx, const Tensor& x, const Sample& sample) {
  return rows_on_host(ctx, x.reshape({x.size(), 1}), sample).values;
}

}  // namespace bhyt::analysis
