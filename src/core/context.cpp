#include "core/context.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace bhyt {

namespace {

void* allocate_on_cpu(std::size_t bytes) {
  void* p = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (p == nullptr)
    fail("[memory] expected " + std::to_string(bytes) +
         " bytes on the CPU, the system gave none; fewer or shorter sequences (train.micro_batch, data.seq_len, --max-tokens) or a smaller "
         "model need less");
  // The large pages that lie in it whole, where the system has some to give: far fewer page faults and address look-ups.
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  const auto begin = (reinterpret_cast<std::uintptr_t>(p) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(p) + bytes) / kLargePage * kLargePage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return p;
}

}  // namespace

Context::Context(Device device, int threads) : device_(device), threads_(threads) {
  if (device.is_cuda()) queue_.reset(cuda::open_queue(device.index));
}

Context::~Context() {
  kept_.clear();  // handles of libraries go before the streams they use
  settled_ = false;
  for (Scratch& s : scratch_)
    if (s.data) release(s.data);
}

void Context::refuse_when_settled(const char* what) const {
  if (settled_ && depth_ > 0)
    fail(std::string("[") + name_ + "] expected everything to be ready in a settled context, but the operation " + what);
}

void* Context::allocate(std::size_t bytes) {
  refuse_when_settled("takes memory");
  return device_.is_cuda() ? cuda::alloc(device_.index, bytes) : allocate_on_cpu(bytes);
}

void Context::release(void* p) noexcept {
  if (settled_ && depth_ > 0) freed_ = name_;
  if (device_.is_cuda())
    cuda::free(*queue_, p);
  else
    std::free(p);
}

void* Context::scratch(std::size_t bytes, Use use) {
  Scratch& s = scratch_[static_cast<std::size_t>(use)];
  if (bytes <= s.bytes) return s.data;
  const std::size_t rounded = (bytes + (std::size_t{1} << 20) - 1) >> 20 << 20;
  void* more = allocate(rounded);
  if (s.data) release(s.data);
  s = {more, rounded};
  ++scratch_version_;
  return s.data;
}

WorkerScratch Context::worker_scratch(std::int64_t floats, Use use) {
  const std::size_t stride = (static_cast<std::size_t>(floats) + 63) / 64 * 64;
  void* data = scratch(stride * sizeof(float) * static_cast<std::size_t>(threads_.workers()), use);
  return {static_cast<float*>(data), stride};
}

void Context::copy(Device to, void* dst, Device from, const void* src, std::size_t bytes) {
  if (bytes == 0) return;
  if (!to.is_cuda() && !from.is_cuda()) {
    std::memcpy(dst, src, bytes);
    return;
  }
  if (!queue_) fail("[copy] expected a context on a GPU to copy to or from one, got one on the CPU");
  if (!to.is_cuda() || !from.is_cuda()) refuse_when_settled("copies between host and device and waits for it");
  cuda::copy(*queue_, to, dst, from, src, bytes);
}

void Context::copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t row_bytes, std::size_t rows) {
  if (device_.is_cuda()) return cuda::copy_2d(*queue_, dst, dst_pitch, src, src_pitch, row_bytes, rows);
  for (std::size_t i = 0; i < rows; ++i)
    std::memcpy(static_cast<char*>(dst) + i * dst_pitch, static_cast<const char*>(src) + i * src_pitch, row_bytes);
}

void Context::zero(void* p, std::size_t bytes) {
  if (bytes == 0) return;
  if (device_.is_cuda())
    cuda::zero(*queue_, p, bytes);
  else
    std::memset(p, 0, bytes);
}

void Context::synchronize() {
  if (!device_.is_cuda()) return;
  refuse_when_settled("waits for the device");
  cuda::synchronize(*queue_);
}

void Operation::begin(const char* name, Device device) {
  if (device != context_.device_)
    fail(std::string("[") + name + "] expected tensors on " + name_of(context_.device_) + ", the context's device, got " + name_of(device));
  if (!context_.freed_.empty()) {
    const std::string who = std::exchange(context_.freed_, "");
    fail("[" + who + "] expected no memory to be given back in a settled context, but the operation did");
  }
  if (context_.device_.is_cuda()) cuda::use(context_.device_.index);
}

void Operation::book(profile::Kind kind) {
  booked_ = true;
  if (context_.device_.is_cuda()) cuda::synchronize(*context_.queue_);
  before_ = context_.profile_.switch_to(kind);
}

void Operation::unbook() {
  if (context_.device_.is_cuda()) cuda::synchronize(*context_.queue_);
  context_.profile_.switch_to(before_);
}

}  // namespace bhyt
