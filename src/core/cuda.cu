// Memory, copies and the stream of the CUDA backend.
#include "core/cuda.cuh"
#include "core/mirror.h"

namespace bhyt::cuda {

namespace {

__global__ void probe_kernel() {}

// "" when this build runs on the GPU.
std::string unsupported(int index) {
  cudaDeviceProp p{};
  BHYT_CUDA(cudaGetDeviceProperties(&p, index));
  const std::string has = std::string(p.name) + " has compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor);
  if (p.major < 8) return has + ", expected 8.0 or newer";
  int before = 0;
  BHYT_CUDA(cudaGetDevice(&before));
  BHYT_CUDA(cudaSetDevice(index));
  cudaFuncAttributes attributes{};
  const cudaError_t e = cudaFuncGetAttributes(&attributes, probe_kernel);
  cudaGetLastError();
  BHYT_CUDA(cudaSetDevice(before));
  if (e == cudaSuccess) return "";
  if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction || e == cudaErrorUnsupportedPtxVersion)
    return has + ", and this build holds no code for that (BHYT_CUDA_ARCHS)";
  return std::string(p.name) + ": " + cudaGetErrorString(e);
}

// Everything the backend keeps for the device in use: made on first use, kept until the program ends.
struct State {
  int device = -1;
  cudaStream_t stream = nullptr, copies = nullptr;
  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
  int multiprocessors = 0;
};
State state;

void use(int index) {
  if (state.device == index) return;
  if (const std::string wrong = unsupported(index); !wrong.empty()) fail("[cuda] " + wrong + "; use device=cpu");
  BHYT_CUDA(cudaSetDevice(index));
  cudaDeviceProp p{};
  BHYT_CUDA(cudaGetDeviceProperties(&p, index));
  state = State{};
  state.device = index;
  state.multiprocessors = p.multiProcessorCount;
  BHYT_CUDA(cudaStreamCreateWithFlags(&state.stream, cudaStreamNonBlocking));
  BHYT_CUDA(cudaStreamCreateWithFlags(&state.copies, cudaStreamNonBlocking));
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
  state.scratch = nullptr;
  state.scratch_bytes = 0;
  const std::size_t rounded = (bytes + (1 << 20) - 1) >> 20 << 20;
  state.scratch = device_memory(rounded);
  state.scratch_bytes = rounded;
  return state.scratch;
}

void* device_memory(std::size_t bytes) {
  if (state.device < 0) use(0);
  return alloc(state.device, bytes);
}

bool built() { return true; }

int device_count() {
  static const int count = [] {
    int n = 0;
    const bool good = cudaGetDeviceCount(&n) == cudaSuccess;
    cudaGetLastError();
    return good ? n : 0;
  }();
  return count;
}

std::string why_unusable(int index) {
  int n = 0, driver = 0, runtime = 0;
  const cudaError_t e = cudaGetDeviceCount(&n);
  cudaGetLastError();
  if (e == cudaErrorInsufficientDriver) {
    const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return "there is no NVIDIA driver";
    BHYT_CUDA(cudaRuntimeGetVersion(&runtime));
    return "the NVIDIA driver is for CUDA " + version(driver) + ", this build needs " + version(runtime) + "; update the driver";
  }
  if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0)) return "no GPU was found";
  if (e != cudaSuccess) return std::string("CUDA says: ") + cudaGetErrorString(e);
  if (index >= n) return std::to_string(n) + (n == 1 ? " GPU was found" : " GPUs were found");
  return unsupported(index);
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
         "; lower train.micro_batch, set train.recompute to swiglu or block, or take a smaller model");
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

struct Twin {
  void *device = nullptr, *host = nullptr;
  std::size_t bytes = 0;
  cudaEvent_t copied = nullptr, read = nullptr;
};

Twin* open_twin(void* device_side, std::size_t bytes) {
  auto t = std::unique_ptr<Twin, void (*)(Twin*) noexcept>(new Twin{.device = device_side, .bytes = bytes}, close_twin);
  BHYT_CUDA(cudaMallocHost(&t->host, bytes));
  BHYT_CUDA(cudaEventCreateWithFlags(&t->copied, cudaEventDisableTiming));
  BHYT_CUDA(cudaEventCreateWithFlags(&t->read, cudaEventDisableTiming));
  return t.release();
}

void close_twin(Twin* t) noexcept {
  if (t->copied) cudaEventSynchronize(t->copied), cudaEventDestroy(t->copied);
  if (t->read) cudaEventDestroy(t->read);
  if (t->host) cudaFreeHost(t->host);
  delete t;
}

// An event that was never recorded counts as past.
void* host_side(Twin& t) {
  BHYT_CUDA(cudaEventSynchronize(t.copied));
  return t.host;
}

void send(Twin& t, std::size_t bytes) {
  BHYT_CUDA(cudaStreamWaitEvent(state.copies, t.read));
  BHYT_CUDA(cudaMemcpyAsync(t.device, t.host, bytes, cudaMemcpyHostToDevice, state.copies));
  BHYT_CUDA(cudaEventRecord(t.copied, state.copies));
}

void receive(Twin& t) { BHYT_CUDA(cudaStreamWaitEvent(stream(), t.copied)); }

void release(Twin& t) { BHYT_CUDA(cudaEventRecord(t.read, stream())); }

void fetch(Twin& t) {
  BHYT_CUDA(cudaMemcpyAsync(t.host, t.device, t.bytes, cudaMemcpyDeviceToHost, stream()));
  BHYT_CUDA(cudaEventRecord(t.copied, stream()));
}

}  // namespace bhyt::cuda
