// Documents packed into one row, each seeing itself alone, are the same documents in rows of their own: loss and every gradient.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ops/norm/methods.h"
#include "tests/devices.h"
#include "tests/model/training_pass.h"

namespace bhyt::testing {
namespace {

constexpr std::int64_t kWords = 29;

ModelConfig config_of(const Method& method, std::int64_t head_dim) {
  ModelConfig c;
  c.d = 32, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.head_dim = head_dim, c.mlp = 40, c.vocab = kWords;
  c.rope_theta = 100;
  c.init_std = method.map == Map::id ? 0.1 : 0.2;  // maps that bound their output make it small
  c.norm.method = method.name;
  c.norm.seq_len = 96;
  return c;
}

// Rows of documents, by length: some of one token, some longer than a tile of attention, cuts inside tiles.
const std::vector<std::vector<std::int64_t>> kLengths = {{5, 1, 37, 53}, {71, 25}, {96}};

struct Documents {
  HostRows packed, apart;
  double scored = 0;
};

Documents draw_documents() {
  Documents d;
  d.packed.batch = static_cast<std::int64_t>(kLengths.size());
  d.packed.seq = d.apart.seq = 96;
  Rng rng(5);
  for (const auto& row : kLengths) {
    std::int64_t begin = 0;
    for (const std::int64_t length : row) {
      ++d.apart.batch;
      for (std::int64_t t = 0; t < d.apart.seq; ++t) {
        const auto token = static_cast<std::int32_t>(rng.below(kWords)), target = static_cast<std::int32_t>(rng.below(kWords));
        const bool inside = t < length;
        d.apart.tokens.push_back(token);
        d.apart.targets.push_back(inside ? target : -1);  // what follows the document fills the row up and is not scored
        if (!inside) continue;
        d.packed.tokens.push_back(token);
        d.packed.targets.push_back(target);
        d.packed.positions.push_back(static_cast<std::int32_t>(t));
        d.packed.first.push_back(static_cast<std::int32_t>(begin));
      }
      begin += length;
    }
  }
  d.scored = static_cast<double>(d.packed.tokens.size());
  return d;
}

void check_documents(const ModelConfig& c, Context& ctx) {
  SCOPED_TRACE(fmt::format("{}, heads of {}, {}", c.norm.method, c.head_dim, name_of(ctx.device())));
  const Documents d = draw_documents();
  const Values values = draw_values(c);
  const auto run = [&](DType type, const HostRows& rows) {
    const auto m = make_model(ctx, c, values, type);
    return training_pass(*m, rows, static_cast<float>(1 / d.scored));
  };
  const NamedGradients apart = run(DType::f32, d.apart), packed = run(DType::f32, d.packed);
  EXPECT_NEAR(packed.loss, apart.loss, 1e-5 * apart.loss);
  for (const auto& [name, g] : apart.by_name) {
    EXPECT_GT(length_of(g), 1e-6) << name << " has no gradient: nothing is compared";
    EXPECT_LE(distance(packed.by_name.at(name), g), (g.size() == 1 ? 2e-4 : 2e-5) * length_of(g) + 1e-8) << name;
  }
  // In bf16 packing may cost as much again as bf16 costs the documents apart; single numbers may have been lucky there.
  const NamedGradients low_apart = run(DType::bf16, d.apart), low_packed = run(DType::bf16, d.packed);
  EXPECT_LE(std::fabs(low_packed.loss - apart.loss), 2 * std::fabs(low_apart.loss - apart.loss) + 2e-3 * apart.loss);
  for (const auto& [name, g] : apart.by_name) {
    const double cost = distance(low_apart.by_name.at(name), g), luck = (g.size() == 1 ? 0.1 : 0.002) * length_of(g);
    EXPECT_LE(distance(low_packed.by_name.at(name), g), 2 * cost + luck) << name;
  }
}

TEST(Documents, PackedInARowEqualRowsOfTheirOwn) {
  for (Context& ctx : test::contexts()) {
    for (const Method& method : methods()) check_documents(config_of(method, 16), ctx);
    for (const std::int64_t head_dim : {64, 96, 128}) check_documents(config_of(method("bhyt"), head_dim), ctx);
  }
}

// A rotation by positions is felt only through differences of positions, so a mask that keeps documents apart hides whether they restart.
// Without a mask it shows: then positions that restart are another function of the weights, whose gradient must be its own.
TEST(Documents, PositionsTurnQueriesAndKeysWithoutAMaskToo) {
  const ModelConfig c = config_of(method("bhyt"), 16);
  HostRows rows = draw_documents().packed;
  rows.first.clear();
  HostRows plain = rows;
  plain.positions.clear();
  HostRows alike = rows;
  for (std::int32_t& p : alike.positions) p = 3;  // no differences at all
  for (Context& ctx : test::contexts()) {
    SCOPED_TRACE(name_of(ctx.device()));
    Values values = draw_values(c);
    const auto run = [&](const HostRows& r) {
      const auto m = make_model(ctx, c, values, DType::f32);
      return training_pass(*m, r, 1);
    };
    const NamedGradients restarted = run(rows);
    EXPECT_GT(std::fabs(restarted.loss - run(plain).loss), 1e-4 * restarted.loss);
    EXPECT_GT(std::fabs(restarted.loss - run(alike).loss), 1e-4 * restarted.loss);
    // The slope of the loss along the gradient of the queries' and keys' weights, by differences.
    for (const char* part : {"q_proj", "k_proj"}) {
      const std::string name = fmt::format("model.layers.0.self_attn.{}.weight", part);
      const std::vector<float> before = values.at(name), &g = restarted.by_name.at(name);
      const double length = length_of(g), step = 0.02;
      const auto loss_at = [&](double by) {
        std::vector<float>& v = values.at(name);
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = before[i] + static_cast<float>(by * static_cast<double>(g[i]) / length);
        const double loss = run(rows).loss;
        values.at(name) = before;
        return loss;
      };
      const double slope = (8 * (loss_at(step) - loss_at(-step)) - (loss_at(2 * step) - loss_at(-2 * step))) / (12 * step);
      EXPECT_NEAR(slope, length, 0.01 * length) << name;
    }
  }
}

}  // namespace
}  // namespace bhyt::testing
