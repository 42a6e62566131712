// What the CUDA backend's host code uses: checked calls, the stream, scratch memory.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "core/error.h"
#include "core/tensor.h"

namespace bhyt::cuda {

inline void check_call(cudaError_t e, const char* what) {
  if (e != cudaSuccess) fail(std::string("[cuda] ") + what + ": " + cudaGetErrorString(e));
}
#define BHYT_CUDA(call) ::bhyt::cuda::check_call((call), #call)
inline void check_launch(const char* what) { check_call(cudaGetLastError(), what); }

// All work of the program goes through one stream per device.
cudaStream_t stream();
// Scratch for one kernel's partial results, good until the next call that asks for it; grows, never shrinks.
void* scratch(std::size_t bytes);
// Memory of the device in use; when there is none, the error says what was asked, what is free and what helps.
void* device_memory(std::size_t bytes);
int multiprocessors();

inline bool aligned16(const Tensor& t) {
  return !t || (reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.ld * static_cast<std::int64_t>(size_of(t.dtype)) % 16 == 0);
}
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }

}  // namespace bhyt::cuda
