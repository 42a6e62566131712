#include "train/optimizer.h"

#include "core/check.h"

namespace bhyt::train {

namespace {

using Put = std::function<void(const void*, std::size_t)>;

constexpr const char* kMaster = "master.";

std::vector<ArenaSpan> spans_of(const Parameters& parameters) {
  std::vector<ArenaSpan> out;
  for (const Parameter& p : parameters.list())
    if (!p.frozen) out.push_back({.offset = p.offset, .size = p.size, .value = p.value, .decays = p.decays});
  return out;
}

}  // namespace

std::vector<float> read_tensor(const SafeTensors& file, const std::string& name, std::int64_t size) {
  const SafeTensor& t = file.at(name);
  check(t.size() == size, "{}: expected tensor {} with {} values, got {}", file.path().string(), name, size, t.size());
  std::vector<float> host(static_cast<std::size_t>(size));
  SafeTensors::to_float(t, 0, t.size(), host.data());
  return host;
}

SafeTensorOut tensor_from(Context& ctx, std::string name, std::vector<std::int64_t> shape, const Tensor& values) {
  return {std::move(name), "F32", std::move(shape), [values, &ctx](const Put& put) {
            if (!values.device.is_cuda()) return put(values.data, values.bytes());
            std::vector<float> host(static_cast<std::size_t>(values.size()));
            to_host(ctx, values, host.data());
            put(host.data(), values.bytes());
          }};
}

Optimizer::Optimizer(const Parameters& parameters) : parameters_(parameters), spans_(spans_of(parameters)), masters_(parameters) {}

Tensor Optimizer::add_state(const std::string& name) {
  state_.push_back({name, OwnedTensor(parameters_.context(), DType::f32, {parameters_.arena_size()})});
  zero(parameters_.context(), state_.back().values);
  return state_.back().values;
}

void Optimizer::gradient_norm(const Tensor& gradients, const Tensor& norm) const {
  bhyt::gradient_norm(parameters_.context(), gradients, spans_, norm);
}

std::size_t Optimizer::bytes() const {
  std::size_t sum = masters_.bytes();
  for (const StateArena& s : state_) sum += s.values.memory.bytes();
  return sum;
}

void Optimizer::save(std::vector<SafeTensorOut>& tensors) const {
  for (const StateArena& s : state_)
    for (const Parameter& p : parameters_.list())
      if (!p.frozen)
        tensors.push_back(tensor_from(parameters_.context(), s.name + "." + p.name, p.shape, parameters_.in_arena(s.values, p)));
  if (!masters_.low_bits()) return;
  for (const Parameter& p : parameters_.list()) {
    if (p.frozen) continue;  // the weights hold every bit of these
    tensors.push_back({kMaster + p.name, "F32", p.shape, [this, &p](const Put& put) {
                         const std::vector<float> master = masters_.read(p);
                         put(master.data(), master.size() * sizeof(float));
                       }});
  }
}

void Optimizer::load(const SafeTensors& file) {
  for (const StateArena& s : state_)
    for (const Parameter& p : parameters_.list()) {
      if (p.frozen) continue;
      const std::vector<float> host = read_tensor(file, s.name + "." + p.name, p.size);
      from_host(parameters_.context(), host.data(), parameters_.in_arena(s.values, p));
    }
  for (const Parameter& p : parameters_.list())
    if (!p.frozen && file.find(kMaster + p.name)) masters_.write(p, 0, p.size, read_tensor(file, kMaster + p.name, p.size).data());
}

}  // namespace bhyt::train
