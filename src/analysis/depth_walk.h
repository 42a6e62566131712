// What passes through the layers of a model, brought to the host: for what looks at one layer after the other.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "analysis/host_rows.h"
#include "model/model.h"
#include "model/observer.h"

namespace bhyt::analysis {

using Matrix = HostRows;

// fp32 or bf16, column slices too; a vector becomes a column.
Matrix to_matrix(Context& ctx, const Tensor& t);
OwnedTensor to_device(Context& ctx, const Matrix& m, DType type);

struct TokenRows {
  std::int64_t batch = 0, seq = 0;
  std::vector<std::int32_t> tokens;  // [B,T]
};

// Ids drawn evenly: what a model that knows nothing may as well read.
TokenRows random_tokens(std::int64_t batch, std::int64_t seq, std::int64_t vocab, std::uint64_t seed);

// One layer over all rows; block_output is there, too. A point that was not asked for, or that the method has not, is empty.
struct LayerValues {
  std::int64_t layer = 0;  // from 1
  std::array<Matrix, kPoints> points;
  const Matrix& at(Point p) const { return points[static_cast<std::size_t>(p)]; }
};

// One forward; `look` is called for each layer in order. Memory holds one layer's values.
void walk_layers(Context& ctx, const Model& model, const TokenRows& rows, std::vector<Point> points,
                 const std::function<void(const LayerValues&)>& look);

// Of the rows of a stream, over features: variance and covariance about each row's mean, averaged over the rows.
struct Variances {
  double a = 0, b = 0, covariance = 0;
};
Variances variances(const Matrix& a, const Matrix& b);
double variance(const Matrix& a);
Matrix difference(const Matrix& a, const Matrix& b);  // a − b

}  // namespace bhyt::analysis
