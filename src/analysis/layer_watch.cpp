#include "analysis/layer_watch.h"

#include <algorithm>

#include "core/memory.h"

namespace bhyt::analysis {

namespace {

std::vector<float> values_of(Context& ctx, const Tensor& t) {
  std::vector<float> out(t ? static_cast<std::size_t>(t.size()) : 0);
  if (t) to_host(ctx, t, out.data());
  return out;
}

enum class Look { stream, sites, all };  // sites: the norms, too

std::vector<Point> points(Look look) {
  if (look == Look::all)
    return {Point::embedding,       Point::block_input, Point::scale1,     Point::z1, Point::q,           Point::k,
            Point::after_attention, Point::scale2,      Point::statistic2, Point::z2, Point::block_output};
  if (look == Look::sites)
    return {Point::embedding, Point::block_input, Point::scale1,      Point::after_attention,
            Point::scale2,    Point::statistic2,  Point::block_output};
  return {Point::embedding, Point::block_output};
}

}  // namespace

SiteFacts facts_of(const Model& model, std::int64_t layer, bool second) {
  Context& ctx = model.context();
  const Block& block = model.blocks().at(static_cast<std::size_t>(layer - 1));
  const NormSite& site = second ? block.site2() : block.site1();
  const SitePlan& plan = second ? block.plan().site2 : block.plan().site1;
  SiteFacts f{.map = site.map, .centred = site.stat == Stat::mean_var, .factor = static_cast<double>(site.out_factor)};
  f.gamma = values_of(ctx, site.gamma);
  if (site.shift) f.shift = static_cast<double>(values_of(ctx, site.shift)[0]);
  const double scale = site.scale ? static_cast<double>(values_of(ctx, site.scale)[0]) : 1;
  if (plan.scale == ScaleKind::alpha) f.alpha = scale;
  if (plan.scale == ScaleKind::lambda) {
    f.lambda = scale;
    f.chebyshev = static_cast<double>(site.factor) * static_cast<double>(site.factor);  // the factor is 1/κ, and κ = (1−p)^(−1/2)
  }
  return f;
}

LayerWatch::LayerWatch(const Model& model, Observers& observers, const WatchOptions& options)
    : model_(model), options_(options), next_(options.sample) {
  std::vector<std::int64_t> wanted = options.layers;
  if (wanted.empty())
    for (std::int64_t l = 1; l <= model.config().layers; ++l) wanted.push_back(l);
  for (const std::int64_t l : wanted) {
    Layer& layer = layers_[l];
    layer.attention = SiteStats(facts_of(model, l, false));
    layer.mlp = SiteStats(facts_of(model, l, true));
    if (model.blocks()[static_cast<std::size_t>(l - 1)].site2().stat == Stat::given) layer.approximation.emplace();
  }
  wanted.push_back(0);  // the embedding
  const bool sites = std::ranges::any_of(
      layers_, [](const auto& l) { return l.second.approximation || l.second.attention.saturated() || l.second.mlp.saturated(); });
  const Look look = options.whole ? Look::all : sites ? Look::sites : Look::stream;
  subscription_ = observers.subscribe(
      points(look), [this](Context& ctx, const Seen& seen) { see(ctx, seen); }, wanted);
}

void LayerWatch::see(Context& ctx, const Seen& seen) {
  if (seen.point == Point::embedding) {
    options_.sample = next_;
    next_.advance(seen.value.rows());
    if (options_.counts) counted_ = options_.counts(ctx);
    return embedding_.add(rows(ctx, seen.value));
  }
  if (seen.layer == 0) return;
  Layer& layer = layers_.at(seen.layer);
  switch (seen.point) {
    case Point::block_input:
      x_ = rows(ctx, seen.value);
      if (options_.whole) input_ = x_;
      break;
    case Point::after_attention: x_ = rows(ctx, seen.value); break;
    case Point::statistic2:
      if (layer.approximation) layer.approximation->add(numbers(ctx, seen.value), x_);
      break;
    case Point::q: q_ = rows_on_host(ctx, seen.value); break;
    case Point::k: {
      const ModelConfig& c = model_.config();
      layer.entropy.add(q_, rows_on_host(ctx, seen.value),
                        {.seq = options_.seq, .heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim});
      break;
    }
    case Point::block_output: {
      const HostRows out = rows(ctx, seen.value);
      layer.output.add(out);
      if (options_.whole) layer.cosine.add(input_, out);
      break;
    }
    default: see_site(ctx, seen, layer);
  }
}

HostRows LayerWatch::rows(Context& ctx, const Tensor& x) const {
  HostRows all = rows_on_host(ctx, x, options_.sample);
  if (counted_.empty()) return all;
  HostRows out{0, all.cols, {}};
  for (std::int64_t i = 0; i < all.rows; ++i) {
    if (!counted_.at(static_cast<std::size_t>(options_.sample.first + i * options_.sample.every))) continue;
    const auto row = all.row(i);
    out.values.insert(out.values.end(), row.begin(), row.end());
    ++out.rows;
  }
  return out;
}

std::vector<float> LayerWatch::numbers(Context& ctx, const Tensor& x) const { return rows(ctx, x.reshape({x.size(), 1})).values; }

// The scales come first; z, where it is asked for, behind them.
void LayerWatch::see_site(Context& ctx, const Seen& seen, Layer& layer) {
  const bool second = seen.point == Point::scale2 || seen.point == Point::z2;
  const bool is_scale = seen.point == Point::scale1 || seen.point == Point::scale2;
  if (is_scale) scales_ = numbers(ctx, seen.value);
  if (is_scale == options_.whole) return;
  (second ? layer.mlp : layer.attention).add(x_, scales_, options_.whole ? rows(ctx, seen.value) : HostRows{});
}

}  // namespace bhyt::analysis
