#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "analysis/theory_model.h"
#include "analysis/theory_random.h"
#include "core/memory.h"
#include "core/threads.h"
#include "ops/gemm/gemm.h"
#include "ops/linear/linear.h"
#include "ops/norm/maps.h"

namespace bhyt::analysis {

namespace {

double mean_square(const Matrix& m) {
  double s = 0;
  for (const float v : m.values) s += static_cast<double>(v) * v;
  return s / static_cast<double>(m.values.size());
}

struct Factor {
  std::string name, says;
  double value = 1;
};

// One layer. It meets the assumptions where its factors together are near 1, each by itself counted. Each assumption keeps the layer that
// is furthest off.
void take(Finding& f, const std::vector<Factor>& factors, double ratio, std::int64_t layer, const char* what) {
  double total = 0;
  const bool first = f.assumptions.empty();
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double off = std::fabs(std::log(factors[i].value));
    total += off;
    if (first) f.assumptions.push_back({.name = factors[i].name, .expected = 1, .measured = 1});
    Assumption& a = f.assumptions[i];
    if (first || !(off <= std::fabs(std::log(a.measured)))) {
      a.measured = factors[i].value;
      a.layer = layer;
      a.met = off <= kQuarter;
      a.says = fmt::format("{} {:.3g} (layer {})", factors[i].says, factors[i].value, layer);
    }
  }
  if (first) f.assumptions.push_back({.name = "all together", .expected = 1, .measured = 1});
  Assumption& all = f.assumptions.back();
  const double off = std::fabs(std::log(ratio));
  if (first || !(off <= std::fabs(std::log(all.measured)))) {
    all.measured = ratio;
    all.layer = layer;
    all.met = off <= kQuarter;
    all.says = fmt::format("{} is {:.3g} times the claim (layer {})", what, ratio, layer);
  }
  if (total <= kQuarter)
    f.add(kQuarter - off, fmt::format("layer {}", layer));
  else
    f.add_beyond(off <= kQuarter);
}

// Σ over one head's queries of Σ w².
double head_concentration(const ModelConfig& c, std::int64_t seq, std::int64_t row, std::int64_t head, const Matrix& q, const Matrix& k) {
  const auto d = static_cast<std::size_t>(c.head_dim);
  const auto from = static_cast<std::size_t>(head * c.head_dim),
             key_from = static_cast<std::size_t>(head / (c.heads / c.kv_heads) * c.head_dim);
  const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  std::vector<float> w(static_cast<std::size_t>(seq));
  double total = 0;
  for (std::int64_t t = 0; t < seq; ++t) {
    const float* query = q.row(row * seq + t).data() + from;
    float most = -INFINITY;
    for (std::int64_t s = 0; s <= t; ++s) {
      const float* key = k.row(row * seq + s).data() + key_from;
      float dot = 0;
      for (std::size_t i = 0; i < d; ++i) dot += query[i] * key[i];
      w[static_cast<std::size_t>(s)] = dot * scale;
      most = std::max(most, dot * scale);
    }
    double sum = 0, squares = 0;
    for (std::int64_t s = 0; s <= t; ++s) {
      const double e = std::exp(static_cast<double>(w[static_cast<std::size_t>(s)] - most));
      sum += e;
      squares += e * e;
    }
    total += squares / (sum * sum);
  }
  return total;
}

// Each token's value through W_O alone, as if it looked at itself: z·W_V·W_O.
Matrix own_outputs(Context& ctx, const ModelConfig& c, const LayerWeights& w, const Matrix& v) {
  Matrix heads{.rows = v.rows, .cols = c.q_width()};
  const std::int64_t group = c.heads / c.kv_heads;
  for (std::int64_t t = 0; t < v.rows; ++t)
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const auto from = v.row(t).subspan(static_cast<std::size_t>(h / group * c.head_dim), static_cast<std::size_t>(c.head_dim));
      heads.values.insert(heads.values.end(), from.begin(), from.end());
    }
  const OwnedTensor y(ctx, w.o.dtype, {v.rows, c.d});
  linear(ctx, to_device(ctx, heads, w.o.dtype), w.o, y);
  return to_matrix(ctx, y);
}

// What a site's map makes of a·x, and a·x itself: mean squares.
struct Mapped {
  double before = 0, after = 0;
};
Mapped mapped(const SitePlan& plan, double shift, const Matrix& x, const Matrix& scale) {
  Mapped m;
  const auto share = 1 / static_cast<double>(x.values.size());
  dispatch_map(plan.map, [&](auto f) {
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const double a = scale.values[static_cast<std::size_t>(t)];
      double mean = 0;
      if (plan.stat == Stat::mean_var)
        for (const float v : x.row(t)) mean += static_cast<double>(v) / static_cast<double>(x.cols);
      for (const float v : x.row(t)) {
        const double u = a * (v - mean), y = decltype(f)::value(u + shift);
        m.before += u * u * share;
        m.after += y * y * share;
      }
    }
  });
  return m;
}

}  // namespace

