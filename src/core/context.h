// A context is where operations run: a device, its streams and scratch, what libraries keep for it (handles, plans, chosen algorithms), the
// CPU's threads, and the profile. Whoever runs something makes one and passes it on; nothing else in core and ops holds state. One thread
// uses a context at a time; several contexts, on one device or on several, do not disturb each other.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "core/profile.h"
#include "core/threads.h"

namespace bhyt {

namespace cuda {
struct Queue;  // streams of a GPU (core/cuda_host.h)
struct CloseQueue {
  void operator()(Queue* queue) const noexcept;
};
}  // namespace cuda

// Scratch of a parallel loop on the CPU: every worker has its own.
struct WorkerScratch {
  float* begin = nullptr;
  std::size_t stride = 0;
  float* of(int worker) const { return begin + static_cast<std::size_t>(worker) * stride; }
};

class Context {
 public:
  explicit Context(Device device = Device::cpu(), int threads = 0);  // threads of the CPU's part; 0 = all cores
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device device() const { return device_; }
  Threads& threads() { return threads_; }
  profile::Recorder& profile() { return profile_; }
  cuda::Queue& queue() { return *queue_; }  // on a GPU

  // Memory on the device, 256-byte aligned; says what was asked and what is free when there is none. Buffer owns such memory.
  void* allocate(std::size_t bytes);
  void release(void* p) noexcept;

  // For partial results of the operation that asks, good until the next one asks for the same Use; grows, never shrinks.
  enum class Use : std::uint8_t { partial_sums, workspace };
  void* scratch(std::size_t bytes, Use use = Use::partial_sums);
  std::uint64_t scratch_version() const { return scratch_version_; }            // another one when scratch has moved
  WorkerScratch worker_scratch(std::int64_t floats, Use use = Use::workspace);  // on the CPU, for each worker of a loop

  // In stream order. Copies to or from the host wait, since the host's memory may be gone or read right behind.
  void copy(Device to, void* dst, Device from, const void* src, std::size_t bytes);
  void copy_rows(void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t row_bytes, std::size_t rows);
  void zero(void* p, std::size_t bytes);
  void synchronize();  // until the device has done what it was given

  // What an operation keeps from call to call in this context: made as T(context) at the first call.
  template <class T>
  T& keep() {
    const auto found = kept_.find(typeid(T));
    if (found != kept_.end()) return *static_cast<T*>(found->second.get());
    auto made = std::make_shared<T>(*this);
    T& kept = *made;
    kept_.emplace(typeid(T), std::move(made));
    return kept;
  }

  // From here on (until settled(false)) an operation that takes memory or waits for the device throws, and so does the one behind an
  // operation that gave memory back: what runs again and again must find everything ready, so that it can be captured, and never stalls.
  void settled(bool on = true) { settled_ = on; }
  bool is_settled() const { return settled_; }

 private:
  friend class Operation;
  void refuse_when_settled(const char* what) const;

  Device device_;
  Threads threads_;
  profile::Recorder profile_;
  std::unique_ptr<cuda::Queue, cuda::CloseQueue> queue_;
  struct Scratch {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  Scratch scratch_[2];  // one for each Use
  std::uint64_t scratch_version_ = 0;
  std::unordered_map<std::type_index, std::shared_ptr<void>> kept_;
  bool settled_ = false;
  int depth_ = 0;              // operations open, one inside the other
  std::string freed_ = "";     // what an operation wrongly gave back: thrown when the next one opens
  const char* name_ = "none";  // the operation in work
};

// A context that is settled while this lives.
class Settled {
 public:
  explicit Settled(Context& context, bool on = true) : context_(context), before_(context.is_settled()) { context.settled(on || before_); }
  ~Settled() { context_.settled(before_); }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  Context& context_;
  bool before_;
};

// Open while an operation runs: books its time and tells the context what runs.
class Operation {
 public:
  // device: where the operation's tensors are.
  Operation(Context& context, const char* name, profile::Kind kind, Device device) : context_(context), before_name_(context.name_) {
    if (context.device_.is_cuda() || device != context.device_ || !context.freed_.empty()) [[unlikely]]
      begin(name, device);
    context.name_ = name;
    ++context.depth_;
    if (context.profile_.recording()) [[unlikely]]
      book(kind);
  }
  ~Operation() {
    if (booked_) [[unlikely]]
      unbook();
    --context_.depth_;
    context_.name_ = before_name_;
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  void begin(const char* name, Device device);
  void book(profile::Kind kind);
  void unbook();
  Context& context_;
  const char* before_name_;
  bool booked_ = false;
  profile::Kind before_ = profile::Kind::other;
};

}  // namespace bhyt
