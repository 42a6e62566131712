// The residual stack without a transformer: x_{ℓ+1} = x_ℓ + f(x_ℓ) W_ℓ with W_ℓ ~ N(0, 2/d) and x_1 ~ N(0, 1). f is noise of a given size
// or the first site of a method, so that nothing but the norm decides how the stream grows.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/context.h"
#include "ops/norm/methods.h"

namespace bhyt::analysis {

struct ToyVariant {
  std::string name;                // "dyt α=0.5"
  std::string family;              // "noise", or the method
  std::optional<double> setting;   // c, α or λ where it belongs to a sweep
  std::optional<NormConfig> norm;  // nothing: noise
  std::vector<std::string> same;   // other methods that are this one here
};

// Noise for each c; every method of the table as it is by default, those that differ in their second site alone under one name; DyT for
// each α; BHyT for each λ.
std::vector<ToyVariant> toy_variants(std::int64_t layers, std::int64_t d);

struct ToyOptions {
  std::int64_t d = 2048, layers = 32;
  int seeds = 3;
  std::uint64_t first_seed = 0;
};

// One variant's stream at x_1 … x_{L+1}, means over tokens and seeds.
struct ToyProfile {
  ToyVariant variant;
  std::vector<double> norm, variance;     // ‖x‖₂, variance over features
  std::vector<double> output, saturated;  // of f at layers 1 … L: rms, share of |map| > 0.95 (0 where the map is the identity)
  double growth() const { return variance.back() / variance.front(); }
};

std::vector<ToyProfile> run_toy(Context& ctx, const std::vector<ToyVariant>& variants, const ToyOptions& options);

struct ToyFindings {
  // The c at which a layer adds as much variance as the stream began with, by interpolation.
  std::optional<double> rapid_noise;
  // The α at which DyT's output has come to that size at the end of the stack, and the one at which half of it is saturated there.
  std::optional<double> rapid_alpha, saturated_alpha;
  std::vector<std::string> flattest;  // of the methods as they are by default: the one that grows least, and those within 2 % of it
  double flattest_growth = 0;
};
ToyFindings toy_findings(const std::vector<ToyProfile>& profiles);

// Figure 6 as the paper lays it out (left: noise, right: RMSNorm, DyT, BHyT; above: magnitude, below: variance), and the same for all
// methods; each is an SVG file's text.
std::string toy_figure(const std::vector<ToyProfile>& profiles);
std::string toy_methods_figure(const std::vector<ToyProfile>& profiles);

// Values at (seed, layer), for whoever wants the same stack in another way.
double toy_input(std::uint64_t seed, std::int64_t token, std::int64_t feature, std::int64_t d);
double toy_weight(std::uint64_t seed, std::int64_t layer, std::int64_t row, std::int64_t col, std::int64_t d);  // layer from 1
double toy_noise(std::uint64_t seed, std::int64_t layer, std::int64_t token, std::int64_t feature, std::int64_t d);
constexpr std::int64_t kToyTokens = 4;  // rows that go through the same matrices

}  // namespace bhyt::analysis
