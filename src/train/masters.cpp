#include "train/masters.h"

#include <algorithm>

namespace bhyt::train {

namespace {

template <class T>
std::vector<T> on_host(Context& ctx, const Tensor& t) {
  std::vector<T> host(static_cast<std::size_t>(t.size()));
  to_host(ctx, t, host.data());
  return host;
}

template <class T>
void to_device(Context& ctx, const Tensor& t, std::int64_t first, const T* host, std::int64_t n) {
  from_host(ctx, host, Tensor(t.as<T>() + first, t.dtype, t.device, {n}));
}

}  // namespace

Masters::Masters(const Parameters& parameters, const Shard& shard) : parameters_(&parameters), shard_(&shard) {
  if (parameters.type() != DType::bf16) return;
  low_bits_ = OwnedTensor(parameters.context(), DType::u16, {shard.size()});
  zero(parameters.context(), low_bits_);
}

std::vector<float> Masters::read(const Shard::Part& part) const {
  Context& ctx = parameters_->context();
  const Tensor& value = part.parameter->value;
  const auto first = static_cast<std::size_t>(part.first) * size_of(value.dtype);
  const Tensor own(static_cast<char*>(value.data) + first, value.dtype, value.device, {part.size});
  if (value.dtype == DType::f32) return on_host<float>(ctx, own);
  const auto values = on_host<bf16>(ctx, own);
  const auto low = on_host<std::uint16_t>(ctx, shard_->in_arena(low_bits_, part));
  std::vector<float> out(values.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = join(values[i], low[i]);
  return out;
}

void Masters::write(const Parameter& p, std::int64_t first, std::int64_t n, const float* values) {
  Context& ctx = parameters_->context();
  if (p.value.dtype == DType::f32) return to_device(ctx, p.value, first, values, n);
  std::vector<bf16> weights(static_cast<std::size_t>(n));
  std::vector<std::uint16_t> low(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const SplitFloat s = split(values[i]);
    weights[i] = s.value;
    low[i] = s.low;
  }
  to_device(ctx, p.value, first, weights.data(), n);
  if (p.frozen) return;
  const Shard::Part* part = shard_->find(p);
  if (!part) return;
  const std::int64_t from = std::max(first, part->first), to = std::min(first + n, part->first + part->size);
  if (from < to) to_device(ctx, shard_->in_arena(low_bits_, *part), from - part->first, low.data() + (from - first), to - from);
}

ValueSink Masters::sink() {
  if (!low_bits_.t) return {};
  return [this](const Parameter& p, std::int64_t first, std::int64_t n, const float* values) { write(p, first, n, values); };
}

}  // namespace bhyt::train
