// Memory on the host and its twin on a device, for copies that nobody waits for. On the CPU the two are one.
#pragma once

#include <memory>

#include "core/memory.h"

namespace bhyt {

namespace cuda {
struct Twin;  // page-locked memory and the events that order its copies
Twin* open_twin(Queue& queue, void* device_side, std::size_t bytes);
void close_twin(Twin* twin) noexcept;
void* host_side(Twin& twin);
void send(Twin& twin, std::size_t bytes);
void receive(Twin& twin);
void release(Twin& twin);
void fetch(Twin& twin, std::size_t bytes);
}  // namespace cuda

class Mirror {
 public:
  Mirror(Context& context, std::size_t bytes) : memory_(context, bytes), twin_(nullptr, cuda::close_twin) {
    if (context.device().is_cuda()) twin_.reset(cuda::open_twin(context.queue(), memory_.data(), bytes));
  }

  void* device_side() const { return memory_.data(); }
  // Waits until the last copy, either way, is over.
  void* host_side() const { return twin_ ? cuda::host_side(*twin_) : memory_.data(); }

  // Host to device beside whatever the device computes, but behind the last release().
  void send(std::size_t bytes) const {
    if (twin_) cuda::send(*twin_, bytes);
  }
  // What the device is given from here on waits for what was sent.
  void receive() const {
    if (twin_) cuda::receive(*twin_);
  }
  // What the device was given so far is all that reads its side: the next send() may follow it.
  void release() const {
    if (twin_) cuda::release(*twin_);
  }
  // Device to host, behind what the device was given so far.
  void fetch(std::size_t bytes) const {
    if (twin_) cuda::fetch(*twin_, bytes);
  }

 private:
  Buffer memory_;
  std::unique_ptr<cuda::Twin, void (*)(cuda::Twin*) noexcept> twin_;
};

}  // namespace bhyt
