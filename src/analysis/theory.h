// The paper's statements as numbers: each is checked on random inputs, and on a model's weights and activations.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/depth_walk.h"

namespace bhyt::analysis {

enum class Verdict : std::uint8_t {
  holds,              // in every case that was looked at
  under_assumptions,  // wherever its assumptions are met; not everywhere else
  fails,              // in a case that meets its assumptions
  not_met,            // no case met its assumptions
};
const char* name_of(Verdict v);  // "holds under its assumptions"

// Something a statement takes for granted, as it was found. For an exact one `measured` should be `expected`; what a bound is broken by
// stands in `says`.
struct Assumption {
  std::string name;  // "attention is uniform"
  double expected = 0, measured = 0;
  bool met = true;
  std::int64_t layer = 0;  // where it is furthest off; 0: everywhere
  std::string says;        // what was measured, for people
};

struct Finding {
  Verdict verdict = Verdict::not_met;
  std::int64_t checks = 0, failed = 0;         // that meet the assumptions
  std::int64_t beyond = 0, beyond_failed = 0;  // that do not
  double margin = 0, mean_margin = 0;          // of those that meet them, the least and the mean: negative fails
  std::string worst;                           // the case that has it
  std::vector<Assumption> assumptions;         // as a model meets them, or what becomes of the statement without them

  // Takes a case in; tolerance: what rounding may take.
  void add(double case_margin, const std::string& name, double tolerance = 0);
  void add_beyond(bool ok);
  void settle();  // the verdict
};

struct Statement {
  std::string id, title, claim;
  std::string unit;  // what the margin is
  Finding random;
  std::optional<Finding> model;
};

// All of them, on random inputs: no model is needed, and every run gives the same numbers.
std::vector<Statement> check_theory(Context& ctx);
// The same on a model, into their `model`. Where it has no λ, its activations are looked at as BHyT with the default λ and κ would see
// them.
void check_theory_on(Context& ctx, const Model& model, const TokenRows& rows, std::vector<Statement>& statements);

// The parts.

// Share of |a·x| ≤ λ.
double share_within(std::span<const double> x, double a, double lambda);
struct Moments {
  double mean = 0, variance = 0, square = 0;  // square: mean x²
};
Moments moments(std::span<const double> x);

// Largest singular value of an n×n matrix, by rotations of its columns until they are at right angles (Jacobi).
double spectral_norm(std::vector<double> matrix, std::int64_t n);

// z = γ ⊙ tanh(g·x/s), or γ ⊙ x/s without `bounded`; s² = mean x² + eps.
struct JacobianInput {
  std::span<const double> x, gamma;
  double gain = 1, eps = 1e-6;
  bool bounded = false;
};
// Largest singular value of its Jacobian for vectors of any length: J Jᵀ is a diagonal and a rank of one.
double jacobian_norm(const JacobianInput& in);

// Variance of tanh(a·x) with a = λ/(κ·s) beside its bounds.
struct Sandwich {
  double low = 0, value = 0, high = 0;
  bool bounded = true;  // |a·x| ≤ λ everywhere
};
Sandwich sandwich(std::span<const double> x, double lambda, double kappa);

// Entrances of blocks 1 … L+1 by the additive recursion, and the last of them as a product. f1, f2: variances of the norms' outputs.
struct RecursionLayer {
  double c_attention = 0, c_mlp = 0, rho1 = 0, rho2 = 0, f1 = 0, f2 = 0;
};
std::vector<double> recursion(double input, std::span<const RecursionLayer> layers);
double product_form(double input, std::span<const RecursionLayer> layers);

}  // namespace bhyt::analysis
