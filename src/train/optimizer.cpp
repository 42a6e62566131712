#include "train/optimizer.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"

namespace bhyt::train {

namespace {

using Put = std::function<void(const void*, std::size_t)>;

constexpr const char* kMaster = "master.";

std::vector<ArenaSpan> spans_of(const Shard& shard, bool counted) {
  std::vector<ArenaSpan> out;
  for (const Shard::Part& part : shard.parts()) {
    if (counted && part.shared && shard.rank() > 0) continue;
    const Tensor& value = part.parameter->value;
    const auto first = static_cast<std::size_t>(part.first) * size_of(value.dtype);
    const Tensor own = part.whole() ? value : Tensor(static_cast<char*>(value.data) + first, value.dtype, value.device, {part.size});
    out.push_back({.offset = part.at, .size = part.size, .value = own, .decays = part.parameter->decays});
  }
  return out;
}

const char* const kFirst = "first.";

// Where the elements of a stored tensor begin in its parameter.
std::int64_t first_of(const SafeTensors& file, const std::string& parameter) {
  const auto found = file.metadata().find(kFirst + parameter);
  if (found == file.metadata().end()) return 0;
  std::int64_t first = 0;
  const char* const end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, first);
  check(error == std::errc() && stop == end && first >= 0, "{}: expected {}{} to be a whole number, got {}", file.path().string(), kFirst,
        parameter, found->second);
  return first;
}

// Elements of a parameter's tensor from all files that hold some, as far as they lie in `part`; use(first, n, values). False: no file has
// any. Error where some are missing.
bool read_part(const std::vector<SafeTensors>& files, const std::string& kind, const Shard::Part& part,
               const std::function<void(std::int64_t first, std::int64_t n, const float* values)>& use) {
  const Parameter& p = *part.parameter;
  std::int64_t covered = 0;
  bool any = false;
  std::vector<float> host;
  for (const SafeTensors& file : files) {
    const SafeTensor* t = file.find(kind + p.name);
    if (!t) continue;
    any = true;
    const std::int64_t begin = first_of(file, p.name), size = t->size();
    check(begin + size <= p.size && (begin > 0 || size == p.size || file.metadata().contains(kFirst + p.name)),
          "{}: expected tensor {}{} with {} values, got {}", file.path().string(), kind, p.name, p.size - begin, size);
    const std::int64_t from = std::max(begin, part.first), to = std::min(begin + size, part.first + part.size);
    if (from >= to) continue;
    host.resize(static_cast<std::size_t>(to - from));
    SafeTensors::to_float(*t, from - begin, to - from, host.data());
    use(from, to - from, host.data());
    covered += to - from;
  }
  check(!any || covered == part.size, "{}: expected {} values of tensor {}{}, found {}", files.front().path().parent_path().string(),
        part.size, kind, p.name, covered);
  return any;
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

Optimizer::Optimizer(const Parameters& parameters, Shard shard)
    : parameters_(parameters),
      shard_(std::move(shard)),
      spans_(spans_of(shard_, false)),
      counted_(spans_of(shard_, true)),
      masters_(parameters, shard_) {}

Tensor Optimizer::add_state(const std::string& name) {
  state_.push_back({name, OwnedTensor(parameters_.context(), DType::f32, {shard_.size()})});
  zero(parameters_.context(), state_.back().values);
  return state_.back().values;
}

void Optimizer::gradient_norm(const Tensor& gradients, const Tensor& norm) const {
  bhyt::gradient_norm(parameters_.context(), gradients, spans_, norm);
}
void Optimizer::squares(const Tensor& gradients, const Tensor& sum) const {
  bhyt::sum_of_squares(parameters_.context(), gradients, counted_, sum);
}

std::size_t Optimizer::bytes() const {
  std::size_t sum = masters_.bytes();
  for (const StateArena& s : state_) sum += s.values.memory.bytes();
  return sum;
}

void Optimizer::save(std::vector<SafeTensorOut>& tensors, std::map<std::string, std::string>& metadata) const {
  const auto shape = [](const Shard::Part& part) { return part.whole() ? part.parameter->shape : std::vector<std::int64_t>{part.size}; };
  for (const Shard::Part& part : shard_.parts()) {
    if (part.shared && shard_.rank() > 0) continue;
    const std::string& name = part.parameter->name;
    if (!part.whole()) metadata[kFirst + name] = std::to_string(part.first);
    for (const StateArena& s : state_)
      tensors.push_back(tensor_from(parameters_.context(), s.name + "." + name, shape(part), shard_.in_arena(s.values, part)));
    if (!masters_.low_bits()) continue;  // the weights hold every bit
    tensors.push_back({kMaster + name, "F32", shape(part), [this, &part](const Put& put) {
                         const std::vector<float> master = masters_.read(part);
                         put(master.data(), master.size() * sizeof(float));
                       }});
  }
}

void Optimizer::load(const std::vector<SafeTensors>& files) {
  for (const Shard::Part& part : shard_.parts()) {
    const Parameter& p = *part.parameter;
    for (const StateArena& s : state_) {
      const Tensor to = shard_.in_arena(s.values, part);
      const bool there = read_part(files, s.name + ".", part, [&](std::int64_t first, std::int64_t n, const float* values) {
        from_host(parameters_.context(), values, Tensor(to.as<float>() + (first - part.first), DType::f32, to.device, {n}));
      });
      check(there, "{}: expected tensor {}.{}, found none", files.front().path().string(), s.name, p.name);
    }
  }
  // Of the whole parameter: a process computes with all weights.
  for (const Parameter& p : parameters_.list()) {
    if (p.frozen) continue;
    const Shard::Part whole{.parameter = &p, .size = p.size};
    read_part(files, kMaster, whole, [&](std::int64_t first, std::int64_t n, const float* values) { masters_.write(p, first, n, values); });
  }
}

}  // namespace bhyt::train
