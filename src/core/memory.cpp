#include "core/memory.h"

#include "core/check.h"

namespace bhyt {

std::string name_of(Device d) { return d.is_cuda() ? "cuda:" + std::to_string(d.index) : "cpu"; }

OwnedTensor::OwnedTensor(Context& context, DType type, std::initializer_list<std::int64_t> dims)
    : t(nullptr, type, context.device(), dims) {
  memory = Buffer(context, std::max<std::size_t>(t.bytes(), 1));
  t.data = memory.data();
}

void zero(Context& context, const Tensor& t) {
  check(t.contiguous(), "[zero] expected a contiguous tensor");
  context.zero(t.data, t.bytes());
}

void copy(Context& context, const Tensor& from, const Tensor& to) {
  check(from.contiguous() && to.contiguous(), "[copy] expected contiguous tensors");
  check(from.dtype == to.dtype && from.size() == to.size(), "[copy] expected {} {}, got {} {}", name_of(to.dtype), shape_string(to),
        name_of(from.dtype), shape_string(from));
  context.copy(to.device, to.data, from.device, from.data, from.bytes());
}

void copy_rows(Context& context, const Tensor& from, const Tensor& to) {
  check(from.dtype == to.dtype && from.rows() == to.rows() && from.cols() == to.cols() && from.device == to.device,
        "[copy_rows] expected {} [{}, {}], got {} [{}, {}]", name_of(to.dtype), to.rows(), to.cols(), name_of(from.dtype), from.rows(),
        from.cols());
  const std::size_t size = size_of(from.dtype);
  context.copy_rows(to.data, static_cast<std::size_t>(to.ld) * size, from.data, static_cast<std::size_t>(from.ld) * size,
                    static_cast<std::size_t>(from.cols()) * size, static_cast<std::size_t>(from.rows()));
}

void to_host(Context& context, const Tensor& from, void* to) {
  check(from.contiguous(), "[copy] expected a contiguous tensor");
  context.copy(Device::cpu(), to, from.device, from.data, from.bytes());
}

void from_host(Context& context, const void* from, const Tensor& to) {
  check(to.contiguous(), "[copy] expected a contiguous tensor");
  context.copy(to.device, to.data, Device::cpu(), from, to.bytes());
}

}  // namespace bhyt
