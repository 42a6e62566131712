#include "analysis/theory.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "analysis/depth.h"

namespace bhyt::analysis {

const char* name_of(Verdict v) {
  switch (v) {
    case Verdict::holds: return "holds";
    case Verdict::under_assumptions: return "holds under its assumptions";
    case Verdict::fails: return "fails";
    case Verdict::not_met: break;
  }
  return "its assumptions are not met";
}

void Finding::add(double case_margin, const std::string& name, double tolerance) {
  if (checks == 0 || !(case_margin >= margin)) {
    margin = case_margin;
    worst = name;
  }
  ++checks;
  mean_margin += (case_margin - mean_margin) / static_cast<double>(checks);
  failed += !(case_margin >= -tolerance);  // NaN fails
}

void Finding::add_beyond(bool ok) {
  ++beyond;
  beyond_failed += !ok;
}

void Finding::settle() {
  const bool missed = std::any_of(assumptions.begin(), assumptions.end(), [](const Assumption& a) { return !a.met; });
  if (failed > 0)
    verdict = Verdict::fails;
  else if (checks == 0)
    verdict = Verdict::not_met;
  else
    verdict = beyond_failed > 0 || missed ? Verdict::under_assumptions : Verdict::holds;
}

double share_within(std::span<const double> x, double a, double lambda) {
  const auto inside = std::count_if(x.begin(), x.end(), [&](double v) { return std::fabs(a * v) <= lambda; });
  return static_cast<double>(inside) / static_cast<double>(x.size());
}

Moments moments(std::span<const double> x) {
  Moments m;
  const auto n = static_cast<double>(x.size());
  for (const double v : x) {
    m.mean += v / n;
    m.square += v * v / n;
  }
  for (const double v : x) m.variance += (v - m.mean) * (v - m.mean) / n;
  return m;
}

double spectral_norm(std::vector<double> a, std::int64_t n) {
  const auto at = [&](std::int64_t r, std::int64_t c) -> double& { return a[static_cast<std::size_t>(r * n + c)]; };
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0;
    for (std::int64_t p = 0; p < n; ++p)
      for (std::int64_t q = p + 1; q < n; ++q) {
        double pp = 0, qq = 0, pq = 0;
        for (std::int64_t r = 0; r < n; ++r) {
          pp += at(r, p) * at(r, p);
          qq += at(r, q) * at(r, q);
          pq += at(r, p) * at(r, q);
        }
        if (pq == 0 || pp == 0 || qq == 0) continue;
        off = std::max(off, std::fabs(pq) / std::sqrt(pp * qq));
        const double t0 = (qq - pp) / (2 * pq), t = std::copysign(1.0, t0) / (std::fabs(t0) + std::sqrt(1 + t0 * t0));
        const double c = 1 / std::sqrt(1 + t * t), s = c * t;
        for (std::int64_t r = 0; r < n; ++r) {
          const double u = at(r, p), v = at(r, q);
          at(r, p) = c * u - s * v;
          at(r, q) = s * u + c * v;
        }
      }
    if (off < 1e-15) break;
  }
  double most = 0;
  for (std::int64_t c = 0; c < n; ++c) {
    double square = 0;
    for (std::int64_t r = 0; r < n; ++r) square += at(r, c) * at(r, c);
    most = std::max(most, square);
  }
  return std::sqrt(most);
}

// J = diag(m)·(I − x xᵀ/(d·s²))/s, so s²·J Jᵀ = diag(m²) − c·v vᵀ with v = m ⊙ x. Its largest eigenvalue lies between the two largest m²,
// where 1 = c·Σ v²/(m² − μ); the sum rises with μ there.
double jacobian_norm(const JacobianInput& in) {
  const auto n = static_cast<double>(in.x.size());
  const double square = moments(in.x).square, s2 = square + in.eps, s = std::sqrt(s2);
  const double c = (2 - square / s2) / (n * s2);
  struct Entry {
    double m2, v2;
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < in.x.size(); ++i) {
    double m = in.gamma[i];
    if (in.bounded) m *= in.gain / std::pow(std::cosh(in.gain * in.x[i] / s), 2);
    entries.push_back({m * m, m * m * in.x[i] * in.x[i]});
  }
  std::ranges::sort(entries, std::ranges::greater(), &Entry::m2);
  if (entries.size() == 1) return std::sqrt(entries[0].m2) * in.eps / s2 / s;
  double low = entries[1].m2, high = entries[0].m2;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    double sum = 0;
    for (const Entry& e : entries) sum += e.v2 / (e.m2 - middle);
    (c * sum < 1 ? low : high) = middle;
  }
  return std::sqrt(high) / s;
}

Sandwich sandwich(std::span<const double> x, double lambda, double kappa) {
  const double s = std::sqrt(moments(x).variance), a = lambda / (kappa * s), high = lambda * lambda / (kappa * kappa);
  std::vector<double> y(x.begin(), x.end());
  Sandwich w{.low = std::tanh(lambda) * std::tanh(lambda) / (kappa * kappa), .high = high};
  for (double& v : y) {
    if (std::fabs(a * v) > lambda * (1 + 1e-12)) w.bounded = false;
    v = std::tanh(a * v);
  }
  w.value = moments(y).variance;
  return w;
}

std::vector<double> recursion(double input, std::span<const RecursionLayer> layers) {
  std::vector<double> s{input};
  for (const RecursionLayer& l : layers)
    s.push_back(add_branch(add_branch(s.back(), l.c_attention * l.f1, l.rho1), l.c_mlp * l.f2, l.rho2));
  return s;
}

double product_form(double input, std::span<const RecursionLayer> layers) {
  double s = input;
  for (const RecursionLayer& l : layers) {
    const double first = delta(l.rho1, l.c_attention * l.f1 / s);
    s *= first * delta(l.rho2, l.c_mlp * l.f2 / (s * first));
  }
  return s;
}

}  // namespace bhyt::analysis
