// One training pass for tests that compare passes: what goes in as plain numbers, what comes out by parameter.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/rng.h"
#include "model/model.h"

namespace bhyt::testing {

// A batch as the host sees it; positions, first: empty or one for each token.
struct HostRows {
  std::int64_t batch = 0, seq = 0;
  std::vector<std::int32_t> tokens, targets, positions, first;
};

struct Gradients {
  double loss = 0;                                    // sum over the scored tokens
  std::map<std::string, std::vector<float>> by_name;  // parameters that are not frozen
};

// The one place where these tests touch the model's passes.
inline Gradients training_pass(Model& model, const HostRows& rows, float scale) {
  const Device device = model.device();
  const auto upload = [&](const std::vector<std::int32_t>& values) {
    if (values.empty()) return OwnedTensor();
    OwnedTensor t(device, DType::i32, {rows.batch, rows.seq});
    device_copy(device, t.t.data, Device::cpu(), values.data(), t.t.bytes());
    return t;
  };
  const OwnedTensor tokens = upload(rows.tokens), targets = upload(rows.targets), positions = upload(rows.positions),
                    first = upload(rows.first);
  const OwnedTensor arena(device, DType::f32, {model.parameters().arena_size()}), loss(device, DType::f32, {1});
  zero(arena);
  zero(loss);
  const Batch batch{
      .batch = rows.batch, .seq = rows.seq, .tokens = tokens, .targets = targets, .weights = {}, .positions = positions, .first = first};
  model.forward_backward(batch,
                         {.gradients = arena, .loss = loss, .scale = scale, .tokens_in_step = static_cast<double>(rows.tokens.size())});
  Gradients out;
  float sum = 0;
  std::vector<float> all(static_cast<std::size_t>(arena.t.size()));
  device_copy(Device::cpu(), &sum, device, loss.t.data, sizeof sum);
  device_copy(Device::cpu(), all.data(), device, arena.t.data, arena.t.bytes());
  out.loss = sum;
  for (const Parameter& p : model.parameters().list())
    if (!p.frozen) out.by_name[p.name].assign(all.begin() + p.offset, all.begin() + p.offset + p.size);
  return out;
}

// Values by parameter name that bf16 holds exactly wherever `type` is bf16: every model that is given them computes the same function.
// Everything that starts at a constant is moved off it, so that no gradient is tested at a special point.
using Values = std::map<std::string, std::vector<float>>;
inline Values draw_values(const ModelConfig& config) {
  Model m(config, Device::cpu(), DType::f32);
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

inline Model make_model(const ModelConfig& config, const Values& values, Device device, DType type) {
  Model m(config, device, type);
  m.parameters().initialize(1);
  for (const Parameter& p : m.parameters().list()) m.parameters().write_value(p, values.at(p.name).data());
  m.refresh_constants();
  return m;
}

inline double length_of(const std::vector<float>& v) {
  double square = 0;
  for (const float e : v) square += static_cast<double>(e) * static_cast<double>(e);
  return std::sqrt(square);
}

inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    square += d * d;
  }
  return std::sqrt(square);
}

}  // namespace bhyt::testing
