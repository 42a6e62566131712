// Sublayers and stacks of random weights against what the paper says of them.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "analysis/depth.h"
#include "analysis/theory_random.h"
#include "core/memory.h"

namespace bhyt::analysis {

namespace {

using Values = std::vector<double>;

// y [m,n] = a [m,k] · b [k,n].
Values multiply(const Values& a, const Values& b, std::int64_t m, std::int64_t k, std::int64_t n) {
  Values y(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t l = 0; l < k; ++l) {
      const double f = a[static_cast<std::size_t>(i * k + l)];
      const double* from = b.data() + l * n;
      double* to = y.data() + i * n;
      for (std::int64_t j = 0; j < n; ++j) to[j] += f * from[j];
    }
  return y;
}

double sum_of_squares(const Values& v) {
  double s = 0;
  for (const double x : v) s += x * x;
  return s;
}

Values transposed(const Values& v, std::int64_t rows, std::int64_t cols) {
  Values t(v.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) t[static_cast<std::size_t>(c * rows + r)] = v[static_cast<std::size_t>(r * cols + c)];
  return t;
}

// One attention without queries and keys: who looks at whom is given.
struct AttentionCase {
  std::int64_t seq = 64, kv_heads = 4;
  double lambda = 1, kappa = 10;
  bool causal = false;
  std::int64_t seen = 0;  // tokens that get any weight; 0: all
  double shared = 0;      // of a token's variance, the share that all tokens of a sequence have in common
};
constexpr std::int64_t kWidth = 64, kHeads = 4, kHeadDim = 16, kSequences = 64;

// Rows of z = tanh(λ/κ·x/rms(x)), a row for each token of a sequence.
Values tokens_of(const AttentionCase& c, const Draws& own, const Draws& common, std::int64_t sequence) {
  Values z;
  for (std::int64_t t = 0; t < c.seq; ++t) {
    Values x;
    for (std::int64_t i = 0; i < kWidth; ++i)
      x.push_back(std::sqrt(1 - c.shared) * own.normal(static_cast<std::uint64_t>((sequence * c.seq + t) * kWidth + i)) +
                  std::sqrt(c.shared) * common.normal(static_cast<std::uint64_t>(sequence * kWidth + i)));
    const double a = c.lambda / c.kappa / std::sqrt(moments(x).square);
    for (const double v : x) z.push_back(std::tanh(a * v));
  }
  return z;
}

// Means over what each position sees: all, the first `seen`, or what lies before it. Without causality all positions see the same.
Values means_of(const AttentionCase& c, const Values& z) {
  Values out, sum(kWidth, 0.0);
  const std::int64_t most = c.seen > 0 ? c.seen : c.seq;
  for (std::int64_t t = 0; t < most; ++t) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += z[static_cast<std::size_t>(t * kWidth) + i];
    if (c.causal || t + 1 == most)
      for (const double s : sum) out.push_back(s / static_cast<double>(t + 1));
  }
  return out;
}

double program_constant(Context& ctx, const AttentionCase& c, const Values& wv, const Values& wo) {
  const std::int64_t kv = c.kv_heads * kHeadDim;
  const Values tv = transposed(wv, kWidth, kv), to = transposed(wo, kHeads * kHeadDim, kWidth);
  const Matrix v{.rows = kv, .cols = kWidth, .values = {tv.begin(), tv.end()}};
  const Matrix o{.rows = kWidth, .cols = kHeads * kHeadDim, .values = {to.begin(), to.end()}};
  const OwnedTensor out(ctx, DType::f32, {1});
  attention_constant(ctx, to_device(ctx, v, DType::f32), to_device(ctx, o, DType::f32), kHeads, c.kv_heads, c.seq, out);
  return to_matrix(ctx, out).values[0];
}

// Mean square of the output over what the paper claims.
double attention_ratio(Context& ctx, const AttentionCase& c, std::uint64_t stream) {
  const std::int64_t kv = c.kv_heads * kHeadDim, group = kHeads / c.kv_heads;
  const Values wv = Draws(stream).normals(kWidth * kv, 0.125), wo = Draws(stream + 1).normals(kHeads * kHeadDim * kWidth, 0.125);
  double square = 0;
  std::size_t count = 0;
  for (std::int64_t s = 0; s < kSequences; ++s) {
    const Values means = means_of(c, tokens_of(c, Draws(stream + 2), Draws(stream + 3), s));
    const std::int64_t positions = std::ssize(means) / kWidth;
    const Values v = multiply(means, wv, positions, kWidth, kv);
    Values heads;  // each head of v as often as queries share it
    for (std::int64_t t = 0; t < positions; ++t)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t i = 0; i < kHeadDim; ++i) heads.push_back(v[static_cast<std::size_t>(t * kv + h / group * kHeadDim + i)]);
    const Values y = multiply(heads, wo, positions, kHeads * kHeadDim, kWidth);
    square += sum_of_squares(y);
    count += y.size();
  }
  const double claimed = program_constant(ctx, c, wv, wo) * c.lambda * c.lambda / (c.kappa * c.kappa);
  return square / static_cast<double>(count) / claimed;
}

