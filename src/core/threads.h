// Threads of our own under every parallel loop. Between loops they watch for the next one a short while, then sleep: a machine that is ours
// alone loses nothing to waking them, and one that is shared keeps its cores for whoever has work. The caller takes part and only waits
// for tasks that were begun, never for a thread that is still asleep or has lost its core.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/dtype.h"

#if defined(__x86_64__) && !defined(__CUDACC__) && !defined(BHYT_NO_CLONES)
// One source, several instruction sets, chosen at run time by what the processor has (the name of a processor in their place would match
// that one alone). Put it on the leaf functions that hold the hot loops.
#if defined(__clang__)
#define BHYT_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BHYT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#else
#define BHYT_CLONES
#endif

namespace bhyt {

int available_cores();  // that this process may run on

class Threads {
 public:
  explicit Threads(int count = 0);  // 0 = one for each available core
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return count_; }
  // Workers have numbers below this one: those of the threads, and one more for loops inside loops, which the calling thread runs alone.
  // Loops inside loops share that number: they must not use worker scratch.
  int workers() const { return count_ + 1; }

  // Calls task(context, i, worker) for i in [0, tasks).
  using Task = void (*)(void* context, std::int64_t i, int worker);
  void run(std::int64_t tasks, Task task, void* context);

 private:
  struct Job {
    Task task = nullptr;
    void* context = nullptr;
    std::int64_t tasks = 0;
  };
  void start();
  void work(int worker);
  void take_tasks(int worker);

  // Of state_: how many workers are inside the job, whether more may come, and which job it is.
  static constexpr std::uint32_t kInside = (1u << 10) - 1, kOpen = 1u << 10, kEpoch = 1u << 11;

  int count_;
  std::vector<std::thread> threads_;
  Job job_;
  std::exception_ptr error_;
  std::atomic<bool> busy_ = false, failed_ = false, quit_ = false;
  alignas(64) std::atomic<std::uint32_t> state_ = 0;
  alignas(64) std::atomic<std::uint32_t> left_ = 0;  // the job whose last worker has gone
  alignas(64) std::atomic<std::int64_t> next_ = 0;
};

// Calls f(i), or f(i, worker), for i in [0, tasks), spread over the threads; nested calls run in the calling thread. Work is cut by its
// size, never by the number of threads, wherever a sum depends on the cut: so every result has the same bits on any number of threads.
// When a call throws, the tasks that have not begun are left out and the exception reaches the caller.
template <class F>
void parallel_tasks(Threads& threads, std::int64_t tasks, F&& f) {
  using Function = std::remove_reference_t<F>;
  threads.run(
      tasks,
      [](void* context, std::int64_t i, int worker) {
        if constexpr (std::is_invocable_v<Function&, std::int64_t, int>)
          (*static_cast<Function*>(context))(i, worker);
        else
          (*static_cast<Function*>(context))(i);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// Calls f(begin, end) over [0, n) in pieces of `grain`, the last one shorter.
template <class F>
void parallel_for(Threads& threads, std::int64_t n, std::int64_t grain, F&& f) {
  const std::int64_t g = std::max<std::int64_t>(grain, 1);
  parallel_tasks(threads, (n + g - 1) / g, [&](std::int64_t i) { f(i * g, std::min(n, (i + 1) * g)); });
}

}  // namespace bhyt
