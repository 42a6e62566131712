// What the CUDA backend's host code uses: checked calls and a context's streams.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"

namespace bhyt::cuda {

inline void check_call(cudaError_t e, const char* what) {
  if (e != cudaSuccess) fail(std::string("[cuda] ") + what + ": " + cudaGetErrorString(e));
}
#define BHYT_CUDA(call) ::bhyt::cuda::check_call((call), #call)
inline void check_launch(const char* what) { check_call(cudaGetLastError(), what); }

// The streams of a context on a GPU: one for its work, one for copies beside it.
struct Queue {
  int device = 0;
  cudaStream_t work = nullptr, copies = nullptr;
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;  // that a block may have
};
inline cudaStream_t stream(Context& context) { return context.queue().work; }
inline int multiprocessors(Context& context) { return context.queue().multiprocessors; }
inline std::size_t shared_bytes(Context& context) { return context.queue().shared_bytes; }

inline bool aligned16(const Tensor& t) {
  return !t || (reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.ld * static_cast<std::int64_t>(size_of(t.dtype)) % 16 == 0);
}
inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) { return static_cast<unsigned>((n + per_block - 1) / per_block); }

}  // namespace bhyt::cuda
