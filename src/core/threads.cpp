#include "core/threads.h"

#include <sched.h>

#include <chrono>

#include "core/signals.h"

namespace bhyt {

namespace {

constexpr auto kWatch = std::chrono::microseconds(100);  // how long a thread looks before it sleeps

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Waits until `done(value)` holds for the atomic's value, first watching, then asleep.
template <class Done>
std::uint32_t wait_until(const std::atomic<std::uint32_t>& word, Done&& done) {
  std::uint32_t value = word.load(std::memory_order_acquire);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 1; !done(value); value = word.load(std::memory_order_acquire), ++i) {
    if (i % 32 == 0 && std::chrono::steady_clock::now() - begin > kWatch)
      word.wait(value, std::memory_order_acquire);
    else
      pause_briefly();
  }
  return value;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Threads::Threads(int count) : count_(std::min(count > 0 ? count : available_cores(), static_cast<int>(kInside))) {}

Threads::~Threads() {
  quit_ = true;
  state_.fetch_add(kEpoch, std::memory_order_release);
  state_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Threads::start() {
  if (!threads_.empty()) return;
  for (int worker = 1; worker < count_; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

void Threads::take_tasks(int worker) {
  for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < job_.tasks;) {
    if (failed_.load(std::memory_order_relaxed)) return;
    try {
      job_.task(job_.context, i, worker);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }
}

void Threads::work(int worker) {
  leave_signals_to_main_thread();
  std::uint32_t seen = 0;
  while (true) {
    std::uint32_t now = wait_until(state_, [&](std::uint32_t s) { return s / kEpoch != seen; });
    if (quit_) return;
    seen = now / kEpoch;
    bool inside = false;
    while ((now & kOpen) != 0 && now / kEpoch == seen && !inside)
      inside = state_.compare_exchange_weak(now, now + 1, std::memory_order_acquire);
    if (!inside) continue;
    take_tasks(worker);
    const std::uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & (kInside | kOpen)) != 1) continue;
    left_.store(seen, std::memory_order_release);
    left_.notify_one();
  }
}

void Threads::run(std::int64_t tasks, Task task, void* context) {
  if (busy_.exchange(true, std::memory_order_acquire)) {  // a loop inside a loop
    for (std::int64_t i = 0; i < tasks; ++i) task(context, i, count_);
    return;
  }
  struct Release {
    std::atomic<bool>& busy;
    ~Release() { busy.store(false, std::memory_order_release); }
  } const release{busy_};
  if (tasks <= 1 || count_ == 1) {
    for (std::int64_t i = 0; i < tasks; ++i) task(context, i, 0);
    return;
  }
  start();
  job_ = {task, context, tasks};
  failed_ = false;
  error_ = nullptr;
  next_.store(0, std::memory_order_relaxed);
  const std::uint32_t epoch = state_.load(std::memory_order_relaxed) / kEpoch + 1;
  left_.store(epoch - 1, std::memory_order_relaxed);  // not by chance this one's, from long ago
  state_.store(epoch * kEpoch | kOpen, std::memory_order_release);
  state_.notify_all();
  take_tasks(0);
  const std::uint32_t closed = state_.fetch_and(~kOpen, std::memory_order_acq_rel);
  if ((closed & kInside) != 0) wait_until(left_, [&](std::uint32_t left) { return left == closed / kEpoch; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace bhyt
