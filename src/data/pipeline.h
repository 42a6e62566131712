// Items made in order, worked on by several threads, used in order: what comes out does not depend on the number of threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace bhyt {

// make(item) → false when there is no more (one thread); work(item) (any thread); use(item) in the order made (the calling thread).
// Items are reused, so their buffers keep their memory; at most 2·threads + 2 are alive. An exception in make or work surfaces where
// the item would have been used, so the first error in order wins on any number of threads.
template <class Item, class Make, class Work, class Use>
void ordered_pipeline(int threads, Make&& make, Work&& work, Use&& use) {
  if (threads <= 1) {
    Item item;
    while (make(item)) {
      work(item);
      use(item);
    }
    return;
  }
  struct Slot {
    Item item;
    bool done = false;
    std::exception_ptr error;
  };
  std::vector<Slot> slots(static_cast<std::size_t>(2 * threads + 2));
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t made = 0, taken = 0, used = 0;  // slots [used, made) are alive
  bool ended = false, stopping = false;
  const auto slot = [&](std::uint64_t i) -> Slot& { return slots[i % slots.size()]; };

  const auto maker = [&] {
    std::unique_lock lock(mutex);
    while (!stopping && !ended) {
      changed.wait(lock, [&] { return stopping || made - used < slots.size(); });
      if (stopping) break;
      Slot& s = slot(made);
      s.done = false;
      s.error = nullptr;
      lock.unlock();
      bool more = false;
      try {
        more = make(s.item);
      } catch (...) {
        s.error = std::current_exception();
      }
      lock.lock();
      ended = !more;
      if (more || s.error) ++made;
      changed.notify_all();
    }
  };
  const auto worker = [&] {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || taken < made || ended; });
      if (stopping || taken == made) return;
      Slot& s = slot(taken++);
      lock.unlock();
      try {
        if (!s.error) work(s.item);
      } catch (...) {
        s.error = std::current_exception();
      }
      lock.lock();
      s.done = true;
      changed.notify_all();
    }
  };

  std::vector<std::jthread> pool;
  struct Stop {
    std::mutex& mutex;
    std::condition_variable& changed;
    bool& stopping;
    ~Stop() {
      std::lock_guard lock(mutex);
      stopping = true;
      changed.notify_all();
    }
  } stop{mutex, changed, stopping};  // destroyed before the threads are joined
  pool.emplace_back(maker);
  for (int i = 0; i < threads; ++i) pool.emplace_back(worker);

  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return (used < made && slot(used).done) || (ended && used == made); });
    if (used == made) return;
    Slot& s = slot(used);
    lock.unlock();
    if (s.error) std::rethrow_exception(s.error);
    use(s.item);
    lock.lock();
    ++used;
    changed.notify_all();
  }
}

}  // namespace bhyt
