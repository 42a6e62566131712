#include "analysis/toy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "analysis/depth_walk.h"
#include "core/check.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/threads.h"
#include "ops/gemm/gemm.h"
#include "ops/norm/norm.h"

namespace bhyt::analysis {

namespace {

constexpr double kModelEps = 1e-5;
constexpr double kNoise[] = {0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0};
constexpr double kAlphas[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 2.0};
constexpr double kLambdas[] = {0.5, 1.0, 2.0, 4.0, 8.0};

// Streams of random numbers: x_1, then for each layer its matrix and its noise.
std::uint64_t matrix_stream(std::int64_t layer) { return static_cast<std::uint64_t>(2 * layer); }
std::uint64_t noise_stream(std::int64_t layer) { return static_cast<std::uint64_t>(2 * layer + 1); }

bool same_site(const SitePlan& a, const SitePlan& b) {
  return a.stat == b.stat && a.map == b.map && a.factor == b.factor && a.out_factor == b.out_factor && a.gamma0 == b.gamma0 &&
         a.scale == b.scale && a.scale0 == b.scale0;
}

// Whether two methods make the same of a stack that has first sites alone. A gate and β begin as nothing, eps does not show.
bool same_here(const NormPlan& a, const NormPlan& b) {
  for (std::size_t l = 0; l < a.blocks.size(); ++l)
    if (!same_site(a.blocks[l].site1, b.blocks[l].site1) || a.blocks[l].out1.has_value() != b.blocks[l].out1.has_value()) return false;
  return true;
}

// A site with the parameters that a new model has.
class NewSite {
 public:
  NewSite(Context& ctx, const SitePlan& plan, std::int64_t d) : memory_(ctx, DType::f32, {5, d}) {
    std::vector<float> values(static_cast<std::size_t>(5 * d), 0.0f);
    std::fill_n(values.begin(), d, plan.gamma0);
    std::fill_n(values.begin() + d, d, plan.scale0);  // [1] of it is read
    std::fill_n(values.begin() + 2 * d, d, 1.0f);     // SeeDNorm's g; its b, β and σ begin as 0
    from_host(ctx, values.data(), memory_);
    const auto row = [&](std::int64_t i, std::int64_t n) { return Tensor(memory_.t.row_slice(i, 1).data, DType::f32, ctx.device(), {n}); };
    site = {.stat = plan.stat, .map = plan.map, .factor = plan.factor, .eps = plan.eps, .out_factor = plan.out_factor, .gamma = row(0, d)};
    if (plan.scale != ScaleKind::none) site.scale = row(1, 1);
    if (plan.seed) {
      site.gate = row(2, d);
      site.direction = row(3, d);
    }
    if (plan.beta) site.beta = row(4, d);
    if (plan.shift) site.shift = row(3, 1);
  }
  NormSite site;

 private:
  OwnedTensor memory_;
};

// All variants side by side: each has some rows of one matrix, so that a layer is one product.
class ToyStack {
 public:
  ToyStack(Context& ctx, const std::vector<ToyVariant>& variants, const ToyOptions& o)
      : ctx_(ctx),
        variants_(variants),
        o_(o),
        rows_(std::ssize(variants) * kToyTokens),
        x_(ctx, DType::f32, {rows_, o.d}),
        z_(ctx, DType::f32, {rows_, o.d}),
        h_(ctx, DType::f32, {rows_, o.d}),
        w_(ctx, DType::f32, {o.d, o.d}),
        moments_(ctx, DType::f32, {4}),
        host_(static_cast<std::size_t>(std::max(o.d, kToyTokens) * o.d)) {
    for (const ToyVariant& v : variants) {
      plans_.push_back(v.norm ? plan_norms(*v.norm, o.layers, o.d, kModelEps) : NormPlan{});
      profiles_.push_back({.variant = v});
      ToyProfile& p = profiles_.back();
      for (auto* list : {&p.norm, &p.variance}) list->resize(static_cast<std::size_t>(o.layers + 1));
      for (auto* list : {&p.output, &p.saturated}) list->resize(static_cast<std::size_t>(o.layers));
    }
  }

  void run(std::uint64_t seed) {
    begin(seed);
    for (std::int64_t layer = 1; layer <= o_.layers; ++layer) {
      note_stream(layer);
      draw(seed, matrix_stream(layer), std::sqrt(2.0 / static_cast<double>(o_.d)), o_.d * o_.d);
      from_host(ctx_, host_.data(), w_);
      draw(seed, noise_stream(layer), 1, kToyTokens * o_.d);
      for (std::size_t i = 0; i < variants_.size(); ++i) apply(i, layer);
      gemm(ctx_, z_, w_, h_);
      for (std::size_t i = 0; i < variants_.size(); ++i) add(i, layer);
    }
    note_stream(o_.layers + 1);
  }
  std::vector<ToyProfile> take() { return std::move(profiles_); }

