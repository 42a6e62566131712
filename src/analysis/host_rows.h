// Activations on the host, where they are counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt::analysis {

struct HostRows {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values;

  std::span<const float> row(std::int64_t i) const {
    return std::span(values).subspan(static_cast<std::size_t>(i * cols), static_cast<std::size_t>(cols));
  }
};

// Some of the tokens: every so many, from the middle of the first stretch on, so that the beginnings of rows weigh no more than they
// should.
struct Sample {
  std::int64_t every = 1;

  std::int64_t first(std::int64_t tokens) const { return std::min(every / 2, tokens - 1); }
  std::int64_t count(std::int64_t tokens) const { return (tokens - first(tokens) + every - 1) / every; }
};

// x [N,C] of any float type and on any device, a column slice too. Waits.
HostRows rows_on_host(Context& ctx, const Tensor& x, const Sample& sample = {});
// One number for each of N tokens, fp32.
std::vector<float> numbers_on_host(Context& ctx, const Tensor& x, const Sample& sample = {});

}  // namespace bhyt::analysis
