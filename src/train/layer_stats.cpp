#include "train/layer_stats.h"

#include <algorithm>
#include <array>

#include "ops/norm/norm.h"
#include "train/metrics.h"

namespace bhyt::train {

namespace {

// The scalar that a site learns, where it is of this kind; else null.
Json scalar(const Model& model, const SitePlan& plan, const SiteWeights& weights, ScaleKind kind) {
  if (plan.scale != kind) return {};
  float value = 0;
  to_host(model.context(), weights.scale, &value);
  return short_decimal(value);
}

// One per block; empty where none has any.
Json scalars(const Model& model, ScaleKind kind, SitePlan BlockPlan::*plan, SiteWeights LayerWeights::*weights) {
  Json out = Json::array();
  bool any = false;
  for (std::size_t l = 0; l < model.weights().layers.size(); ++l) {
    out.push_back(scalar(model, model.norms().blocks[l].*plan, model.weights().layers[l].*weights, kind));
    any |= !out.back().is_null();
  }
  return any ? out : Json::array();
}

// What is read from a sample is counted on the host, by one thread: of Llama-1B's layers 512 tokens took 0.2 s beside steps of 0.1 s.
constexpr std::int64_t kSampled = 128;

// One number per block under `name`, where any block has one.
template <class F>
void put_by_layer(Json& out, const char* name, const analysis::LayerWatch& watch, F&& of) {
  Json all = Json::array();
  bool any = false;
  for (const auto& [number, layer] : watch.layers()) {
    const std::optional<double> value = of(layer);
    all.push_back(value ? Json(short_decimal(static_cast<float>(*value))) : Json());
    any |= value.has_value();
  }
  if (any) out[name] = std::move(all);
}

}  // namespace

LayerStats::LayerStats(Context& ctx, const Model& model, Observers& observers, std::int64_t tokens, std::int64_t seq,
                       const Targets& targets)
    : model_(model),
      targets_(targets),
      moments_(ctx, DType::f32, {4}),
      layers_(static_cast<std::size_t>(model.config().layers) + 1),
      watch_(model, observers,
             {.sample = analysis::spread_over(std::max<std::int64_t>(tokens / kSampled, 1), seq),
              .whole = false,
              .counts = targets ? [this](Context& at) { return counts(at); } : std::function<std::vector<bool>(Context&)>()}) {
  subscription_ = observers.subscribe({Point::embedding, Point::block_output},
                                      [this](Context& at, const Seen& seen) { see(at, seen.layer, seen.value); });
}

// Called by the watch, which is shown a pass's embedding before see() is.
std::vector<bool> LayerStats::counts(Context& ctx) {
  const Tensor targets = targets_(pass_++);
  std::vector<std::int32_t> host(static_cast<std::size_t>(targets.size()));
  to_host(ctx, targets, host.data());
  std::vector<bool> out(host.size());
  text_.clear();
  for (std::size_t i = 0; i < host.size(); ++i) {
    out[i] = host[i] != kFilling;
    if (!out[i]) continue;
    if (i == 0 || !out[i - 1]) text_.push_back({static_cast<std::int64_t>(i), 0});
    ++text_.back().count;
  }
  return out;
}

void LayerStats::see(Context& ctx, std::int64_t layer, const Tensor& x) {
  Sums& s = layers_.at(static_cast<std::size_t>(layer));
  const auto add = [&](const Tensor& some) {
    row_moments(ctx, some, moments_);
    std::array<float, 4> m{};
    to_host(ctx, moments_, m.data());
    const auto n = static_cast<double>(some.rows());
    s.tokens += n;
    s.norm += n * static_cast<double>(m[0]);
    s.abs += n * static_cast<double>(m[1]);
    s.variance += n * static_cast<double>(m[2]);
  };
  if (!targets_) return add(x);
  for (const Run& run : text_) add(x.row_slice(run.first, run.count));
}

Json LayerStats::result() const {
  Json out = {{"norm", Json::array()}, {"abs", Json::array()}, {"variance", Json::array()}};
  const auto mean = [](double sum, double n) { return short_decimal(static_cast<float>(sum / n)); };
  for (const Sums& s : layers_) {
    out["norm"].push_back(mean(s.norm, s.tokens));
    out["abs"].push_back(mean(s.abs, s.tokens));
    out["variance"].push_back(mean(s.variance, s.tokens));
  }
  using Layer = analysis::LayerWatch::Layer;
  out["kurtosis"] = Json::array({short_decimal(static_cast<float>(watch_.embedding().kurtosis()))});
  for (const auto& [number, layer] : watch_.layers()) out["kurtosis"].push_back(short_decimal(static_cast<float>(layer.output.kurtosis())));
  put_by_layer(out, "saturated_attn", watch_, [](const Layer& l) { return l.attention.saturated(); });
  put_by_layer(out, "saturated_mlp", watch_, [](const Layer& l) { return l.mlp.saturated(); });
  put_by_layer(out, "approximation_ratio", watch_,
               [](const Layer& l) { return l.approximation ? std::optional(l.approximation->ratio()) : std::nullopt; });
  put_by_layer(out, "approximation_r", watch_,
               [](const Layer& l) { return l.approximation ? l.approximation->correlation() : std::nullopt; });
  for (const auto& [name, kind] : {std::pair{"lambda", ScaleKind::lambda}, std::pair{"alpha", ScaleKind::alpha}}) {
    const std::string prefix = name;
    if (Json j = scalars(model_, kind, &BlockPlan::site1, &LayerWeights::site1); !j.empty()) out[prefix + "_attn"] = std::move(j);
    if (Json j = scalars(model_, kind, &BlockPlan::site2, &LayerWeights::site2); !j.empty()) out[prefix + "_mlp"] = std::move(j);
    if (Json j = scalar(model_, model_.norms().last, model_.weights().last, kind); !j.is_null()) out[prefix + "_last"] = std::move(j);
  }
  return out;
}

}  // namespace bhyt::train
