// Threads. Work is cut by its size, never by the number of threads, wherever a sum depends on the cut:
// so every result has the same bits on any number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

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

int num_threads();
void set_num_threads(int n);  // 0 = all cores

namespace detail {
void parallel_run(std::int64_t tasks, void (*run)(void*, std::int64_t), void* context);
}

// Calls f(i) for i in [0, tasks), spread over the threads; nested calls run in the calling thread. When one throws, the
// tasks that have not begun are left out and the exception reaches the caller.
template <class F>
void parallel_tasks(std::int64_t tasks, F&& f) {
  detail::parallel_run(
      tasks, [](void* c, std::int64_t i) { (*static_cast<std::remove_reference_t<F>*>(c))(i); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// Calls f(begin, end) over [0, n) in pieces of `grain`, the last one shorter.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  const std::int64_t g = std::max<std::int64_t>(grain, 1);
  parallel_tasks((n + g - 1) / g, [&](std::int64_t i) { f(i * g, std::min(n, (i + 1) * g)); });
}

}  // namespace bhyt