 private:
  Tensor rows_of(const OwnedTensor& t, std::size_t variant) const {
    return t.t.row_slice(static_cast<std::int64_t>(variant) * kToyTokens, kToyTokens);
  }
  const BlockPlan& plan(std::size_t variant, std::int64_t layer) const {
    return plans_[variant].blocks[static_cast<std::size_t>(layer - 1)];
  }

  void draw(std::uint64_t seed, std::uint64_t stream, double size, std::int64_t count) {
    parallel_for(ctx_.threads(), count / 2 + count % 2, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto pair = normal_pair(seed, stream, static_cast<std::uint64_t>(i));
        host_[static_cast<std::size_t>(2 * i)] = static_cast<float>(size * pair[0]);
        if (2 * i + 1 < count) host_[static_cast<std::size_t>(2 * i + 1)] = static_cast<float>(size * pair[1]);
      }
    });
  }

  void begin(std::uint64_t seed) {
    draw(seed, 0, 1, kToyTokens * o_.d);
    for (std::size_t i = 0; i < variants_.size(); ++i) from_host(ctx_, host_.data(), rows_of(x_, i));
  }

  // f(x) of one variant; host_ holds the layer's noise.
  void apply(std::size_t i, std::int64_t layer) {
    const Tensor z = rows_of(z_, i);
    if (!variants_[i].norm) {
      std::vector<float> noise(host_.begin(), host_.begin() + kToyTokens * o_.d);
      for (float& v : noise) v *= static_cast<float>(*variants_[i].setting);
      from_host(ctx_, noise.data(), z);
    } else {
      const NewSite site(ctx_, plan(i, layer).site1, o_.d);
      norm(ctx_, site.site, {.x = rows_of(x_, i), .z = z});
    }
    note_output(i, layer, z);
  }

  void add(std::size_t i, std::int64_t layer) {
    const Tensor x = rows_of(x_, i);
    Tensor h = rows_of(h_, i), other = rows_of(z_, i);
    if (variants_[i].norm && plan(i, layer).out1) {
      const NewSite site(ctx_, *plan(i, layer).out1, o_.d);
      norm(ctx_, site.site, {.x = h, .z = other});
      std::swap(h, other);
    }
    norm(ctx_, {.gamma = {}}, {.x = x, .add = h, .sum = x, .z = other});  // the sum is what is wanted
  }

  void note_stream(std::int64_t at) {
    for (std::size_t i = 0; i < variants_.size(); ++i) {
      row_moments(ctx_, rows_of(x_, i), moments_);
      const Matrix m = to_matrix(ctx_, moments_);
      profiles_[i].norm[static_cast<std::size_t>(at - 1)] += m.values[0] / o_.seeds;
      profiles_[i].variance[static_cast<std::size_t>(at - 1)] += m.values[2] / o_.seeds;
    }
  }

  void note_output(std::size_t i, std::int64_t layer, const Tensor& z) {
    const Matrix m = to_matrix(ctx_, z);
    const SitePlan site = variants_[i].norm ? plan(i, layer).site1 : SitePlan{};
    const double bound = 0.95 * site.out_factor * site.gamma0, share = 1.0 / static_cast<double>(m.values.size());
    double square = 0, beyond = 0;
    for (const float v : m.values) {
      square += static_cast<double>(v) * v * share;
      if (site.map != Map::id && std::fabs(v) > bound) beyond += share;
    }
    const auto at = static_cast<std::size_t>(layer - 1);
    profiles_[i].output[at] += std::sqrt(square) / o_.seeds;
    profiles_[i].saturated[at] += beyond / o_.seeds;
  }

  Context& ctx_;
  const std::vector<ToyVariant>& variants_;
  const ToyOptions& o_;
  std::int64_t rows_;
  OwnedTensor x_, z_, h_, w_, moments_;
  std::vector<float> host_;
  std::vector<NormPlan> plans_;
  std::vector<ToyProfile> profiles_;
};

// Where y passes `level` for the first time, by straight lines between the points (x rises); nothing where it does not.
std::optional<double> crossing(const std::vector<std::pair<double, double>>& points, double level) {
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto [x0, y0] = points[i - 1];
    const auto [x1, y1] = points[i];
    if (y0 < level && y1 >= level) return x0 + (x1 - x0) * (level - y0) / (y1 - y0);
  }
  return {};
}

}  // namespace

