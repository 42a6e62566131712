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

// Some of the tokens: every so many, from the first on.
struct Sample {
  std::int64_t every = 1, first = 0;

  std::int64_t count(std::int64_t tokens) const { return first < tokens ? (tokens - first + every - 1) / every : 0; }
  // For the tokens that follow these, as if they were one row.
  void advance(std::int64_t tokens) { first += count(tokens) * every - tokens; }
};

// One in `every` of rows of `seq` tokens, so that all positions have their turn: a step that is a multiple of the row would meet the same
// one again and again, so a long one is not.
Sample spread_over(std::int64_t every, std::int64_t seq);

// x [N,C] of any float type and on any device, a column slice too. Waits.
HostRows rows_on_host(Context& ctx, const Tensor& x, const Sample& sample = {});
// One number for each of N tokens, fp32.
std::vector<float> numbers_on_host(Context& ctx, const Tensor& x, const Sample& sample = {});

}  // namespace bhyt::analysis
