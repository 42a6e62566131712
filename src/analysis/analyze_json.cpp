#include <algorithm>
#include <cmath>

#include "analysis/analyze.h"

namespace bhyt::analysis {

namespace {

using schema::Json;

Json number(std::optional<double> v) { return v ? Json(*v) : Json(); }

Json stream_json(const StreamStats& s) {
  return {{"norm", s.norm()},
          {"abs", s.abs()},
          {"variance", s.variance()},
          {"kurtosis", s.kurtosis()},
          {"largest", {{"value", s.largest().value}, {"feature", s.largest().feature}, {"token", s.largest().token}}},
          {"outlier_features", s.outliers()}};
}

Json gamma_json(const std::vector<float>& gamma) {
  if (gamma.empty()) return {};
  double sum = 0, square = 0;
  for (const float g : gamma) {
    sum += static_cast<double>(g);
    square += static_cast<double>(g) * static_cast<double>(g);
  }
  const auto n = static_cast<double>(gamma.size());
  const auto [lo, hi] = std::ranges::minmax(gamma);
  return {{"mean", sum / n}, {"rms", std::sqrt(square / n)}, {"min", static_cast<double>(lo)}, {"max", static_cast<double>(hi)}};
}

Json site_json(const SiteStats& s) {
  const SiteFacts& f = s.facts();
  return {{"gamma", gamma_json(f.gamma)},
          {"lambda", number(f.lambda)},
          {"alpha", number(f.alpha)},
          {"output", s.output()},
          {"gain", s.gain()},
          {"linear_gain", s.linear_gain()},
          {"saturated", number(s.saturated())},
          {"beyond_lambda", number(s.beyond_lambda())},
          {"chebyshev", number(f.chebyshev)}};
}

Json approximation_json(const ApproximationStats& s, std::int64_t points) {
  const ApproximationStats::Point worst = s.worst();
  Json scatter = Json::array();
  for (const ApproximationStats::Point& p : s.points(points)) scatter.push_back({p.actual, p.approximated});
  return {{"ratio", s.ratio()},
          {"r", number(s.correlation())},
          {"worst", {{"token", worst.token}, {"actual", worst.actual}, {"approximated", worst.approximated}}},
          {"points", scatter}};
}

}  // namespace

Json to_json(const Analysis& a, std::int64_t points) {
  Json layers = Json::array();
  for (const LayerAnalysis& l : a.layers) {
    Json j{{"layer", l.layer}};
    j.update(stream_json(l.seen.output));
    j.update({{"cosine", l.seen.cosine.mean()},
              {"gradient_norm", l.gradient},
              {"left_out_loss", l.left_out},
              {"entropy", l.seen.entropy.nats()},
              {"entropy_relative", l.seen.entropy.relative()},
              {"attention", site_json(l.seen.attention)},
              {"mlp", site_json(l.seen.mlp)},
              {"approximation", l.seen.approximation ? approximation_json(*l.seen.approximation, points) : Json()}});
    layers.push_back(std::move(j));
  }
  return {{"tokens", a.tokens},
          {"seq_len", a.seq},
          {"loss", a.loss},
          {"batch_tokens", a.batch_tokens},
          {"batch_loss", a.batch_loss},
          {"gradient_norm", {{"embedding", a.gradients.embedding}, {"end", a.gradients.end}, {"all", a.gradients.all}}},
          {"embedding", stream_json(a.embedding)},
          {"layers", layers}};
}

}  // namespace bhyt::analysis
