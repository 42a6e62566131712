// Gradients in bf16, parameter by parameter, against fp32 gradients of the same weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/norm/methods.h"
#include "tests/devices.h"
#include "tests/model/training_pass.h"

namespace bhyt::testing {
namespace {

constexpr std::int64_t kVocab = 61, kSeq = 48, kBatch = 4;

ModelConfig config_of(const Method& method) {
  ModelConfig c;
  c.d = 64, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.head_dim = 64, c.mlp = 96, c.vocab = kVocab;
  c.rope_theta = 100;
  // Maps that bound their output make it small: larger weights keep the logits, and what the blocks add to the stream, apart from nothing.
  c.init_std = method.map == Map::id ? 0.1 : 0.2;
  c.norm.method = method.name;
  c.norm.seq_len = kSeq;
  return c;
}

HostRows draw_rows() {
  HostRows rows{.batch = kBatch, .seq = kSeq, .tokens = {}, .targets = {}, .positions = {}, .first = {}};
  Rng rng(3);
  for (std::int64_t i = 0; i < kBatch * kSeq; ++i) {
    rows.tokens.push_back(static_cast<std::int32_t>(rng.below(kVocab)));
    rows.targets.push_back(static_cast<std::int32_t>(rng.below(kVocab)));
  }
  return rows;
}

constexpr float kScale = 1.0f / (kBatch * kSeq);

// The low-precision reference that sets the scale: what roundings of bf16's size do to each gradient when only the weights are rounded.
// fp32 throughout, every weight moved by up to half a unit of bf16's last place; the root of the mean square over several draws.
std::map<std::string, double> error_of_roundings(const ModelConfig& c, const Values& values, const HostRows& rows,
                                                 const NamedGradients& exact) {
  constexpr int kDraws = 8;
  std::map<std::string, double> square;
  for (int draw = 0; draw < kDraws; ++draw) {
    Rng rng(100 + static_cast<std::uint64_t>(draw));
    Values moved = values;
    for (auto& [name, v] : moved)
      for (float& e : v) e *= static_cast<float>(1 + 0x1p-8 * (rng.uniform() - 0.5));
    const auto m = make_model(test::context_on(Device::cpu()), c, moved, DType::f32);
    const NamedGradients g = training_pass(*m, rows, kScale);
    for (const auto& [name, e] : exact.by_name) square[name] += std::pow(distance(g.by_name.at(name), e), 2) / kDraws;
  }
  for (auto& [name, s] : square) s = std::sqrt(s);
  return square;
}

// The program rounds activations and their gradients too, at some ten places of a block. Measured on a CPU that costs up to 2.4 times the
// reference (single numbers, whose terms cancel, up to 3); a gradient that lacks a term is 8 to 40 times off.
double allowed_factor(std::size_t size) { return size == 1 ? 6 : 4; }

TEST(Bf16Gradients, AreAsGoodAsRoundingsAllow) {
  const HostRows rows = draw_rows();
  for (const Method& method : methods()) {
    const ModelConfig c = config_of(method);
    const Values values = draw_values(c);
    const auto full = make_model(test::context_on(Device::cpu()), c, values, DType::f32);
    const NamedGradients exact = training_pass(*full, rows, kScale);
    const auto allowed = error_of_roundings(c, values, rows, exact);
    for (Context& ctx : test::contexts()) {
      const auto half = make_model(ctx, c, values, DType::bf16);
      const NamedGradients got = training_pass(*half, rows, kScale);
      for (const auto& [name, g] : exact.by_name) {
        const double error = distance(got.by_name.at(name), g);
        EXPECT_LE(error, allowed_factor(g.size()) * allowed.at(name))
            << method.name << " on " << name_of(ctx.device()) << ": " << name << ", length " << length_of(g);
      }
    }
  }
}

}  // namespace
}  // namespace bhyt::testing