double attention_concentration(Context& ctx, const ModelConfig& c, const TokenRows& rows, const Matrix& q, const Matrix& k) {
  std::vector<double> parts(static_cast<std::size_t>(rows.batch * c.heads));
  parallel_tasks(ctx.threads(), std::ssize(parts), [&](std::int64_t i) {
    parts[static_cast<std::size_t>(i)] = head_concentration(c, rows.seq, i / c.heads, i % c.heads, q, k);
  });
  double total = 0;
  for (const double p : parts) total += p;
  return total / static_cast<double>(rows.batch * c.heads * rows.seq);
}

void check_attention(Context& ctx, const Model& model, const TokenRows& rows, const LayerValues& v, const SiteValues& site, Finding& f) {
  const ModelConfig& c = model.config();
  const LayerWeights& w = model.weights().layers[static_cast<std::size_t>(v.layer - 1)];
  const auto seq = static_cast<double>(rows.seq), d = static_cast<double>(c.d);
  const OwnedTensor constant(ctx, DType::f32, {1});
  attention_constant(ctx, w.qkv.row_slice(c.q_width() + c.kv_width(), c.kv_width()), w.o, c.heads, c.kv_heads, rows.seq, constant);
  const double claim = to_matrix(ctx, constant).values[0], product = claim * seq * d;  // ‖W_V W_O‖_F²/(T·d), ‖W_V W_O‖_F²
  const Mapped m = mapped(site.plan, site.shift, v.at(Point::block_input), v.at(Point::scale1));
  const double out = static_cast<double>(site.plan.out_factor) * site.plan.out_factor;
  const double z = mean_square(v.at(Point::z1)), own = mean_square(own_outputs(ctx, c, w, v.at(Point::v))),
               h = mean_square(v.at(Point::attention_output));
  const double looked_at = attention_concentration(ctx, c, rows, v.at(Point::q), v.at(Point::k));
  const double ratio = h / (claim * out * m.before);
  double harmonic = 0;  // what causality alone makes of it
  for (std::int64_t t = 1; t <= rows.seq; ++t) harmonic += 1 / static_cast<double>(t);
  take(f,
       {{"tanh is nearly linear", "E f(a·x)² over E (a·x)² is", m.after / m.before},
        {"γ = 1", "mean z² over what it is without γ is", z / (out * m.after)},
        {"z has no direction", "‖z·W_V·W_O‖² over that of a z without one is", own * d / (z * product)},
        {"attention is uniform over T",
         fmt::format("T = {} over the tokens looked at ({:.3g} where all that came before is) is", rows.seq, harmonic), seq * looked_at},
        {"tokens are independent", "the mean of what is looked at, over that of independent tokens, is", h / (own * looked_at)}},
       ratio, v.layer, "the variance of attention's output");
}

void check_mlp(Context& ctx, const Model& model, const LayerValues& v, Finding& f) {
  const ModelConfig& c = model.config();
  const LayerWeights& w = model.weights().layers[static_cast<std::size_t>(v.layer - 1)];
  const Tensor up = w.gate_up.row_slice(c.mlp, c.mlp);
  const OwnedTensor product(ctx, DType::f32, {c.d, c.d}), through(ctx, w.down.dtype, {v.at(Point::up).rows, c.d});
  gemm(ctx, w.down, up, product);
  linear(ctx, to_device(ctx, v.at(Point::up), w.down.dtype), w.down, through);
  const auto d = static_cast<double>(c.d);
  const double z = mean_square(v.at(Point::z2)), u = mean_square(v.at(Point::up)), hidden = mean_square(v.at(Point::hidden));
  const double norm = mean_square(to_matrix(ctx, product)) * d * d, linear_output = mean_square(to_matrix(ctx, through));
  const double tau = hidden / u, h = mean_square(v.at(Point::mlp_output));
  take(f,
       {{"z has no direction", "‖z·W₁W₂‖² over that of a z without one is", linear_output * d / (z * norm)},
        {"φ scales the covariance by τ", "‖φ(z·W₁)·W₂‖² over τ·‖z·W₁W₂‖² is", h / (tau * linear_output)}},
       h * d / (tau * z * norm), v.layer, "the variance of the MLP's output");
}

}  // namespace bhyt::analysis
