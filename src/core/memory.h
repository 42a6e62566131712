// Owning memory on a device.
#pragma once

#include <utility>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt {

// One allocation of a context, which must outlive it; given back with its owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Context& context, std::size_t bytes) : context_(&context), bytes_(bytes), data_(bytes ? context.allocate(bytes) : nullptr) {}
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_) context_->release(data_);
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) noexcept {
    std::swap(context_, o.context_);
    std::swap(bytes_, o.bytes_);
    std::swap(data_, o.data_);
  }
  Context* context_ = nullptr;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

// A tensor that owns its memory.
struct OwnedTensor {
  Buffer memory;
  Tensor t;
  OwnedTensor() = default;
  OwnedTensor(Context& context, DType type, std::initializer_list<std::int64_t> dims);
  operator const Tensor&() const { return t; }
};

void zero(Context& context, const Tensor& t);                       // contiguous
void copy(Context& context, const Tensor& from, const Tensor& to);  // same dtype and size, contiguous, any devices

void copy_rows(Context& context, const Tensor& from, const Tensor& to);  // the same for column slices; one device

// Between a contiguous tensor and the host's memory; these wait.
void to_host(Context& context, const Tensor& from, void* to);
void from_host(Context& context, const void* from, const Tensor& to);

}  // namespace bhyt
