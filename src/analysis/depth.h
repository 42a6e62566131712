// The variance of the residual stream over depth, by the additive recursion of the paper: what each sublayer adds follows from what its
// norm gives it, from its gain and from its correlation with the stream.
//   s'² = s² + C·s_f² + 2ρ·s·√C·s_f        s² the stream's variance, s_f² the norm output's, C the sublayer's gain, ρ the correlation
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/depth_walk.h"
#include "ops/norm/methods.h"

namespace bhyt::analysis {

// One step of it, of a branch whose variance is C·s_f².
double add_branch(double stream, double branch, double rho);
// The same as a factor: δ(ρ, π) = 1 + π + 2ρ√π with π = C·s_f²/s².
double delta(double rho, double pi);

// How much variance a sublayer makes of its input's: C. One number for attention; a curve over the input's variance for a gated MLP, which
// is of second degree where its input is small.
struct Gain {
  std::vector<double> input, gain;  // rising input variances

  static Gain constant(double c) { return {{1.0}, {c}}; }
  double at(double variance) const;  // between the points by logarithms, beyond them as at the ends
};

struct LayerGains {
  Gain attention, mlp;
  double rho1 = 0, rho2 = 0;
  double c_attn = 0;  // ‖W_V W_O‖_F²/(T·d), which an approximated second site takes for its constant
};

struct Stack {
  double input = 1;  // variance at the entrance of the first block
  std::vector<LayerGains> layers;
};

// The same stack with another number of layers: layer ℓ of L is the one that lies at the same relative depth.
Stack stretched(const Stack& stack, std::int64_t layers);
// Every layer the same: geometric means of the gains, means of ρ and of c_attn.
Stack levelled(const Stack& stack);

// A norm as the recursion needs it: its plan, and what is learned.
struct SiteValues {
  SitePlan plan;
  double gamma2 = 1;  // mean γ²
  double scale = 1;   // λ or α
  double shift = 0;   // σ
};
struct BlockValues {
  SiteValues site1, site2;
  std::optional<SiteValues> out1, out2;
  double calibration = 1, ms_correction = 0, constant_correction = 1;
  bool uses_constant = false, gamma_in_constant = false;
};
// As a new model has them, and as one learned them.
std::vector<BlockValues> initial_values(const NormPlan& plan);
std::vector<BlockValues> learned_values(Context& ctx, const Model& model);

// Variance of a norm's output where its input is Gaussian with this variance. statistic: the mean square that makes its scale.
double output_variance(const SiteValues& site, double variance, double statistic);

struct Profile {
  std::vector<double> entrance;  // at the entrance of block 1 … L, and behind the last
  std::vector<double> between;   // behind attention
};
Profile predict(const Stack& stack, const std::vector<BlockValues>& blocks);
double largest(const Profile& p);

// The largest λ/κ, the same at both sites, for which it and every smaller one keep the stream's variance at or below the bound. Nothing
// where none does; kUnbounded where all do.
constexpr double kUnbounded = 4;  // tanh is a sign from there on
std::optional<double> largest_ratio(const Stack& stack, const NormConfig& config, std::int64_t d, double eps, double bound);

// A model as it ran over some tokens.
struct SublayerMeasure {
  double stream = 0, norm = 0, raw = 0, branch = 0, rho = 0;  // raw: the sublayer's output, branch: what of it reaches the stream
};
struct DepthMeasure {
  std::vector<SublayerMeasure> attention, mlp;  // one per layer
  double output = 0;                            // variance behind the last block
  Stack stack;
};
// What measure_depth looks at.
std::vector<Point> depth_points();
// Adds one layer; layers come in order.
void measure_layer(Context& ctx, const Model& model, const LayerValues& values, DepthMeasure& out);
DepthMeasure measure_depth(Context& ctx, const Model& model, const TokenRows& rows);

// How far a prediction is from what was measured: |log(predicted/measured)| over the blocks' outputs.
struct DepthError {
  double mean = 0, worst = 0;
  std::int64_t layer = 0;  // of the worst, from 1
};
DepthError depth_error(const Profile& predicted, const DepthMeasure& measured);
std::vector<double> measured_profile(const DepthMeasure& m);  // as Profile::entrance

}  // namespace bhyt::analysis
