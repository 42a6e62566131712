#include "core/memory.h"

#include <cstdlib>
#include <cstring>

#include "core/check.h"

namespace bhyt {

std::string name_of(Device d) { return d.is_cuda() ? fmt::format("cuda:{}", d.index) : "cpu"; }

void* device_alloc(Device d, std::size_t bytes) {
  if (d.is_cuda()) return cuda::alloc(d.index, bytes);
  void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  check(p != nullptr, "[memory] expected {} bytes on the CPU, the system gave none; lower train.micro_batch or use a smaller model", bytes);
  return p;
}

void device_free(Device d, void* p) noexcept {
  if (d.is_cuda())
    cuda::free(d.index, p);
  else
    std::free(p);
}

void device_copy(Device to, void* dst, Device from, const void* src, std::size_t bytes) {
  if (to.is_cuda() || from.is_cuda())
    cuda::copy(to, dst, from, src, bytes);
  else if (bytes)
    std::memcpy(dst, src, bytes);
}

void device_zero(Device d, void* p, std::size_t bytes) {
  if (d.is_cuda())
    cuda::zero(d.index, p, bytes);
  else if (bytes)
    std::memset(p, 0, bytes);
}

void device_synchronize(Device d) {
  if (d.is_cuda()) cuda::synchronize(d.index);
}

OwnedTensor::OwnedTensor(Device d, DType type, std::initializer_list<std::int64_t> dims) : t(nullptr, type, d, dims) {
  memory = Buffer(d, std::max<std::size_t>(t.bytes(), 1));
  t.data = memory.data();
}

void zero(const Tensor& t) {
  check(t.contiguous(), "[zero] expected a contiguous tensor");
  device_zero(t.device, t.data, t.bytes());
}

void copy(const Tensor& from, const Tensor& to) {
  check(from.contiguous() && to.contiguous(), "[copy] expected contiguous tensors");
  check(from.dtype == to.dtype && from.size() == to.size(), "[copy] expected {} {}, got {} {}", name_of(to.dtype), shape_string(to),
        name_of(from.dtype), shape_string(from));
  device_copy(to.device, to.data, from.device, from.data, from.bytes());
}

}  // namespace bhyt
