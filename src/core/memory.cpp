#include "core/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/check.h"

namespace bhyt {

std::string name_of(Device d) { return d.is_cuda() ? fmt::format("cuda:{}", d.index) : "cpu"; }

void* device_alloc(Device d, std::size_t bytes) {
  if (d.is_cuda()) return cuda::alloc(d.index, bytes);
  void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  check(p != nullptr, "[memory] expected {} bytes on the CPU, the system gave none; lower train.micro_batch or use a smaller model", bytes);
  // The large pages that lie in it whole, where the system has some to give: far fewer page faults and address look-ups.
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<std::uintptr_t>(p) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(p) + bytes) / kLargePage * kLargePage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
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

void device_copy_2d(Device d, void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t row_bytes,
                    std::size_t rows) {
  if (d.is_cuda()) return cuda::copy_2d(d.index, dst, dst_pitch, src, src_pitch, row_bytes, rows);
  for (std::size_t i = 0; i < rows; ++i)
    std::memcpy(static_cast<char*>(dst) + i * dst_pitch, static_cast<const char*>(src) + i * src_pitch, row_bytes);
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

void copy_rows(const Tensor& from, const Tensor& to) {
  check(from.dtype == to.dtype && from.rows() == to.rows() && from.cols() == to.cols() && from.device == to.device,
        "[copy_rows] expected {} [{}, {}], got {} [{}, {}]", name_of(to.dtype), to.rows(), to.cols(), name_of(from.dtype), from.rows(),
        from.cols());
  const std::size_t size = size_of(from.dtype);
  device_copy_2d(to.device, to.data, static_cast<std::size_t>(to.ld) * size, from.data, static_cast<std::size_t>(from.ld) * size,
                 static_cast<std::size_t>(from.cols()) * size, static_cast<std::size_t>(from.rows()));
}

}  // namespace bhyt
