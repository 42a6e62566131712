// Memory, copies and the stream of the CUDA backend.
#include "core/cuda.cuh"

namespace bhyt::cuda {

namespace {

// Everything the backend keeps for the device in use: made on first use, kept until the program ends.
struct State {
  int device = -1;
  cudaStream_t stream = nullptr;
  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
  int multiprocessors = 0;
};
State state;

void use(int index) {
  if (state.device == index) return;
  BHYT_CUDA(cudaSetDevice(index));
  cudaDeviceProp p{};
  BHYT_CUDA(cudaGetDeviceProperties(&p, index));
  if (p.major < 8)
    fail("[cuda] expected compute capability 8.0 or newer, " + std::string(p.name) + " has " + std::to_string(p.major) + "." +
         std::to_string(p.minor) + "; use device=cpu");
  state = State{};
  state.device = index;
  state.multiprocessors = p.multiProcessorCount;
  BHYT_CUDA(cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
}

std::string gib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

}  // namespace

cudaStream_t stream() {
  if (state.device < 0) use(0);
  return state.stream;
}
int multiprocessors() {
  if (state.device < 0) use(0);
  return state.multiprocessors;
}

void* scratch(std::size_t bytes) {
  if (bytes <= state.scratch_bytes) return state.scratch;
  BHYT_CUDA(cudaStreamSynchronize(stream()));
  if (state.scratch) BHYT_CUDA(cudaFree(state.scratch));
  state.scratch_bytes = (bytes + (1 << 20) - 1) >> 20 << 20;
  state.scratch = nullptr;
  BHYT_CUDA(cudaMalloc(&state.scratch, state.scratch_bytes));
  return state.scratch;
}

bool built() { return true; }

int device_count() {
  static const int count = [] {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
  }();
  return count;
}

std::string describe(int index) {
  cudaDeviceProp p{};
  BHYT_CUDA(cudaGetDeviceProperties(&p, index));
  return p.name;
}

std::size_t free_bytes(int index) {
  use(index);
  std::size_t free = 0, total = 0;
  BHYT_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

std::size_t total_bytes(int index) {
  use(index);
  std::size_t free = 0, total = 0;
  BHYT_CUDA(cudaMemGetInfo(&free, &total));
  return total;
}

void* alloc(int index, std::size_t bytes) {
  use(index);
  void* p = nullptr;
  const cudaError_t e = cudaMalloc(&p, bytes);
  if (e == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail("[cuda] out of memory: asked for " + gib(bytes) + ", free " + gib(free_bytes(index)) + " of " + gib(total_bytes(index)) +
         "; lower train.micro_batch or set train.recompute to swiglu or block");
  }
  check_call(e, "cudaMalloc");
  return p;
}

void free(int, void* p) noexcept {
  cudaStreamSynchronize(state.stream);
  cudaFree(p);
}

void copy(Device to, void* dst, Device from, const void* src, std::size_t bytes) {
  use(to.is_cuda() ? to.index : from.index);
  if (bytes == 0) return;
  BHYT_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream()));
  // A host buffer may be reused or read as soon as this returns.
  if (!to.is_cuda() || !from.is_cuda()) BHYT_CUDA(cudaStreamSynchronize(stream()));
}

void copy_2d(int index, void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t row_bytes, std::size_t rows) {
  use(index);
  BHYT_CUDA(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, row_bytes, rows, cudaMemcpyDeviceToDevice, stream()));
}

void zero(int index, void* p, std::size_t bytes) {
  use(index);
  BHYT_CUDA(cudaMemsetAsync(p, 0, bytes, stream()));
}

void synchronize(int index) {
  use(index);
  BHYT_CUDA(cudaStreamSynchronize(stream()));
}

}  // namespace bhyt::cuda
