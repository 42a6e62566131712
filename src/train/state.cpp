#include "train/state.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "core/check.h"
#include "model/safetensors.h"

namespace bhyt::train {

namespace {

using Put = std::function<void(const void*, std::size_t)>;

template <class T>
std::vector<T> on_host(const Tensor& t) {
  std::vector<T> host(static_cast<std::size_t>(t.size()));
  device_copy(Device::cpu(), host.data(), t.device, t.data, t.bytes());
  return host;
}

void to_device(const Tensor& t, const void* host) { device_copy(t.device, t.data, Device::cpu(), host, t.bytes()); }

SafeTensorOut out_tensor(std::string name, std::vector<std::int64_t> shape, const Tensor& t) {
  return {std::move(name), "F32", std::move(shape), [t](const Put& put) {
            if (!t.device.is_cuda()) return put(t.data, t.bytes());
            put(on_host<float>(t).data(), t.bytes());
          }};
}

std::vector<float> master_of(const Tensor& value, const Tensor& rest) {
  if (value.dtype == DType::f32) return on_host<float>(value);
  const std::vector<bf16> values = on_host<bf16>(value);
  const std::vector<std::uint16_t> rests = on_host<std::uint16_t>(rest);
  std::vector<float> out(values.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = join(values[i], rests[i]);
  return out;
}

void set_master(const Tensor& value, const Tensor& rest, const std::vector<float>& master) {
  if (value.dtype == DType::f32) return to_device(value, master.data());
  std::vector<bf16> values(master.size());
  std::vector<std::uint16_t> rests(master.size());
  for (std::size_t i = 0; i < master.size(); ++i) {
    const SplitFloat s = split(master[i]);
    values[i] = s.value, rests[i] = s.rest;
  }
  to_device(value, values.data());
  to_device(rest, rests.data());
}

std::vector<float> read_tensor(const SafeTensors& file, const std::string& name, std::int64_t size) {
  const SafeTensor& t = file.at(name);
  check(t.size() == size, "{}: tensor {} has {} values, the run's config asks for {}", file.path().string(), name, t.size(), size);
  std::vector<float> host(static_cast<std::size_t>(size));
  SafeTensors::to_float(t, 0, t.size(), host.data());
  return host;
}

}  // namespace

OptimizerState::OptimizerState(const Model& model) {
  const Parameters& p = model.parameters();
  const auto arena = [&](DType type) {
    OwnedTensor t(p.device(), type, {p.arena_size()});
    zero(t);
    return t;
  };
  gradients = arena(DType::f32);
  m = arena(DType::f32);
  v = arena(DType::f32);
  if (p.type() == DType::bf16) rests = arena(DType::u16);
}

std::size_t OptimizerState::master_and_moment_bytes() const { return m.memory.bytes() + v.memory.bytes() + rests.memory.bytes(); }

void save_optimizer(const fs::path& file, const Model& model, const OptimizerState& state) {
  const Parameters& p = model.parameters();
  std::vector<SafeTensorOut> tensors;
  for (const auto& [prefix, arena] : {std::pair{"m.", state.m.t}, {"v.", state.v.t}})
    for (const Parameter& q : p.list()) tensors.push_back(out_tensor(prefix + q.name, q.shape, p.in_arena(arena, q)));
  if (state.rests.t)
    for (const Parameter& q : p.list())
      tensors.push_back({"master." + q.name, "F32", q.shape, [value = q.value, rest = p.in_arena(state.rests, q)](const Put& put) {
                           const std::vector<float> master = master_of(value, rest);
                           put(master.data(), master.size() * sizeof(float));
                         }});
  tensors.push_back(out_tensor("c_attn", {model.constants().size()}, model.constants()));
  write_safetensors(file, std::move(tensors));
}

void load_optimizer(const fs::path& path, Model& model, OptimizerState& state, bool masters) {
  const SafeTensors file(path);
  const Parameters& p = model.parameters();
  for (const auto& [prefix, arena] : {std::pair{"m.", state.m.t}, {"v.", state.v.t}})
    for (const Parameter& q : p.list()) to_device(p.in_arena(arena, q), read_tensor(file, prefix + q.name, q.size).data());
  // The weights of a bf16 run are its masters, rounded.
  if (masters)
    for (const Parameter& q : p.list())
      set_master(q.value, state.rests.t ? p.in_arena(state.rests, q) : Tensor{}, read_tensor(file, "master." + q.name, q.size));
  to_device(model.constants(), read_tensor(file, "c_attn", model.constants().size()).data());
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
