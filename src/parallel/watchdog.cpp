#include "parallel/watchdog.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "core/check.h"
#include "core/log.h"

namespace bhyt::parallel {

namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Watchdog::Watchdog(Group& group, const nccl::Api& api, Looks looks)
    : group_(group), api_(api), looks_(std::move(looks)), thread_([this] { work(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::look_at(nccl::Comm* comm) {
  const std::lock_guard lock(mutex_);
  comm_ = comm;
}

nccl::Comm* Watchdog::release() {
  const std::lock_guard lock(mutex_);
  return std::exchange(comm_, nullptr);
}

Watchdog::Call::Call(Watchdog& d, const std::string& name) : dog(d) {
  const std::lock_guard lock(dog.mutex_);
  dog.call_ = name;
  dog.called_ = seconds_now();
  dog.calling_ = true;
}
Watchdog::Call::~Call() {
  const std::lock_guard lock(dog.mutex_);
  dog.calling_ = false;
}

void Watchdog::work() {
  looks_.begin();
  std::unique_lock lock(mutex_);
  for (;;) {
    const std::chrono::duration<double> pause(std::min(1.0, group_.timeout() / 4));
    if (changed_.wait_for(lock, pause, [&] { return quit_; })) return;
    const std::string why = fault();
    if (why.empty()) continue;
    nccl::Comm* const comm = std::exchange(comm_, nullptr);
    lock.unlock();
    return end_all(why, comm);
  }
}

std::string Watchdog::fault() {
  const std::optional<UnderWay> first = looks_.under_way();
  if (const std::string told = reported(first); !told.empty()) return told;
  const double now = seconds_now();
  if (calling_ && now - called_ > group_.timeout()) return late(call_);
  const std::uint64_t number = first ? first->number : 0;
  if (number != std::exchange(seen_, number)) since_ = now;
  return first && now - since_ > group_.timeout() ? late(first->name) : "";
}

std::string Watchdog::reported(const std::optional<UnderWay>& first) {
  auto state = nccl::Result::success;
  if (!comm_ || api_.comm_get_async_error(comm_, &state) != nccl::Result::success || state == nccl::Result::success ||
      state == nccl::Result::in_progress)
    return "";
  return fmt::format("NCCL reports a fault{}: {}. {}", first ? " in the collective '" + first->name + "'" : "",
                     api_.get_error_string(state), api_.get_last_error(comm_));
}

std::string Watchdog::late(const std::string& name) const {
  return fmt::format("the collective '{}' was not done after {:g} s (parallel.timeout): another rank does not answer", name,
                     group_.timeout());
}

void Watchdog::end_all(const std::string& why, nccl::Comm* comm) {
  // One message: of the first rank that still answers. The others give it time.
  std::this_thread::sleep_for(std::chrono::seconds(std::min(group_.rank(), 10)));
  log::write(log::Level::error, fmt::format("rank {} on {}: {}; all ranks end here, and resume=auto goes on from the newest checkpoint",
                                            group_.rank(), group_.host(group_.rank()), why));
  std::promise<void> aborted;
  std::thread([this, comm, &aborted] {
    if (comm) api_.comm_abort(comm);
    aborted.set_value();
  }).detach();
  aborted.get_future().wait_for(std::chrono::seconds(5));  // NCCL may hang in that, too
  group_.abort(1);
}

}  // namespace bhyt::parallel
