#include <fmt/format.h>

#include <cmath>

#include "analysis/analyze.h"

namespace bhyt::analysis {

namespace {

// Four significant digits in a column of ten.
std::string short_number(std::optional<double> v) {
  return v ? fmt::format("{:>10}", fmt::format("{:.4g}", *v)) : fmt::format("{:>10}", "–");
}

// A share, in percent.
std::string percent(std::optional<double> v) {
  if (!v) return fmt::format("{:>10}", "–");
  return fmt::format("{:>10}", *v > 0 && *v < 1e-4 ? "<0.01 %" : fmt::format("{:.2f} %", 100 * *v));
}

std::string largest_of(const StreamStats& s) { return fmt::format("{:>10.4g} in {:<6}", s.largest().value, s.largest().feature); }

// How many persist, and the first of them.
std::string outliers_of(const StreamStats& s) {
  const std::vector<std::int64_t> all = s.outliers();
  if (all.empty()) return fmt::format("{:>12}", "none");
  return fmt::format("{:>12}", fmt::format("{}: {}{}", all.size(), all[0], all.size() > 1 ? ", …" : ""));
}

std::string stream_line(std::int64_t layer, const StreamStats& s) {
  return fmt::format("{:>5}{}{}{}{}  {}{}", layer, short_number(s.norm()), short_number(s.abs()), short_number(s.variance()),
                     short_number(s.kurtosis()), largest_of(s), outliers_of(s));
}

std::vector<std::string> stream_table(const Analysis& a) {
  std::vector<std::string> out{fmt::format("{:>5}{:>10}{:>10}{:>10}{:>10}  {:>10}    {:<6}{:>12}{:>10}{:>10}{:>12}{:>19}", "layer", "‖x‖₂",
                                           "|x|", "variance", "kurtosis", "largest", "", "outliers", "cosine", "gradient", "left out",
                                           "entropy")};
  out.push_back(stream_line(0, a.embedding) + fmt::format("{:>10}{}", "", short_number(a.gradients.embedding)));
  for (const LayerAnalysis& l : a.layers)
    out.push_back(stream_line(l.layer, l.seen.output) + fmt::format("{:>10.4f}{}{:>+12.4f}{:>8.3f} ({:>5.1f} %)", l.seen.cosine.mean(),
                                                                    short_number(l.gradient), l.left_out - a.batch_loss,
                                                                    l.seen.entropy.nats(), 100 * l.seen.entropy.relative()));
  return out;
}

struct Gamma {
  double rms = 0, least = 0, most = 0;
};
Gamma gamma_of(const SiteFacts& f) {
  Gamma g{.least = INFINITY, .most = -INFINITY};
  for (const float v : f.gamma) {
    const auto d = static_cast<double>(v);
    g = {g.rms + d * d / static_cast<double>(f.gamma.size()), std::fmin(g.least, d), std::fmax(g.most, d)};
  }
  return f.gamma.empty() ? Gamma{1, 1, 1} : Gamma{std::sqrt(g.rms), g.least, g.most};
}

std::string site_line(std::int64_t layer, const char* name, const SiteStats& s) {
  const Gamma g = gamma_of(s.facts());
  return fmt::format("{:>5}  {:<9}{}{}{}{}{}{}{}{}{}{}", layer, name, short_number(s.facts().lambda ? s.facts().lambda : s.facts().alpha),
                     short_number(g.rms), short_number(g.least), short_number(g.most), short_number(s.output()), short_number(s.gain()),
                     short_number(s.linear_gain()), percent(s.saturated()), percent(s.beyond_lambda()), percent(s.facts().chebyshev));
}

std::vector<std::string> site_table(const Analysis& a) {
  bool alpha = false;
  for (const LayerAnalysis& l : a.layers) alpha |= l.seen.attention.facts().alpha.has_value();
  std::vector<std::string> out{fmt::format("{:>5}  {:<9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}", "layer", "norm of",
                                           alpha ? "α" : "λ", "γ rms", "γ min", "γ max", "rms(z)", "gain", "linear", "|f|>0.95", "|a·x|>λ",
                                           "1−p")};
  for (const LayerAnalysis& l : a.layers) {
    out.push_back(site_line(l.layer, "attention", l.seen.attention));
    out.push_back(site_line(l.layer, "MLP", l.seen.mlp));
  }
  return out;
}

std::vector<std::string> approximation_table(const Analysis& a) {
  std::vector<std::string> out;
  for (const LayerAnalysis& l : a.layers) {
    if (!l.seen.approximation) continue;
    const ApproximationStats& s = *l.seen.approximation;
    const ApproximationStats::Point w = s.worst();
    if (out.empty())
      out.push_back(
          fmt::format("{:>5}{:>11}{:>10}    {}", "layer", "s̃²/s²", "Pearson r", "worst token: row, position, s̃², s², their ratio"));
    out.push_back(fmt::format("{:>5}{}{}    {:>6}{:>6}{}{}{}", l.layer, short_number(s.ratio()), short_number(s.correlation()),
                              w.token / a.seq, w.token % a.seq, short_number(w.approximated), short_number(w.actual),
                              short_number(w.ratio())));
  }
  return out;
}

}  // namespace

std::vector<std::string> tables(const Analysis& a) {
  std::vector<std::string> out = stream_table(a);
  for (const auto& table : {site_table(a), approximation_table(a)}) {
    if (table.empty()) continue;
    out.emplace_back();
    out.insert(out.end(), table.begin(), table.end());
  }
  return out;
}

}  // namespace bhyt::analysis
