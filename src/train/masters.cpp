#include "train/masters.h"

namespace bhyt::train {

namespace {

template <class T>
std::vector<T> on_host(const Tensor& t) {
  std::vector<T> host(static_cast<std::size_t>(t.size()));
  device_copy(Device::cpu(), host.data(), t.device, t.data, t.bytes());
  return host;
}

template <class T>
void to_device(const Tensor& t, std::int64_t first, const std::vector<T>& host) {
  device_copy(t.device, t.as<T>() + first, Device::cpu(), host.data(), host.size() * sizeof(T));
}

}  // namespace

Masters::Masters(const Parameters& parameters) : parameters_(&parameters) {
  if (parameters.type() != DType::bf16) return;
  low_bits_ = OwnedTensor(parameters.device(), DType::u16, {parameters.arena_size()});
  zero(low_bits_);
}

std::vector<float> Masters::read(const Parameter& p) const {
  if (p.value.dtype == DType::f32) return on_host<float>(p.value);
  const auto values = on_host<bf16>(p.value);
  const auto low = on_host<std::uint16_t>(parameters_->in_arena(low_bits_, p));
  std::vector<float> out(values.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = join(values[i], low[i]);
  return out;
}

void Masters::write(const Parameter& p, std::int64_t first, std::int64_t n, const float* values) {
  if (p.value.dtype == DType::f32) {
    to_device(p.value, first, std::vector<float>(values, values + n));
  } else {
    std::vector<bf16> weights(static_cast<std::size_t>(n));
    std::vector<std::uint16_t> low(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const SplitFloat s = split(values[i]);
      weights[i] = s.value;
      low[i] = s.rest;
    }
    to_device(p.value, first, weights);
    to_device(parameters_->in_arena(low_bits_, p), first, low);
  }
  device_synchronize(parameters_->device());  // the host's copies go away
}

ValueSink Masters::sink() {
  if (!low_bits_.t) return {};
  return [this](const Parameter& p, std::int64_t first, std::int64_t n, const float* values) { write(p, first, n, values); };
}

}  // namespace bhyt::train
