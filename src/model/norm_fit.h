// What a norm learns, fitted to an output that is wanted of it: γ and β by least squares, feature by feature, λ or α by a search.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/context.h"
#include "ops/norm/norm.h"

namespace bhyt {

struct SiteFit {
  std::vector<float> gamma, beta;  // [C]; beta empty where the site has none
  std::optional<float> scale;      // λ or α, where it was searched for
  double error = 0;                // ‖z − wanted‖ / ‖wanted‖
};

struct FitOptions {
  bool search = true;  // false: λ or α stays what it is
  // Of all scales whose error is at most this much over the smallest one, the largest is taken. A bounded map with a tiny scale is the
  // identity, which would match an unbounded norm best and bound nothing.
  double slack = 0.01;
};

// site: with its parameters, which stay as they are. x fp32 [N,C] is what the norm sees, given as its kernel takes it; wanted [N,C] is on
// the host.
SiteFit fit_site(Context& ctx, const NormSite& site, const Tensor& x, const Given* given, std::span<const float> wanted,
                 const FitOptions& options = {});
// Into the site's parameters.
void write_fit(Context& ctx, const SiteFit& fit, const NormSite& site);

}  // namespace bhyt
