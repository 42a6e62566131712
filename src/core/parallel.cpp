#include "core/parallel.h"

#include <omp.h>

#include <atomic>
#include <exception>

namespace bhyt {

namespace {
int threads = 0;
}

int num_threads() { return threads > 0 ? threads : omp_get_num_procs(); }

void set_num_threads(int n) { threads = n; }

void detail::parallel_run(std::int64_t tasks, void (*run)(void*, std::int64_t), void* context) {
  const int n = static_cast<int>(std::min<std::int64_t>(num_threads(), tasks));
  if (n <= 1 || omp_in_parallel()) {
    for (std::int64_t i = 0; i < tasks; ++i) run(context, i);
    return;
  }
  std::atomic<bool> failed = false;
  std::exception_ptr why;
#pragma omp parallel for schedule(dynamic, 1) num_threads(n)
  for (std::int64_t i = 0; i < tasks; ++i) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      run(context, i);
    } catch (...) {
      if (!failed.exchange(true)) why = std::current_exception();
    }
  }
  if (why) std::rethrow_exception(why);
}

}  // namespace bhyt
