#include "analysis/depth_walk.h"

#include <algorithm>

#include "core/check.h"
#include "core/memory.h"
#include "core/rng.h"
#include "model/score_pass.h"

namespace bhyt::analysis {

Matrix to_matrix(Context& ctx, const Tensor& t) { return rows_on_host(ctx, t.rank > 1 ? t : t.reshape({t.size(), 1})); }

OwnedTensor to_device(Context& ctx, const Matrix& m, DType type) {
  OwnedTensor t(ctx, type, {m.rows, m.cols});
  if (type == DType::f32) {
    from_host(ctx, m.values.data(), t);
    return t;
  }
  std::vector<bf16> raw(m.values.size());
  std::transform(m.values.begin(), m.values.end(), raw.begin(), [](float v) { return to_bf16(v); });
  from_host(ctx, raw.data(), t);
  return t;
}

TokenRows random_tokens(std::int64_t batch, std::int64_t seq, std::int64_t vocab, std::uint64_t seed) {
  TokenRows rows{.batch = batch, .seq = seq};
  Rng rng(seed);
  for (std::int64_t i = 0; i < batch * seq; ++i)
    rows.tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return rows;
}

void walk_layers(Context& ctx, const Model& model, const TokenRows& rows, std::vector<Point> points,
                 const std::function<void(const LayerValues&)>& look) {
  const OwnedTensor tokens(ctx, DType::i32, {rows.batch, rows.seq});
  from_host(ctx, rows.tokens.data(), tokens);
  LayerValues values;
  points.push_back(Point::block_output);
  ScorePass pass(ctx, model, rows.batch, rows.seq);
  const auto subscription = pass.observers.subscribe(points, [&](Context& at, const Seen& seen) {
    values.layer = seen.layer;
    values.points[static_cast<std::size_t>(seen.point)] = to_matrix(at, seen.value);
    if (seen.point != Point::block_output) return;
    look(values);
    values = {};
  });
  pass.forward({.batch = rows.batch, .seq = rows.seq, .tokens = tokens});
}

Variances variances(const Matrix& a, const Matrix& b) {
  Variances v;
  const auto rows = static_cast<double>(a.rows), cols = static_cast<double>(a.cols);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const auto x = a.row(r), y = b.row(r);
    double mean_x = 0, mean_y = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      mean_x += x[i];
      mean_y += y[i];
    }
    mean_x /= cols;
    mean_y /= cols;
    Variances one;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double dx = x[i] - mean_x, dy = y[i] - mean_y;
      one.a += dx * dx;
      one.b += dy * dy;
      one.covariance += dx * dy;
    }
    v.a += one.a / cols / rows;
    v.b += one.b / cols / rows;
    v.covariance += one.covariance / cols / rows;
  }
  return v;
}

double variance(const Matrix& a) { return variances(a, a).a; }

Matrix difference(const Matrix& a, const Matrix& b) {
  Matrix d = a;
  for (std::size_t i = 0; i < d.values.size(); ++i) d.values[i] -= b.values[i];
  return d;
}

}  // namespace bhyt::analysis
