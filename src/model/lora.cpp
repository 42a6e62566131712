#include "model/lora.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"

namespace bhyt {

namespace {

struct Place {
  const char *name, *module;
  Product product;
  std::size_t part;
};

const Place& place(Projection p) {
  static constexpr std::array<Place, kProjections> places{{{"q_proj", "self_attn.q_proj", Product::qkv, 0},
                                                           {"k_proj", "self_attn.k_proj", Product::qkv, 1},
                                                           {"v_proj", "self_attn.v_proj", Product::qkv, 2},
                                                           {"o_proj", "self_attn.o_proj", Product::o, 0},
                                                           {"gate_proj", "mlp.gate_proj", Product::gate_up, 0},
                                                           {"up_proj", "mlp.up_proj", Product::gate_up, 1},
                                                           {"down_proj", "mlp.down_proj", Product::down, 0}}};
  return places[static_cast<std::size_t>(p)];
}

}  // namespace

std::string_view name_of(Projection p) { return place(p).name; }
std::string_view module_of(Projection p) { return place(p).module; }
Product product_of(Projection p) { return place(p).product; }
std::size_t part_of(Projection p) { return place(p).part; }

const std::vector<Projection>& all_projections() {
  static const std::vector<Projection> all{Projection::q,    Projection::k,  Projection::v,   Projection::o,
                                           Projection::gate, Projection::up, Projection::down};
  return all;
}

Projection projection_named(std::string_view name) {
  std::string known;
  for (const Projection p : all_projections()) {
    if (name_of(p) == name) return p;
    known += (known.empty() ? "" : ", ") + std::string(name_of(p));
  }
  throw UsageError(fmt::format("no projection is called {}: adapters are for {}", name, known));
}

std::int64_t inputs_of(Projection p, const ModelConfig& c) {
  return p == Projection::o ? c.q_width() : p == Projection::down ? c.mlp : c.d;
}

std::int64_t outputs_of(Projection p, const ModelConfig& c) {
  switch (p) {
    case Projection::q: return c.q_width();
    case Projection::k:
    case Projection::v: return c.kv_width();
    case Projection::gate:
    case Projection::up: return c.mlp;
    default: return c.d;
  }
}

bool LoraConfig::adapts(Projection p, std::int64_t layer) const {
  return adapts_layer(layer) && std::find(targets.begin(), targets.end(), p) != targets.end();
}

bool LoraConfig::adapts_layer(std::int64_t layer) const {
  return rank > 0 && (layers.empty() || std::binary_search(layers.begin(), layers.end(), layer));
}

std::int64_t LoraConfig::width(Product p) const {
  return rank * std::count_if(targets.begin(), targets.end(), [&](Projection t) { return product_of(t) == p; });
}

void validate(const LoraConfig& lora, const ModelConfig& config) {
  check_usage(lora.rank >= 0 && lora.rank <= kMostRank, "lora.rank must be from 0 to {}, got {}", kMostRank, lora.rank);
  if (lora.rank == 0) return;
  check_usage(lora.alpha > 0 && std::isfinite(lora.alpha), "lora.alpha must be greater than 0, got {}", lora.alpha);
  check_usage(lora.dropout >= 0 && lora.dropout < 1, "lora.dropout must be from 0 to below 1, got {}", lora.dropout);
  check_usage(!lora.targets.empty(), "lora.targets names no projection; lora.rank={} needs at least one", lora.rank);
  for (std::size_t i = 1; i < lora.targets.size(); ++i)
    check_usage(lora.targets[i - 1] < lora.targets[i], "lora.targets must name each projection once and in order, got {} before {}",
                name_of(lora.targets[i - 1]), name_of(lora.targets[i]));
  for (std::size_t i = 0; i < lora.layers.size(); ++i) {
    check_usage(lora.layers[i] >= 0 && lora.layers[i] < config.layers, "lora.layers must be from 0 to {}, got {}", config.layers - 1,
                lora.layers[i]);
    check_usage(i == 0 || lora.layers[i - 1] < lora.layers[i], "lora.layers must rise, got {} before {}", lora.layers[i - 1],
                lora.layers[i]);
  }
}

TrainingFlops training_flops(const ModelConfig& c, std::int64_t seq, const LoraConfig& lora) {
  const double head = static_cast<double>(c.d) * static_cast<double>(c.vocab);
  if (!lora.active()) return {.token = flops_per_token(c, seq) - 6 * head, .scored = 6 * head};
  const double block = static_cast<double>(c.d) * static_cast<double>(c.qkv_width() + c.q_width() + 3 * c.mlp);
  const double attention = 2.0 * static_cast<double>(seq) * static_cast<double>(c.q_width());  // forward; the backward has twice as much
  const std::int64_t lowest = lora.train_norms || lora.layers.empty() ? 0 : lora.layers.front();
  TrainingFlops out{.token = 0, .scored = 4 * head};
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    out.token += 2 * block + attention;
    if (layer >= lowest) out.token += 2 * block + 2 * attention;
    for (const Projection p : all_projections())
      if (lora.adapts(p, layer)) out.token += 6.0 * static_cast<double>(lora.rank * (inputs_of(p, c) + outputs_of(p, c)));
  }
  return out;
}

}  // namespace bhyt
