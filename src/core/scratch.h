// Working memory of the operations on the CPU.
#pragma once

#include "core/memory.h"

namespace bhyt {

// At least n floats that this thread keeps from call to call: allocated when more is asked than ever before, never given back.
// One per Tag and thread; the contents last until the thread's next call with that Tag.
template <class Tag>
float* scratch(std::int64_t n) {
  thread_local Buffer memory;
  const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
  if (memory.bytes() < bytes) memory = Buffer(Device::cpu(), bytes);
  return static_cast<float*>(memory.data());
}

}  // namespace bhyt