Assumption without(const std::string& name, double ratio, const std::string& says) {
  return {.name = name,
          .expected = 1,
          .measured = ratio,
          .met = std::fabs(std::log(ratio)) <= kQuarter,
          .says = fmt::format("{}: {:.3g} times the claim", says, ratio)};
}

}  // namespace

Finding random_attention(Context& ctx) {
  Finding f;
  std::uint64_t stream = 4000;
  for (const std::int64_t seq : {16, 64})
    for (const std::int64_t kv_heads : {4, 2})
      for (const double lambda : {1.0, 2.0}) {
        const double ratio = attention_ratio(ctx, {.seq = seq, .kv_heads = kv_heads, .lambda = lambda}, stream);
        stream += 4;
        f.add(kQuarter - std::fabs(std::log(ratio)), fmt::format("T {}, {} of {} heads, λ {}, κ 10", seq, kv_heads, kHeads, lambda));
      }
  const auto drop = [&](const char* name, const AttentionCase& c, const char* says) {
    const double ratio = attention_ratio(ctx, c, stream);
    stream += 4;
    f.assumptions.push_back(without(name, ratio, says));
    f.add_beyond(f.assumptions.back().met);
  };
  drop("attention is uniform", {.seen = 8}, "weight on 8 of 64 tokens");
  drop("every token sees all T", {.causal = true}, "uniform over what came before (causal), T 64");
  drop("tokens are independent", {.shared = 0.5}, "half of the variance common to all 64 tokens");
  drop("tanh is nearly linear", {.lambda = 2, .kappa = 1}, "λ/κ = 2");
  f.settle();
  return f;
}

namespace {

struct Activation {
  const char* name;
  bool gated;
  double (*map)(double);
};
double silu(double x) { return x / (1 + std::exp(-x)); }
constexpr Activation kActivations[] = {{"identity", false, [](double x) { return x; }},
                                       {"relu", false, [](double x) { return x > 0 ? x : 0; }},
                                       {"silu", false, silu},
                                       {"gated silu", true, silu}};
constexpr std::int64_t kInner = 128, kSamples = 1000;

// Σ over columns of the variance over rows.
double total_variance(const Values& v, std::int64_t rows, std::int64_t cols) {
  double total = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    double mean = 0, square = 0;
    for (std::int64_t r = 0; r < rows; ++r) mean += v[static_cast<std::size_t>(r * cols + c)] / static_cast<double>(rows);
    for (std::int64_t r = 0; r < rows; ++r) square += std::pow(v[static_cast<std::size_t>(r * cols + c)] - mean, 2);
    total += square / static_cast<double>(rows);
  }
  return total;
}

// The direction in which w [rows,cols] is longest, of length 1: by its powers.
Values longest_direction(const Values& w, std::int64_t rows, std::int64_t cols) {
  const Values t = transposed(w, rows, cols);
  Values v(static_cast<std::size_t>(rows), 1.0);
  for (int i = 0; i < 1000; ++i) {
    v = multiply(multiply(v, w, 1, rows, cols), t, 1, cols, rows);
    const double length = std::sqrt(sum_of_squares(v));
    for (double& x : v) x /= length;
  }
  return v;
}

