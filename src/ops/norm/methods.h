// The methods as rows of a table, the options a user may set, and what they come to in each block.
// What computes outside ops/norm asks for no method's name: the model asks for a block's plan.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/norm/maps.h"
#include "ops/norm/norm.h"

namespace bhyt {

// A site's statistic as the table says it: given comes in two kinds.
enum class SiteStat : std::uint8_t { none, rms, mean_var, mean_std, approximate, block_input };
enum class Place : std::uint8_t { pre, pre_and_post };
enum class Depth : std::uint8_t { none, inv_sqrt };
enum class ScaleKind : std::uint8_t { none, lambda, alpha };
enum class End : std::uint8_t { rms, own, rms_or_exact };  // the final norm; rms_or_exact: RMSNorm unless λ_last > 0

struct Method {
  std::string_view name;
  SiteStat site1, site2;
  Map map;
  Place place;
  Depth depth;
  ScaleKind scale;         // the learned scalar per site
  bool beta, shift, seed;  // further learned parameters: β; σ; SeeDNorm's g and b
  bool gamma_in_constant;  // C holds mean(γ_attn²)
  End end;
  bool own_eps;  // eps 1e-6 instead of the model's
};

constexpr bool reads_block_input(SiteStat s) { return s == SiteStat::approximate || s == SiteStat::block_input; }

// Why a row makes no sense, or nothing.
constexpr std::string_view fault(const Method& m) {
  using S = SiteStat;
  if (dispatch_map(m.map, [](auto map) { return map.kMap; }) != m.map) return "dispatch_map (maps.h) does not know its map";
  if (reads_block_input(m.site1)) return "the first site has no statistic before it to take";
  if (reads_block_input(m.site2) && m.site1 != S::rms) return "the second site takes the first one's mean square: rms";
  if (reads_block_input(m.site2) && m.place == Place::pre_and_post)
    return "the second site's statistic is of a stream to which attention's output was added without a norm";
  if (m.gamma_in_constant && m.site2 != S::approximate) return "only an approximated second site has a constant";
  if ((m.site1 == S::none || m.site2 == S::none) && m.scale != ScaleKind::alpha) return "without a statistic, alpha is the scale";
  if (m.scale == ScaleKind::alpha && (m.site1 != S::none || m.site2 != S::none)) return "alpha is the scale where there is no statistic";
  if (m.seed && (m.map != Map::id || m.site1 != S::rms || m.site2 != S::rms)) return "a gated gamma goes with rms and the identity";
  if (m.seed && (m.beta || m.shift)) return "a gated gamma has neither beta nor shift";
  if (m.shift && m.map == Map::id) return "a shift inside the identity is a beta times gamma";
  if (m.end == End::own && m.scale == ScaleKind::lambda) return "with lambda the end is rms_or_exact: lambda_last may be 0";
  if (m.end == End::rms_or_exact && m.scale != ScaleKind::lambda) return "lambda_last belongs to methods with lambda";
  return {};
}

std::span<const Method> methods();
const std::string& method_names();                                                  // all of them, with spaces between
const Method& method(std::string_view name, std::string_view key = "norm.method");  // UsageError naming the nearest
constexpr double kOwnEps = 1e-6;

enum class Gain : std::uint8_t { one, unit, fixed_unit };  // γ₀ = 1; γ₀ = κ/λ; γ₀ = 1 and the output times κ/λ
enum class KappaSchedule : std::uint8_t { constant, decay, grow, mild_grow };
enum class Correction : std::uint8_t { none, beta, eta, residual_aware };

// The `norm:` section of a config.
struct NormConfig {
  std::string method = "bhyt";
  double kappa = 10;                       // from p where p is given: (1−p)^(−1/2)
  std::array<double, 2> lambda{2.0, 1.0};  // attention, MLP
  double lambda_last = 0;
  bool learn_lambda = true;
  Gain gain = Gain::one;
  Depth depth_gain = Depth::none;    // of the initial γ
  Depth depth_factor = Depth::none;  // of the output, for good
  KappaSchedule kappa_schedule = KappaSchedule::constant;
  std::int64_t exact_first = 0;          // exact_layers as a number …
  std::vector<std::int64_t> exact_list;  // … or as a list, counted from 1
  std::int64_t refresh = 0;              // 0 = auto
  Correction correction = Correction::none;
  bool gamma_in_constant = false;
  bool stop_gradient = false;
  double aux_loss = 0;
  std::int64_t aux_every = 1;
  std::vector<double> calibration;
  std::int64_t first_layer = 1, last_layer = 0;  // layers: [from, to], 0 = all
  std::string elsewhere = "rmsnorm";
  std::optional<std::array<double, 3>> alpha;  // attention, MLP, last; empty = auto
  std::int64_t seq_len = 0;                    // T of c_attn; 0 = unknown
  bool operator==(const NormConfig&) const = default;
};

// One site as a block needs it: what to compute and which parameters to create, with their initial values.
struct SitePlan {
  Stat stat = Stat::rms;
  Map map = Map::id;
  float factor = 1, eps = 1e-5f;
  float out_factor = 1;  // constant, outside the map: κ/λ₀ (gain fixed_unit), 1/√ℓ (depth_factor)
  float gamma0 = 1;      // initial γ
  bool beta = false, shift = false, seed = false;
  ScaleKind scale = ScaleKind::none;
  float scale0 = 1;  // initial λ or α
  bool scale_frozen = false;
};

// One block: two sites, Peri's output norms, and the approximation where site 2 is given.
struct BlockPlan {
  SitePlan site1, site2;
  std::optional<SitePlan> out1, out2;  // on the sublayers' outputs
  bool has_constant = false;           // the method has a c_attn, used or not (exact layers, eta)
  bool approximated = false;           // site 2's statistic is the approximation (has corrections and an auxiliary loss)
  bool uses_constant = false;          // … and it reads C (otherwise C = 0)
  bool gamma_in_constant = false;
  Correction correction = Correction::none;
  float calibration = 1;
};

struct NormPlan {
  std::vector<BlockPlan> blocks;
  SitePlan last;
  bool stop_gradient = false;
  double aux_loss = 0;
  std::int64_t aux_every = 1;
  int approximated = 0;  // blocks whose site 2 uses the approximation
};

// One site of method m at depth `layer` (from 1; L+1 is the end), place 0 attention, 1 MLP, 2 last. plan_norms is made of these.
SitePlan plan_site(const NormConfig& config, const Method& m, SiteStat stat, std::int64_t layer, int place, std::int64_t d,
                   double model_eps);

// Settles every option for a model of `layers` blocks, width d and model eps. Throws UsageError for what makes no sense.
NormPlan plan_norms(const NormConfig& config, std::int64_t layers, std::int64_t d, double model_eps);

double kappa_at(const NormConfig& config, std::int64_t layer);  // layer from 1
std::int64_t refresh_interval(const NormConfig& config, std::int64_t max_steps);

}  // namespace bhyt
