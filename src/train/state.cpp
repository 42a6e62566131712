#include "train/state.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "core/check.h"
#include "model/safetensors.h"

namespace bhyt::train {

namespace {

// The arenas that go into the file, by the prefix of their tensors' names.
std::vector<std::pair<std::string, Tensor>> arenas(const OptimizerState& state) {
  std::vector<std::pair<std::string, Tensor>> out = {{"m.", state.m.t}, {"v.", state.v.t}};
  if (state.own_master.t) out.emplace_back("master.", state.master);
  return out;
}

std::vector<float> on_host(const Tensor& t) {
  std::vector<float> host(static_cast<std::size_t>(t.size()));
  device_copy(Device::cpu(), host.data(), t.device, t.data, t.bytes());
  return host;
}

SafeTensorOut out_tensor(std::string name, std::vector<std::int64_t> shape, const Tensor& t) {
  return {std::move(name), "F32", std::move(shape), [t](const std::function<void(const void*, std::size_t)>& put) {
            if (!t.device.is_cuda()) return put(t.data, t.bytes());
            const std::vector<float> host = on_host(t);
            put(host.data(), t.bytes());
          }};
}

void read_tensor(const SafeTensors& file, const std::string& name, const Tensor& into) {
  const SafeTensor& t = file.at(name);
  check(t.size() == into.size(), "{}: tensor {} has {} values, the run's config asks for {}", file.path().string(), name, t.size(),
        into.size());
  std::vector<float> host(static_cast<std::size_t>(into.size()));
  SafeTensors::to_float(t, 0, t.size(), host.data());
  device_copy(into.device, into.data, Device::cpu(), host.data(), into.bytes());
}

}  // namespace

OptimizerState::OptimizerState(const Model& model) {
  const Parameters& p = model.parameters();
  const auto arena = [&] {
    OwnedTensor t(p.device(), DType::f32, {p.arena_size()});
    zero(t);
    return t;
  };
  gradients = arena();
  m = arena();
  v = arena();
  master = p.value_arena();
  if (master) return;
  own_master = arena();
  master = own_master.t;
  for (const Parameter& q : p.list()) {
    const std::vector<float> value = p.read_value(q);
    const Tensor to = p.in_arena(master, q);
    device_copy(to.device, to.data, Device::cpu(), value.data(), to.bytes());
  }
}

std::size_t OptimizerState::master_and_moment_bytes() const { return m.memory.bytes() + v.memory.bytes() + own_master.memory.bytes(); }

void save_optimizer(const fs::path& file, const Model& model, const OptimizerState& state) {
  const Parameters& p = model.parameters();
  std::vector<SafeTensorOut> tensors;
  for (const auto& [prefix, arena] : arenas(state))
    for (const Parameter& q : p.list()) tensors.push_back(out_tensor(prefix + q.name, q.shape, p.in_arena(arena, q)));
  tensors.push_back(out_tensor("c_attn", {model.constants().size()}, model.constants()));
  write_safetensors(file, std::move(tensors));
}

void load_optimizer(const fs::path& path, Model& model, OptimizerState& state) {
  const SafeTensors file(path);
  const Parameters& p = model.parameters();
  for (const auto& [prefix, arena] : arenas(state))
    for (const Parameter& q : p.list()) read_tensor(file, prefix + q.name, p.in_arena(arena, q));
  // The weights of a bf16 run are its masters, rounded.
  if (state.own_master.t)
    for (const Parameter& q : p.list()) p.write_value(q, on_host(p.in_arena(state.master, q)).data());
  read_tensor(file, "c_attn", model.constants());
}

Json to_json(const Progress& p) {
  return {{"step", p.step},          {"updates", p.updates},       {"skipped_in_row", p.skipped_in_row},
          {"loss_sum", p.loss_sum},  {"loss_count", p.loss_count}, {"best_metric", p.best_step ? Json(p.best_metric) : Json()},
          {"best_step", p.best_step}};
}

Progress progress_from(const Json& state, const std::string& where) {
  try {
    const Json& own = state.at("bhyt").at("progress");
    Progress p;
    p.step = own.at("step");
    p.updates = own.at("updates");
    p.skipped_in_row = own.at("skipped_in_row");
    p.loss_sum = own.at("loss_sum");
    p.loss_count = own.at("loss_count");
    p.best_step = own.at("best_step");
    if (p.best_step) p.best_metric = own.at("best_metric");
    p.log_history = state.at("log_history");
    return p;
  } catch (const Json::exception& e) {
    throw Error(fmt::format("{}: not a training state of this program: {}", where, e.what()));
  }
}

}  // namespace bhyt::train