double toy_input(std::uint64_t seed, std::int64_t token, std::int64_t feature, std::int64_t d) {
  return normal(seed, 0, static_cast<std::uint64_t>(token * d + feature));
}
double toy_weight(std::uint64_t seed, std::int64_t layer, std::int64_t row, std::int64_t col, std::int64_t d) {
  return std::sqrt(2.0 / static_cast<double>(d)) * normal(seed, matrix_stream(layer), static_cast<std::uint64_t>(row * d + col));
}
double toy_noise(std::uint64_t seed, std::int64_t layer, std::int64_t token, std::int64_t feature, std::int64_t d) {
  return normal(seed, noise_stream(layer), static_cast<std::uint64_t>(token * d + feature));
}

std::vector<ToyVariant> toy_variants(std::int64_t layers, std::int64_t d) {
  std::vector<ToyVariant> all;
  for (const double c : kNoise) all.push_back({.name = fmt::format("noise c={}", c), .family = "noise", .setting = c});
  std::vector<std::pair<std::size_t, NormPlan>> seen;
  for (const Method& m : methods()) {
    const NormConfig config{.method = std::string(m.name)};
    const NormPlan plan = plan_norms(config, layers, d, kModelEps);
    const auto known = std::find_if(seen.begin(), seen.end(), [&](const auto& s) { return same_here(s.second, plan); });
    if (known != seen.end()) {
      all[known->first].same.emplace_back(m.name);
      continue;
    }
    seen.emplace_back(all.size(), plan);
    all.push_back({.name = std::string(m.name), .family = std::string(m.name), .norm = config});
  }
  for (const double alpha : kAlphas)
    all.push_back({.name = fmt::format("dyt α={}", alpha),
                   .family = "dyt",
                   .setting = alpha,
                   .norm = NormConfig{.method = "dyt", .alpha = std::array{alpha, alpha, alpha}}});
  for (const double lambda : kLambdas)
    all.push_back({.name = fmt::format("bhyt λ={}", lambda),
                   .family = "bhyt",
                   .setting = lambda,
                   .norm = NormConfig{.method = "bhyt", .lambda = {lambda, lambda}}});
  // How much of it is the size of the output, λ/κ, and not the bound.
  all.push_back({.name = "bhyt unit gain",
                 .family = "bhyt unit gain",
                 .setting = 2.0,
                 .norm = NormConfig{.method = "bhyt", .gain = bhyt::Gain::fixed_unit}});
  all.push_back({.name = "bhyt unit, 1/√ℓ",
                 .family = "bhyt unit gain",
                 .setting = 2.0,
                 .norm = NormConfig{.method = "bhyt", .gain = bhyt::Gain::fixed_unit, .depth_factor = Depth::inv_sqrt}});
  return all;
}

std::vector<ToyProfile> run_toy(Context& ctx, const std::vector<ToyVariant>& variants, const ToyOptions& o) {
  check_usage(o.d >= 2 && o.layers >= 1 && o.seeds >= 1, "expected a width from 2, layers and seeds from 1, got {}, {} and {}", o.d,
              o.layers, o.seeds);
  ToyStack stack(ctx, variants, o);
  for (int s = 0; s < o.seeds; ++s) stack.run(o.first_seed + static_cast<std::uint64_t>(s));
  return stack.take();
}

ToyFindings toy_findings(const std::vector<ToyProfile>& profiles) {
  ToyFindings f;
  std::vector<std::pair<double, double>> noise, size, saturated;
  std::vector<std::pair<double, std::string>> methods;
  for (const ToyProfile& p : profiles) {
    const ToyVariant& v = p.variant;
    const auto layers = static_cast<double>(p.output.size());
    if (v.family == "noise") noise.emplace_back(*v.setting, (p.variance.back() - p.variance.front()) / layers / p.variance.front());
    if (v.family == "dyt" && v.setting) {
      size.emplace_back(*v.setting, p.output.back());
      saturated.emplace_back(*v.setting, p.saturated.back());
    }
    if (v.norm && !v.setting) methods.emplace_back(p.growth(), v.name);
  }
  std::sort(methods.begin(), methods.end());
  for (const auto& m : methods)
    if (m.first <= 1.02 * methods[0].first) {
      f.flattest.push_back(m.second);
      f.flattest_growth = methods[0].first;
    }
  f.rapid_noise = crossing(noise, 1);
  if (f.rapid_noise) f.rapid_alpha = crossing(size, *f.rapid_noise);
  f.saturated_alpha = crossing(saturated, 0.5);
  return f;
}

}  // namespace bhyt::analysis