struct MlpOutcome {
  double ratio = 0, tau = 0;
};
// skew: of the variance of z, the share that lies in the direction in which W₁W₂ is longest.
MlpOutcome mlp_outcome(const Activation& a, double size, double skew, std::uint64_t stream) {
  const Values w1 = Draws(stream).normals(kWidth * kInner, 0.125), w2 = Draws(stream + 1).normals(kInner * kWidth, 1 / std::sqrt(128.0));
  const Values gate = Draws(stream + 2).normals(kWidth * kInner, 0.125), both = multiply(w1, w2, kWidth, kInner, kWidth);
  const Values direction = skew > 0 ? longest_direction(both, kWidth, kWidth) : Values(kWidth, 0.0);
  Values z = Draws(stream + 3).normals(kSamples * kWidth, size * std::sqrt(1 - skew));
  for (std::int64_t r = 0; r < kSamples; ++r) {
    const double along = size * std::sqrt(skew * kWidth) * Draws(stream + 4).normal(static_cast<std::uint64_t>(r));
    for (std::int64_t i = 0; i < kWidth; ++i) z[static_cast<std::size_t>(r * kWidth + i)] += along * direction[static_cast<std::size_t>(i)];
  }
  const Values u = multiply(z, w1, kSamples, kWidth, kInner), g = multiply(z, gate, kSamples, kWidth, kInner);
  Values v = u;
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = a.gated ? a.map(g[i]) * u[i] : a.map(u[i]);
  const Values h = multiply(v, w2, kSamples, kInner, kWidth);
  MlpOutcome out{.tau = total_variance(v, kSamples, kInner) / total_variance(u, kSamples, kInner)};
  const double product = sum_of_squares(both), s2 = total_variance(z, kSamples, kWidth) / kWidth;
  out.ratio = total_variance(h, kSamples, kWidth) / kWidth / (out.tau * s2 / kWidth * product);
  return out;
}

}  // namespace

Finding random_mlp() {
  Finding f;
  std::uint64_t stream = 5000;
  double small = 0, large = 0;
  for (const Activation& a : kActivations)
    for (const double size : {0.1, 1.0}) {
      const MlpOutcome o = mlp_outcome(a, size, 0, stream);
      stream += 5;
      f.add(kQuarter - std::fabs(std::log(o.ratio)), fmt::format("{}, s_z {}", a.name, size));
      if (a.gated) (size < 1 ? small : large) = o.tau;
    }
  const MlpOutcome aligned = mlp_outcome(kActivations[0], 1, 0.5, stream);
  f.assumptions.push_back(without("z has no direction", aligned.ratio, "half of its variance where W₁W₂ is longest"));
  f.add_beyond(f.assumptions.back().met);
  f.assumptions.push_back({.name = "τ is a number",
                           .expected = 1,
                           .measured = large / small,
                           .met = false,
                           .says = fmt::format("of a gated MLP τ is {:.3g} at s_z 0.1 and {:.3g} at s_z 1", small, large)});
  f.settle();
  return f;
}

namespace {

double log_uniform(double u, double low, double high) { return low * std::pow(high / low, u); }

// A stack of layers that are not alike. ρ between `least` and 1.
std::vector<RecursionLayer> random_layers(const Draws& d, std::int64_t layers, double least) {
  std::vector<RecursionLayer> out;
  for (std::int64_t l = 0; l < layers; ++l) {
    const auto u = [&](int i) { return d.uniform(static_cast<std::uint64_t>(16 + 4 * l + i)); };
    out.push_back({.c_attention = log_uniform(u(0), 0.01, 100),
                   .c_mlp = log_uniform(u(1), 0.01, 100),
                   .rho1 = least + (1 - least) * u(2),
                   .rho2 = least + (1 - least) * u(3),
                   .f1 = 1,
                   .f2 = 1});
  }
  return out;
}

void set_outputs(std::vector<RecursionLayer>& layers, const std::function<double(std::int64_t)>& f1,
                 const std::function<double(std::int64_t)>& f2) {
  for (std::int64_t l = 0; l < std::ssize(layers); ++l) {
    layers[static_cast<std::size_t>(l)].f1 = f1(l + 1);
    layers[static_cast<std::size_t>(l)].f2 = f2(l + 1);
  }
}

}  // namespace

