#include "report/scale.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace bhyt::report {

double Axis::at(double value) const {
  if (!log) return (value - lo) / (hi - lo);
  if (!(value > 0)) return std::numeric_limits<double>::quiet_NaN();
  return std::log(value / lo) / std::log(hi / lo);
}

std::vector<double> linear_ticks(double lo, double hi, int about, bool whole) {
  std::vector<double> ticks;
  const double raw = (hi - lo) / about;
  if (!(raw > 0) || !std::isfinite(raw)) return ticks;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double ratio = raw / power;
  double step = power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
  if (whole && step < 1) step = 1;
  const double first = std::ceil(lo / step - 1e-9), last = std::floor(hi / step + 1e-9);
  for (double k = first; k <= last && ticks.size() < 100; ++k) ticks.push_back(k * step);
  return ticks;
}

std::vector<double> log_ticks(double lo, double hi, int about) {
  std::vector<double> ticks;
  const double first = std::floor(std::log10(lo)), last = std::ceil(std::log10(hi));
  const double decades = std::log10(hi / lo);
  if (!std::isfinite(first) || !std::isfinite(last) || !(decades > 0)) return ticks;
  if (decades < 0.7) return linear_ticks(lo, hi, about);
  const int every = std::max(1, static_cast<int>(std::ceil(decades / about)));
  for (double k = first; k <= last; ++k)
    for (const double m : {1.0, 2.0, 5.0}) {
      if (m > 1 && decades * 2 > about) break;
      const double v = m * std::pow(10.0, k);
      if (v >= lo * (1 - 1e-9) && v <= hi * (1 + 1e-9) && std::fmod(std::fabs(k), every) == 0) ticks.push_back(v);
    }
  return ticks;
}

std::vector<std::pair<double, std::string>> Axis::ticks(int about) const {
  std::vector<std::pair<double, std::string>> out;
  const std::vector<double> values = log ? log_ticks(lo, hi, about) : linear_ticks(lo, hi, about, whole);
  const double step = !log && values.size() > 1 ? values[1] - values[0] : 0;
  for (const double v : values) out.emplace_back(v, tick_label(v, step));
  return out;
}

std::string tick_label(double v, double step) {
  const double a = std::fabs(v);
  if (a < 1e-300) return "0";
  if ((a < 0.01 && (step > 0 ? step : a) < 1e-4) || a >= 1e15) {
    std::string s = fmt::format("{:.4e}", v);  // 5.0000e-04 → 5e-4
    const std::size_t e = s.find('e');
    std::string mantissa = s.substr(0, e);
    while (mantissa.back() == '0') mantissa.pop_back();
    if (mantissa.back() == '.') mantissa.pop_back();
    return mantissa + "e" + std::to_string(std::stoi(s.substr(e + 1)));
  }
  if (a >= 1e12) return fmt::format("{:.7g}T", v / 1e12);
  if (a >= 1e9) return fmt::format("{:.7g}B", v / 1e9);
  if (a >= 1e6) return fmt::format("{:.7g}M", v / 1e6);
  if (a >= 1e4) return fmt::format("{:.7g}k", v / 1e3);
  return fmt::format("{:.7g}", v);
}

Axis fit_axis(double lo, double hi, const AxisKind& kind) {
  if (!(lo <= hi)) return {.lo = kind.log ? 0.1 : 0, .hi = 1, .log = kind.log};
  if (kind.log) {
    const double air = lo == hi ? 1.5 : std::pow(hi / lo, 0.05);
    return {.lo = lo / air, .hi = hi * air, .log = true};
  }
  if (kind.from_zero) lo = std::fmin(0, lo);
  double air = (hi - lo) * 0.05;
  if (!(air > 0)) air = hi == 0 ? 1 : std::fabs(hi) * 0.1;
  return {.lo = kind.from_zero && lo == 0 ? 0 : lo - air, .hi = hi + air};
}

}  // namespace bhyt::report
