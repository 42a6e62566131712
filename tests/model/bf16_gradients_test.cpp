// Gradients in bf16, parameter by parameter: as near to the exact ones as those of the naive model with all that a bf16 program stores
// rounded to bf16.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/norm/methods.h"
#include "tests/devices.h"
#include "tests/model/reference_gradients.h"
#include "tests/model/training_pass.h"

namespace bhyt::testing {
namespace {

constexpr int kVocab = 61, kLength = 16;

ModelConfig config_of(const Method& method) {
  ModelConfig c;
  c.d = 64, c.layers = 2, c.heads = 2, c.kv_heads = 1, c.head_dim = 64, c.mlp = 96, c.vocab = kVocab;
  c.rope_theta = 100;
  // Maps that bound their output make it small: larger weights keep the logits, and what the blocks add to the stream, apart from nothing.
  c.init_std = method.map == Map::id ? 0.1 : 0.2;
  c.norm.method = method.name;
  c.norm.seq_len = kLength;
  return c;
}

std::vector<int> draw_row(int seed) {
  Rng rng(static_cast<std::uint64_t>(seed));
  std::vector<int> row(kLength + 1);
  for (int& t : row) t = static_cast<int>(rng.below(kVocab));
  return row;
}

NamedGradients row_gradients(const Model& m, const std::vector<int>& row) {
  const HostRows rows{.batch = 1,
                      .seq = kLength,
                      .tokens = {row.begin(), row.end() - 1},
                      .targets = {row.begin() + 1, row.end()},
                      .positions = {},
                      .first = {}};
  return training_pass(m, rows, 1.0f / kLength);
}

using Squares = std::map<std::string, double>;  // of the errors, by parameter

template <class T>
void add_errors(Squares& to, const std::map<std::string, std::vector<T>>& got, const NamedGradients& exact) {
  for (const auto& [name, g] : exact.by_name) to[name] += std::pow(distance(got.at(name), g), 2);
}

// Enough for single numbers too, whose error in one row is one draw and may by luck be anything: drawn in eight ways, so many rows gave at
// most 1.8 times the reference's error on a CPU, of other parameters 1.6 and mostly 1. Where a backward lacks a term the worst parameter
// shows 20 to 1000 times, where the stream's gradient lacks the last of its bits 4 times.
constexpr int kRows = 16;
constexpr double kFactor = 2;

struct Errors {
  Squares reference;
  std::vector<Squares> ours;  // by device
};

Errors errors_of(const ModelConfig& c) {
  const Values values = draw_values(c);
  const auto full = make_model(test::context_on(Device::cpu()), c, values, DType::f32);
  std::vector<std::unique_ptr<Model>> half;
  for (Context& ctx : test::contexts()) half.push_back(make_model(ctx, c, values, DType::bf16));
  NamedValues weights;
  for (const auto& [name, v] : values) weights[name].assign(v.begin(), v.end());
  std::vector<float> constants(static_cast<std::size_t>(c.layers));
  to_host(full->context(), full->constants(), constants.data());
  Tape tape;
  Errors out{.reference = {}, .ours = std::vector<Squares>(half.size())};
  for (int r = 0; r < kRows; ++r) {
    const std::vector<int> row = draw_row(r);
    const NamedGradients exact = row_gradients(*full, row);
    add_errors(out.reference, reference_gradients(tape, Arithmetic::bf16, c, {constants.begin(), constants.end()}, weights, {row}), exact);
    for (std::size_t i = 0; i < half.size(); ++i) add_errors(out.ours[i], row_gradients(*half[i], row).by_name, exact);
  }
  return out;
}

TEST(Bf16Gradients, AreAsGoodAsThoseOfTheReferenceInBf16) {
  for (const Method& method : methods()) {
    const Errors errors = errors_of(config_of(method));
    for (std::size_t i = 0; i < errors.ours.size(); ++i)
      for (const auto& [name, square] : errors.ours[i])
        EXPECT_LE(std::sqrt(square / errors.reference.at(name)), kFactor)
            << method.name << " on " << name_of(test::devices()[i]) << ": " << name;
  }
}

}  // namespace
}  // namespace bhyt::testing
