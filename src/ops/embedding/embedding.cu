#include <cub/device/device_radix_sort.cuh>

#include "core/cuda.cuh"
#include "ops/embedding/embedding.h"

namespace bhyt::cuda {

namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void forward_kernel(const std::int32_t* tokens, const T* table, std::int64_t ld, T* out, std::int64_t ldo, int c, float constant,
                               const float* learned) {
  const std::int64_t row = blockIdx.x;
  const float scale = learned ? *learned : constant;
  const T* from = table + static_cast<std::int64_t>(tokens[row]) * ld;
  for (int j = threadIdx.x; j < c; j += kThreads) store1(out + row * ldo + j, load1(from + j) * scale);
}

// sorted holds the tokens in order, order the rows they stand in. A block whose place begins a run of one token sums the run's rows, in
// order: the bits do not depend on the schedule.
template <class T>
__global__ void backward_kernel(const std::int32_t* sorted, const std::int32_t* order, std::int64_t n, const T* dout, std::int64_t ld,
                                float* dtable, std::int64_t ldt, int c, float constant, const float* learned) {
  const std::int64_t place = blockIdx.x;
  const std::int32_t token = sorted[place];
  if (place > 0 && sorted[place - 1] == token) return;
  const float scale = learned ? *learned : constant;
  const int j = blockIdx.y * kThreads + threadIdx.x;
  if (j >= c) return;
  float sum = 0;
  for (std::int64_t i = place; i < n && sorted[i] == token; ++i) sum += load1(dout + static_cast<std::int64_t>(order[i]) * ld + j);
  dtable[static_cast<std::int64_t>(token) * ldt + j] += scale * sum;
}

__global__ void count_kernel(std::int32_t* order, std::int64_t n) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) order[i] = static_cast<std::int32_t>(i);
}

// dot[row] = dout[row] · table[token]
template <class T>
__global__ void dot_kernel(const std::int32_t* tokens, const T* table, std::int64_t ldt, const T* dout, std::int64_t ld, int c,
                           float* dot) {
  __shared__ float shared[33];
  const std::int64_t row = blockIdx.x;
  float s = 0;
  for (int j = threadIdx.x; j < c; j += kThreads)
    s += load1(dout + row * ld + j) * load1(table + static_cast<std::int64_t>(tokens[row]) * ldt + j);
  s = block_sum(s, shared);
  if (threadIdx.x == 0) dot[row] = s;
}

__global__ void sum_kernel(const float* values, std::int64_t n, float* out) {
  __shared__ double shared[33];
  double s = 0;
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) s += values[i];
  s = block_sum(s, shared);
  if (threadIdx.x == 0) *out += static_cast<float>(s);
}

__global__ void fed_kernel(std::int32_t* tokens, std::int64_t n, const std::int32_t* feed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n && tokens[i] < 0) tokens[i] = max(feed[-1 - tokens[i]], 0);
}

const float* learned_of(const EmbeddingScale& s) { return s.learned ? s.learned.as<float>() : nullptr; }

}  // namespace

// Launched plainly, not early: a pass begins with it, and products behind it read weights before the kernels in front of them have ended.
void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out, const EmbeddingScale& scale) {
  if (out.rows() == 0) return;
  dispatch_float(out.dtype, [&](auto t) {
    using T = decltype(t);
    forward_kernel<T><<<static_cast<unsigned>(out.rows()), kThreads, 0, stream(ctx)>>>(tokens.as<std::int32_t>(), table.as<T>(), table.ld,
                                                                                       out.as<T>(), out.ld, static_cast<int>(out.cols()),
                                                                                       scale.constant, learned_of(scale));
  });
  check_launch("embedding");
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& dout, const Tensor& dtable,
                        const EmbeddingScale& scale) {
  const std::int64_t n = dout.rows();
  if (n == 0) return;
  const auto* ids = tokens.as<std::int32_t>();
  std::size_t temporary = 0;
  const auto sort = [&](void* memory, const std::int32_t* order, std::int32_t* sorted, std::int32_t* ordered) {
    BHYT_CUDA(cub::DeviceRadixSort::SortPairs(memory, temporary, ids, sorted, order, ordered, static_cast<int>(n), 0, 32, stream(ctx)));
  };
  sort(nullptr, nullptr, nullptr, nullptr);
  const std::size_t row = (static_cast<std::size_t>(n) * 4 + 255) / 256 * 256;
  char* memory = static_cast<char*>(ctx.scratch(4 * row + temporary));
  auto *order = reinterpret_cast<std::int32_t*>(memory), *sorted = reinterpret_cast<std::int32_t*>(memory + row),
       *ordered = reinterpret_cast<std::int32_t*>(memory + 2 * row);
  auto* dots = reinterpret_cast<float*>(memory + 3 * row);
  count_kernel<<<blocks_for(n, 256), 256, 0, stream(ctx)>>>(order, n);
  sort(memory + 4 * row, order, sorted, ordered);
  const int c = static_cast<int>(dout.cols());
  dispatch_float(dout.dtype, [&](auto t) {
    using T = decltype(t);
    if (dtable)
      backward_kernel<T><<<dim3(static_cast<unsigned>(n), blocks_for(c, kThreads)), kThreads, 0, stream(ctx)>>>(
          sorted, ordered, n, dout.as<T>(), dout.ld, dtable.as<float>(), dtable.ld, c, scale.constant, learned_of(scale));
    if (!scale.dlearned) return;
    dot_kernel<T><<<static_cast<unsigned>(n), kThreads, 0, stream(ctx)>>>(ids, table.as<T>(), table.ld, dout.as<T>(), dout.ld, c, dots);
    sum_kernel<<<1, 1024, 0, stream(ctx)>>>(dots, n, scale.dlearned.as<float>());
  });
  check_launch("embedding_backward");
}

void take_fed(Context& ctx, const Tensor& tokens, const Tensor& feed) {
  fed_kernel<<<blocks_for(tokens.size(), 256), 256, 0, stream(ctx)>>>(tokens.as<std::int32_t>(), tokens.size(), feed.as<std::int32_t>());
  check_launch("take_fed");
}

}  // namespace bhyt::cuda
