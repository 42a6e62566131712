#include <algorithm>
#include <chrono>
#include <future>

#include "core/check.h"
#include "core/log.h"
#include "parallel/watch_nccl.h"

namespace bhyt::parallel {

namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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
    : device_(device), group_(group), api_(api), thread_([this] { work(); }) {}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatch::look_at(nccl::Comm* comm) {
  const std::lock_guard lock(mutex_);
  comm_ = comm;
}

NcclWatch::Call::Call(NcclWatch& w, const std::string& name) : watch(w) {
  const std::lock_guard lock(watch.mutex_);
  watch.call_ = name;
  watch.called_ = seconds_now();
  watch.calling_ = true;
}
NcclWatch::Call::~Call() {
  const std::lock_guard lock(watch.mutex_);
  watch.calling_ = false;
}

Issued NcclWatch::take(const std::string& name) {
  const std::lock_guard lock(mutex_);
  retire();
  if (free_.empty()) return {name, make_event(), make_event()};
  Issued one = std::move(free_.back());
  free_.pop_back();
  one.name = name;
  one.since = 0;
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

void NcclWatch::work() {
  cudaSetDevice(device_);
  std::unique_lock lock(mutex_);
  for (;;) {
    const std::chrono::duration<double> pause(std::min(1.0, group_.timeout() / 4));
    if (changed_.wait_for(lock, pause, [&] { return quit_; })) return;
    const std::string why = fault();
    if (why.empty()) continue;
    lock.unlock();
    return end_all(why);
  }
}

// A collective's time counts from when this rank's own work before it is done: however long that takes, no other rank is to blame.
std::string NcclWatch::fault() {
  retire();
  auto state = nccl::Result::success;
  if (comm_ && api_.comm_get_async_error(comm_, &state) == nccl::Result::success && state != nccl::Result::success &&
      state != nccl::Result::in_progress)
    return fmt::format("NCCL reports a fault{}: {}. {}", issued_.empty() ? "" : " in the collective '" + issued_.front().name + "'",
                       api_.get_error_string(state), api_.get_last_error(comm_));
  const double now = seconds_now();
  if (calling_ && now - called_ > group_.timeout()) return late(call_);
  if (issued_.empty() || !past(issued_.front().begin)) return "";
  Issued& first = issued_.front();
  if (first.since == 0) first.since = now;
  return now - first.since > group_.timeout() ? late(first.name) : "";
}

std::string NcclWatch::late(const std::string& name) const {
  return fmt::format("the collective '{}' was not done after {:g} s (parallel.timeout): another rank does not answer", name,
                     group_.timeout());
}

void NcclWatch::end_all(const std::string& why) {
  // One message: of the first rank that still answers. The others give it time.
  std::this_thread::sleep_for(std::chrono::seconds(std::min(group_.rank(), 10)));
  log::write(log::Level::error, fmt::format("rank {} on {}: {}; all ranks end here, and resume=auto goes on from the newest checkpoint",
                                            group_.rank(), group_.host(group_.rank()), why));
  std::promise<void> aborted;
  std::thread([this, &aborted] {
    if (comm_) api_.comm_abort(comm_);
    aborted.set_value();
  }).detach();
  aborted.get_future().wait_for(std::chrono::seconds(5));  // NCCL may hang in that, too
  group_.abort(1);
}

}  // namespace bhyt::parallel
