// Memory, copies and the stream of the CUDA backend.
#include <memory>
#include "core/cuda.cuh"

#include "core/graph.h"
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

std::string gib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

}  // namespace

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

std::string gpu_uuid(int index) {
  cudaDeviceProp p{};
  BHYT_CUDA(cudaGetDeviceProperties(&p, index));
  std::string id = "GPU";
  for (int i = 0; i < 16; ++i) {
    char digits[8];
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    std::snprintf(digits, sizeof digits, dash ? "-%02x" : "%02x", static_cast<unsigned>(static_cast<unsigned char>(p.uuid.bytes[i])));
    id += digits;
  }
  return id;
}

void use(int index) { BHYT_CUDA(cudaSetDevice(index)); }

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
    fail(
        "[cuda] out of memory: asked for " + gib(bytes) + ", free " + gib(free_bytes(index)) + " of " + gib(total_bytes(index)) +
        "; fewer or shorter sequences (train.micro_batch, data.seq_len, --max-tokens), train.recompute=block or a smaller model need less");
  }
  check_call(e, "cudaMalloc");
  return p;
}

Queue* open_queue(int index) {
  if (const std::string wrong = unsupported(index); !wrong.empty()) fail("[cuda] " + wrong + "; use device=cpu");
  use(index);
  std::unique_ptr<Queue, CloseQueue> queue(new Queue{.device = index});
  cudaDeviceProp p{};
  BHYT_CUDA(cudaGetDeviceProperties(&p, index));
  queue->multiprocessors = p.multiProcessorCount;
  queue->shared_bytes = p.sharedMemPerBlockOptin;
  BHYT_CUDA(cudaStreamCreateWithFlags(&queue->work, cudaStreamNonBlocking));
  BHYT_CUDA(cudaStreamCreateWithFlags(&queue->copies, cudaStreamNonBlocking));
  return queue.release();
}

void CloseQueue::operator()(Queue* queue) const noexcept {
  if (queue->work) {
    cudaStreamSynchronize(queue->work);
    cudaStreamDestroy(queue->work);
  }
  if (queue->copies) cudaStreamDestroy(queue->copies);
  delete queue;
}

void free(Queue& queue, void* p) noexcept {
  cudaStreamSynchronize(queue.work);
  cudaFree(p);
}

void copy(Queue& queue, Device to, void* dst, Device from, const void* src, std::size_t bytes) {
  use(queue.device);
  BHYT_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, queue.work));
  // A host buffer may be reused or read as soon as this returns.
  if (!to.is_cuda() || !from.is_cuda()) BHYT_CUDA(cudaStreamSynchronize(queue.work));
}

void copy_2d(Queue& queue, void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t row_bytes,
             std::size_t rows) {
  use(queue.device);
  BHYT_CUDA(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, row_bytes, rows, cudaMemcpyDeviceToDevice, queue.work));
}

void zero(Queue& queue, void* p, std::size_t bytes) {
  use(queue.device);
  BHYT_CUDA(cudaMemsetAsync(p, 0, bytes, queue.work));
}

void synchronize(Queue& queue) {
  use(queue.device);
  BHYT_CUDA(cudaStreamSynchronize(queue.work));
}

struct Twin {
  Queue* queue = nullptr;
  void *device = nullptr, *host = nullptr;
  std::size_t bytes = 0;
  cudaEvent_t copied = nullptr, read = nullptr;
};

Twin* open_twin(Queue& queue, void* device_side, std::size_t bytes) {
  auto t = std::unique_ptr<Twin, void (*)(Twin*) noexcept>(new Twin{.queue = &queue, .device = device_side, .bytes = bytes}, close_twin);
  BHYT_CUDA(cudaMallocHost(&t->host, bytes));
  BHYT_CUDA(cudaEventCreateWithFlags(&t->copied, cudaEventDisableTiming));
  BHYT_CUDA(cudaEventCreateWithFlags(&t->read, cudaEventDisableTiming));
  return t.release();
}

void close_twin(Twin* t) noexcept {
  if (t->copied) {
    cudaEventSynchronize(t->copied);
    cudaEventDestroy(t->copied);
  }
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
  BHYT_CUDA(cudaStreamWaitEvent(t.queue->copies, t.read));
  BHYT_CUDA(cudaMemcpyAsync(t.device, t.host, bytes, cudaMemcpyHostToDevice, t.queue->copies));
  BHYT_CUDA(cudaEventRecord(t.copied, t.queue->copies));
}

void receive(Twin& t) { BHYT_CUDA(cudaStreamWaitEvent(t.queue->work, t.copied)); }

void release(Twin& t) { BHYT_CUDA(cudaEventRecord(t.read, t.queue->work)); }

void fetch(Twin& t, std::size_t bytes) {
  BHYT_CUDA(cudaMemcpyAsync(t.host, t.device, bytes, cudaMemcpyDeviceToHost, t.queue->work));
  BHYT_CUDA(cudaEventRecord(t.copied, t.queue->work));
}

struct Graph {
  cudaGraphExec_t exec = nullptr;
};

Graph* record(Context& ctx, const std::function<void()>& work) {
  std::unique_ptr<Graph, CloseGraph> made(new Graph);
  BHYT_CUDA(cudaStreamBeginCapture(stream(ctx), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream(ctx), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  BHYT_CUDA(cudaStreamEndCapture(stream(ctx), &graph));
  const cudaError_t e = cudaGraphInstantiate(&made->exec, graph, 0);
  cudaGraphDestroy(graph);
  check_call(e, "cudaGraphInstantiate");
  return made.release();
}

void start(Context& ctx, Graph& graph) { BHYT_CUDA(cudaGraphLaunch(graph.exec, stream(ctx))); }

void CloseGraph::operator()(Graph* graph) const noexcept {
  if (graph->exec) cudaGraphExecDestroy(graph->exec);
  delete graph;
}

}  // namespace bhyt::cuda
