#include "model/norm_fit.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/memory.h"
#include "core/threads.h"

namespace bhyt {

namespace {

constexpr std::int64_t kSearchRows = 4096;  // that a search looks at; γ and β come from all
constexpr int kReach = 16;                  // a search goes from 2^(−kReach/2) to 2^(kReach/2) times where it begins

// Sums over the rows of one column: f is what the map gives, z what is wanted.
struct Column {
  double f = 0, z = 0, ff = 0, fz = 0, zz = 0;
};

// The map without γ, β and gate for any scale, and the best γ and β for it.
class Probe {
 public:
  Probe(Context& ctx, const NormSite& site, const Tensor& x, const Given* given, std::span<const float> wanted)
      : ctx_(ctx),
        site_(site),
        bare_(site),
        x_(x),
        wanted_(wanted),
        ones_(ctx, DType::f32, {x.cols()}),
        scale_(ctx, DType::f32, {1}),
        out_(ctx, DType::f32, {x.rows(), x.cols()}),
        host_(wanted.size()) {
    const std::vector<float> ones(static_cast<std::size_t>(x.cols()), 1.0f);
    from_host(ctx, ones.data(), ones_);
    bare_.gamma = ones_;
    bare_.beta = bare_.gate = bare_.direction = {};
    bare_.out_factor = 1;
    if (site.scale) bare_.scale = scale_;
    if (given) given_ = *given;
  }

  double error(float scale) { return fit(scale, std::min(x_.rows(), kSearchRows), nullptr); }
  SiteFit best(float scale) {
    SiteFit out;
    out.error = fit(scale, x_.rows(), &out);
    return out;
  }

 private:
  std::vector<Column> sums(float scale, std::int64_t rows) {
    const std::int64_t cols = x_.cols();
    if (site_.scale) from_host(ctx_, &scale, scale_);
    std::optional<Given> given = given_;
    if (given) given->ms = Tensor(given->ms.data, DType::f32, given->ms.device, {rows});
    const Tensor out = out_.t.row_slice(0, rows);
    norm(ctx_, bare_, {.x = x_.row_slice(0, rows), .z = out, .given = given ? &*given : nullptr});
    to_host(ctx_, out, host_.data());
    std::vector<Column> all(static_cast<std::size_t>(cols));
    parallel_for(ctx_.threads(), cols, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = begin; c < end; ++c) {
          const auto at = static_cast<std::size_t>(r * cols + c);
          const auto f = static_cast<double>(host_[at]), z = static_cast<double>(wanted_[at]);
          Column& sum = all[static_cast<std::size_t>(c)];
          sum.f += f;
          sum.z += z;
          sum.ff += f * f;
          sum.fz += f * z;
          sum.zz += z * z;
        }
    });
    return all;
  }

  double fit(float scale, std::int64_t rows, SiteFit* to) {
    double left = 0, whole = 0;
    const auto n = static_cast<double>(rows), factor = static_cast<double>(site_.out_factor);
    for (const Column& c : sums(scale, rows)) {
      const double mf = site_.beta ? c.f / n : 0, mz = site_.beta ? c.z / n : 0;  // a β takes the means off
      const double ff = c.ff - n * mf * mf, fz = c.fz - n * mf * mz, zz = c.zz - n * mz * mz;
      const double gamma = ff > 0 ? fz / ff : 0;
      left += std::max(zz - gamma * fz, 0.0);
      whole += c.zz;
      if (!to) continue;
      to->gamma.push_back(static_cast<float>(gamma / factor));
      if (site_.beta) to->beta.push_back(static_cast<float>((mz - gamma * mf) / factor));
    }
    return whole > 0 ? std::sqrt(left / whole) : 0;
  }

  Context& ctx_;
  const NormSite& site_;
  NormSite bare_;
  std::optional<Given> given_;
  Tensor x_;
  std::span<const float> wanted_;
  OwnedTensor ones_, scale_, out_;
  std::vector<float> host_;
};

struct Tried {
  double log2 = 0, error = 0;  // of a scale
};

// Golden section around the best of a grid.
template <class F>
Tried refine(double low, double high, F&& at) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  Tried a{.log2 = high - ratio * (high - low)}, b{.log2 = low + ratio * (high - low)};
  a.error = at(a.log2);
  b.error = at(b.log2);
  while (high - low > 1e-3) {
    if (a.error < b.error) {
      high = b.log2;
      b = a;
      a.log2 = high - ratio * (high - low);
      a.error = at(a.log2);
    } else {
      low = a.log2;
      a = b;
      b.log2 = low + ratio * (high - low);
      b.error = at(b.log2);
    }
  }
  return a.error < b.error ? a : b;
}

// The scale, as its logarithm, that FitOptions::slack asks for.
template <class F>
double search(double start, double slack, F&& at) {
  std::vector<Tried> grid;
  for (int k = -kReach; k <= kReach; ++k) {
    const double log2 = std::log2(start) + 0.5 * k;
    grid.push_back({log2, at(log2)});
  }
  const Tried least = *std::ranges::min_element(grid, {}, &Tried::error);
  const Tried refined = refine(least.log2 - 0.5, least.log2 + 0.5, at), best = refined.error < least.error ? refined : least;
  const double most = best.error + slack;
  double low = best.log2;
  auto next = std::ranges::find_if(grid, [&](const Tried& t) { return t.log2 > low; });
  while (next != grid.end() && next->error <= most) low = (next++)->log2;
  if (slack <= 0 || next == grid.end()) return slack <= 0 ? best.log2 : low;
  double high = next->log2;
  while (high - low > 1e-2) {
    const double middle = (low + high) / 2;
    (at(middle) <= most ? low : high) = middle;
  }
  return low;
}

}  // namespace

SiteFit fit_site(Context& ctx, const NormSite& site, const Tensor& x, const Given* given, std::span<const float> wanted,
                 const FitOptions& options) {
  check(x.dtype == DType::f32 && static_cast<std::int64_t>(wanted.size()) == x.size() && x.rows() > 0,
        "[norm_fit] expected fp32 inputs and as many outputs, got {} {} and {}", name_of(x.dtype), shape_string(x), wanted.size());
  Probe probe(ctx, site, x, given, wanted);
  float scale = 1;
  if (site.scale) to_host(ctx, site.scale, &scale);
  const bool searching = site.scale && options.search && scale > 0;
  if (searching)
    scale = static_cast<float>(std::exp2(
        search(static_cast<double>(scale), options.slack, [&](double log2) { return probe.error(static_cast<float>(std::exp2(log2))); })));
  SiteFit out = probe.best(scale);
  if (searching) out.scale = scale;
  return out;
}

void write_fit(Context& ctx, const SiteFit& fit, const NormSite& site) {
  from_host(ctx, fit.gamma.data(), site.gamma);
  if (site.beta) from_host(ctx, fit.beta.data(), site.beta);
  if (fit.scale) from_host(ctx, &*fit.scale, site.scale);
}

}  // namespace bhyt
