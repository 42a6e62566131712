// One training pass for tests that compare passes: what goes in as plain numbers, what comes out by parameter.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/rng.h"
#include "model/train_pass.h"
#include "tests/devices.h"

namespace bhyt::testing {

// A batch as the host sees it; positions, first: empty or one for each token.
struct HostRows {
  std::int64_t batch = 0, seq = 0;
  std::vector<std::int32_t> tokens, targets, positions, first;
};

struct NamedGradients {
  double loss = 0;                                    // sum over the scored tokens
  std::map<std::string, std::vector<float>> by_name;  // parameters that are not frozen
};

inline NamedGradients training_pass(const Model& model, const HostRows& rows, float scale) {
  Context& ctx = model.context();
  const auto upload = [&](const std::vector<std::int32_t>& values) {
    if (values.empty()) return OwnedTensor();
    OwnedTensor t(ctx, DType::i32, {rows.batch, rows.seq});
    from_host(ctx, values.data(), t);
    return t;
  };
  const OwnedTensor tokens = upload(rows.tokens), targets = upload(rows.targets), positions = upload(rows.positions),
                    first = upload(rows.first);
  const OwnedTensor loss(ctx, DType::f32, {1});
  const Gradients gradients(ctx, model.parameters());
  zero(ctx, loss);
  const Batch batch{
      .batch = rows.batch, .seq = rows.seq, .tokens = tokens, .targets = targets, .weights = {}, .positions = positions, .first = first};
  TrainPass(ctx, model, {.batch = rows.batch, .seq = rows.seq})
      .run(batch, {.gradients = gradients, .loss = loss, .scale = scale, .tokens_in_step = static_cast<double>(rows.tokens.size())});
  NamedGradients out;
  float sum = 0;
  to_host(ctx, loss, &sum);
  out.loss = sum;
  for (const Parameter& p : model.parameters().list()) {
    if (p.frozen) continue;
    out.by_name[p.name].resize(static_cast<std::size_t>(p.size));
    to_host(ctx, model.parameters().in_arena(gradients.arena, p), out.by_name[p.name].data());
  }
  return out;
}

// Values by parameter name that bf16 holds exactly wherever `type` is bf16: every model that is given them computes the same function.
// Everything that starts at a constant is moved off it, so that no gradient is tested at a special point.
using Values = std::map<std::string, std::vector<float>>;
inline Values draw_values(const ModelConfig& config) {
  const Model m(test::context_on(Device::cpu()), config, DType::f32);
  m.parameters().initialize(1);
  Rng rng(9);
  Values out;
  for (const Parameter& p : m.parameters().list()) {
    std::vector<float> v = m.parameters().read_value(p);
    for (float& e : v) {
      if (p.init_std <= 0) e += static_cast<float>(0.1 * rng.normal());
      e = to_float(to_bf16(e));
    }
    out[p.name] = v;
  }
  return out;
}

inline std::unique_ptr<Model> make_model(Context& ctx, const ModelConfig& config, const Values& values, DType type) {
  auto m = std::make_unique<Model>(ctx, config, type);
  for (const Parameter& p : m->parameters().list()) m->parameters().write_value(p, values.at(p.name).data());
  m->refresh_constants();
  return m;
}

inline double length_of(const std::vector<float>& v) {
  double square = 0;
  for (const float e : v) square += static_cast<double>(e) * static_cast<double>(e);
  return std::sqrt(square);
}

template <class T>
double distance(const std::vector<T>& a, const std::vector<float>& b) {
  double square = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    square += d * d;
  }
  return std::sqrt(square);
}

}  // namespace bhyt::testing
