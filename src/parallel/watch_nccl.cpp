#include "parallel/watch_nccl.h"

#include <utility>

namespace bhyt::parallel {

namespace {

// False as well where the GPU has failed: the thread that computes meets that, and says what it is.
bool past(const Event& e) {
  const cudaError_t state = cudaEventQuery(e.get());
  if (state == cudaErrorNotReady) cudaGetLastError();  // else the next launch of this thread seems to have failed
  return state == cudaSuccess;
}

}  // namespace

Event make_event() {
  cudaEvent_t e = nullptr;
  BHYT_CUDA(cudaEventCreate(&e));
  return Event(e);
}

NcclWatch::NcclWatch(int device, Group& group, const nccl::Api& api)
    : dog_(group, api, {.begin = [device] { cudaSetDevice(device); }, .under_way = [this] { return under_way(); }}) {}

Issued NcclWatch::take(const std::string& name) {
  const std::lock_guard lock(mutex_);
  retire();
  if (free_.empty()) return {name, make_event(), make_event()};
  Issued one = std::move(free_.back());
  free_.pop_back();
  one.name = name;
  return one;
}

std::uint64_t NcclWatch::add(Issued one) {
  const std::lock_guard lock(mutex_);
  issued_.push_back(std::move(one));
  return ++given_;
}

void NcclWatch::wait(cudaStream_t stream, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  retire();
  const std::uint64_t done = given_ - issued_.size();
  if (number > done) BHYT_CUDA(cudaStreamWaitEvent(stream, issued_[number - done - 1].end.get()));
}

void NcclWatch::keep() {
  const std::lock_guard lock(mutex_);
  retire();
  keeping_ = true;
}

std::deque<Issued> NcclWatch::kept() {
  const std::lock_guard lock(mutex_);
  retire();
  keeping_ = false;
  return std::exchange(kept_, {});
}

// Events serve again: the number of them is that of the collectives that the host is ahead.
void NcclWatch::retire() {
  while (!issued_.empty() && past(issued_.front().end)) {
    if (keeping_)
      kept_.push_back(std::move(issued_.front()));
    else
      free_.push_back(std::move(issued_.front()));
    issued_.pop_front();
  }
}

std::optional<Watchdog::UnderWay> NcclWatch::under_way() {
  const std::lock_guard lock(mutex_);
  retire();
  if (issued_.empty() || !past(issued_.front().begin)) return std::nullopt;
  return Watchdog::UnderWay{.number = given_ - issued_.size() + 1, .name = issued_.front().name};
}

}  // namespace bhyt::parallel
