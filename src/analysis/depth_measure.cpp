// The recursion's terms as a model has them.
#include <cmath>

#include "analysis/depth.h"
#include "core/memory.h"
#include "ops/linear/linear.h"
#include "ops/swiglu/swiglu.h"

namespace bhyt::analysis {

namespace {

SiteValues learned(Context& ctx, const SitePlan& plan, const SiteWeights& w) {
  SiteValues v{.plan = plan};
  const Matrix gamma = to_matrix(ctx, w.gamma);
  v.gamma2 = 0;
  for (const float g : gamma.values) v.gamma2 += static_cast<double>(g) * g / static_cast<double>(gamma.values.size());
  if (w.scale) v.scale = to_matrix(ctx, w.scale).values[0];
  if (w.shift) v.shift = to_matrix(ctx, w.shift).values[0];
  return v;
}

// The MLP's gain for inputs that are larger or smaller than those it has: z times powers of two. Some rows will do; what they come to at
// their own size is brought to what all of them came to.
Gain mlp_gain(Context& ctx, const LayerWeights& w, const Matrix& z, double own_gain) {
  constexpr std::int64_t kRows = 256;
  Matrix some{.rows = std::min(z.rows, kRows), .cols = z.cols};
  some.values.assign(z.values.begin(), z.values.begin() + some.rows * some.cols);
  const DType type = w.down.dtype;
  const OwnedTensor gate_up(ctx, type, {some.rows, w.gate_up.rows()}), h(ctx, type, {some.rows, w.down.cols()});
  const OwnedTensor y(ctx, type, {some.rows, w.down.rows()});
  Gain g;
  double at_one = 1;
  for (int power = -5; power <= 5; ++power) {
    Matrix scaled = some;
    for (float& v : scaled.values) v = std::ldexp(v, power);
    linear(ctx, to_device(ctx, scaled, type), w.gate_up, gate_up);
    swiglu(ctx, gate_up, h);
    linear(ctx, h, w.down, y);
    const double in = variance(scaled);
    g.input.push_back(in);
    g.gain.push_back(in > 0 ? variance(to_matrix(ctx, y)) / in : 0);
    if (power == 0) at_one = g.gain.back();
  }
  // The inputs of the curve are those of all rows.
  const double own_input = variance(z), of_some = variance(some);
  for (std::size_t i = 0; i < g.gain.size(); ++i) {
    g.gain[i] *= at_one > 0 ? own_gain / at_one : 0;
    g.input[i] *= of_some > 0 ? own_input / of_some : 1;
  }
  return g;
}

SublayerMeasure measure_sublayer(const Matrix& before, const Matrix& z, const Matrix& output, const Matrix& after) {
  const Variances v = variances(before, difference(after, before));
  const double size = std::sqrt(v.a * v.b);
  return {.stream = v.a, .norm = variance(z), .raw = variance(output), .branch = v.b, .rho = size > 0 ? v.covariance / size : 0};
}

double gain_of(const SublayerMeasure& m) { return m.norm > 0 ? m.raw / m.norm : 0; }

double attention_constant_of(Context& ctx, const ModelConfig& c, const LayerWeights& w) {
  const OwnedTensor out(ctx, DType::f32, {1});
  const Tensor wv = w.qkv.row_slice(c.q_width() + c.kv_width(), c.kv_width());
  attention_constant(ctx, wv, w.o, c.heads, c.kv_heads, trained_length(c), out);
  return to_matrix(ctx, out).values[0];
}

}  // namespace

std::vector<BlockValues> learned_values(Context& ctx, const Model& model) {
  std::vector<BlockValues> blocks = initial_values(model.norms());
  for (std::size_t l = 0; l < blocks.size(); ++l) {
    BlockValues& b = blocks[l];
    const LayerWeights& w = model.weights().layers[l];
    b.site1 = learned(ctx, b.site1.plan, w.site1);
    b.site2 = learned(ctx, b.site2.plan, w.site2);
    if (w.ms_correction) b.ms_correction = to_matrix(ctx, w.ms_correction).values[0];
    if (w.constant_correction) b.constant_correction = to_matrix(ctx, w.constant_correction).values[0];
    if (b.out1) b.out1 = learned(ctx, b.out1->plan, w.out1);
    if (b.out2) b.out2 = learned(ctx, b.out2->plan, w.out2);
  }
  return blocks;
}

std::vector<Point> depth_points() {
  return {Point::block_input, Point::z1, Point::attention_output, Point::after_attention, Point::z2, Point::mlp_output};
}

void measure_layer(Context& ctx, const Model& model, const LayerValues& v, DepthMeasure& out) {
  const SublayerMeasure attention =
      measure_sublayer(v.at(Point::block_input), v.at(Point::z1), v.at(Point::attention_output), v.at(Point::after_attention));
  const SublayerMeasure mlp =
      measure_sublayer(v.at(Point::after_attention), v.at(Point::z2), v.at(Point::mlp_output), v.at(Point::block_output));
  if (out.attention.empty()) out.stack.input = attention.stream;
  out.attention.push_back(attention);
  out.mlp.push_back(mlp);
  out.output = variance(v.at(Point::block_output));
  const LayerWeights& w = model.weights().layers[static_cast<std::size_t>(v.layer - 1)];
  out.stack.layers.push_back({.attention = Gain::constant(gain_of(attention)),
                              .mlp = mlp_gain(ctx, w, v.at(Point::z2), gain_of(mlp)),
                              .rho1 = attention.rho,
                              .rho2 = mlp.rho,
                              .c_attn = attention_constant_of(ctx, model.config(), w)});
}

DepthMeasure measure_depth(Context& ctx, const Model& model, const TokenRows& rows) {
  DepthMeasure out;
  walk_layers(ctx, model, rows, depth_points(), [&](const LayerValues& v) { measure_layer(ctx, model, v, out); });
  return out;
}

}  // namespace bhyt::analysis