Finding random_recursion() {
  constexpr double kSame = 1e-9;
  Finding f;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const Draws d(6000 + i);
    const auto layers = static_cast<std::int64_t>(2 + std::floor(62 * d.uniform(0)));
    const double input = log_uniform(d.uniform(1), 1e-3, 10);
    std::vector<RecursionLayer> stack = random_layers(d, layers, -0.9);
    const double sum = recursion(input, stack).back(), product = product_form(input, stack);
    f.add(kSame - std::fabs(product / sum - 1), fmt::format("{} layers, product against sum", layers));
    // Between its two bounds, where ρ ≥ 0.
    const double lambda = 0.5 + 3 * d.uniform(2), kappa = 2 + 8 * d.uniform(3), g = lambda / kappa;
    stack = random_layers(d, layers, 0);
    const auto end = [&](double f2) {
      set_outputs(
          stack, [&](auto) { return f2; }, [&](auto) { return f2; });
      return recursion(input, stack).back();
    };
    const double low = end(std::pow(std::tanh(lambda) / kappa, 2)), high = end(g * g),
                 mid = end(g * g * 0.5 * (1 + std::pow(std::tanh(lambda) / lambda, 2)));
    f.add(std::min(mid - low, high - mid) / high, fmt::format("{} layers, between BHyT's bounds", layers), kSame);
  }
  // The recursion itself is the algebra of variances: of any two vectors.
  for (std::uint64_t i = 0; i < 20; ++i) {
    const Values x = Draws(6200 + i).normals(512, 2), other = Draws(6300 + i).normals(512);
    Matrix a{.rows = 1, .cols = 512}, b = a, c = a;
    for (std::size_t k = 0; k < x.size(); ++k) {
      a.values.push_back(static_cast<float>(x[k]));
      b.values.push_back(static_cast<float>(other[k] - 0.3 * x[k]));
      c.values.push_back(a.values[k] + b.values[k]);
    }
    const Variances v = variances(a, b);
    const double rho = v.covariance / std::sqrt(v.a * v.b);
    f.add(1e-6 - std::fabs(add_branch(v.a, v.b, rho) / variance(c) - 1), "a stream and a branch of 512 values");
  }
  f.settle();
  return f;
}

Finding random_comparison() {
  Finding f;
  constexpr std::int64_t kDepths[] = {2, 8, 16, 32, 64, 128};
  double worst = 0;
  for (std::uint64_t i = 0; i < 240; ++i) {
    const Draws d(7000 + i);
    const std::int64_t layers = kDepths[i % 6];
    const double input = log_uniform(d.uniform(0), 1e-3, 10), gamma2 = log_uniform(d.uniform(1), 0.1, 10);
    const double most = 1 / std::sqrt(static_cast<double>(layers)), g1 = most * d.uniform(2), g2 = most * d.uniform(3);
    for (const double least : {0.0, -1.0}) {
      std::vector<RecursionLayer> bhyt = random_layers(d, layers - 1, least), lns = bhyt;
      set_outputs(
          bhyt, [&](auto) { return gamma2 * g1 * g1; }, [&](auto) { return gamma2 * g2 * g2; });
      const auto over_depth = [&](std::int64_t l) { return gamma2 / static_cast<double>(l); };
      set_outputs(lns, over_depth, over_depth);
      const std::vector<double> a = recursion(input, bhyt), b = recursion(input, lns);
      double margin = INFINITY;
      for (std::size_t l = 1; l < a.size(); ++l) margin = std::min(margin, 1 - a[l] / b[l]);
      if (least == 0) {
        f.add(margin > 0 ? margin : margin - 1e-300, fmt::format("{} layers, λ/κ {:.3g} and {:.3g}", layers, g1, g2));
      } else {
        f.add_beyond(margin > 0);
        worst = std::min(worst, margin);
      }
    }
  }
  f.assumptions.push_back({.name = "ρ ≥ 0",
                           .expected = 0,
                           .measured = -1,
                           .met = f.beyond_failed == 0,
                           .says = fmt::format("with ρ from −1 to 1 BHyT is above LNS somewhere in {} of {} stacks, by up to {:.3g} times",
                                               f.beyond_failed, f.beyond, 1 - worst)});
  f.assumptions.push_back({.name = "strict from layer 2", .expected = 1, .measured = 1, .says = "x_1 is the same for both"});
  f.settle();
  return f;
}

}  // namespace bhyt::analysis
