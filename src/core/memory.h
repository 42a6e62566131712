// Owning memory on a device.
#pragma once

#include <utility>

#include "core/tensor.h"

namespace bhyt {

// One allocation, freed with its owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device d, std::size_t bytes) : device_(d), bytes_(bytes), data_(bytes ? device_alloc(d, bytes) : nullptr) {}
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_) device_free(device_, data_);
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void swap(Buffer& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(bytes_, o.bytes_);
    std::swap(data_, o.data_);
  }
  Device device_;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

// A tensor that owns its memory.
struct OwnedTensor {
  Buffer memory;
  Tensor t;
  OwnedTensor() = default;
  OwnedTensor(Device d, DType type, std::initializer_list<std::int64_t> dims);
  operator const Tensor&() const { return t; }
};

void zero(const Tensor& t);                       // contiguous
void copy(const Tensor& from, const Tensor& to);  // same dtype and size, contiguous, any devices

void copy_rows(const Tensor& from, const Tensor& to);  // the same for column slices; one device

}  // namespace bhyt
