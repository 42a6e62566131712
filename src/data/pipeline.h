// Items made in order, worked on by several threads, used in order: what comes out does not depend on the number of threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace bhyt {

// ordered_pipeline (below) on several threads: one makes, `threads` work, the calling one uses.
template <class Item, class Make, class Work, class Use>
class OrderedPipeline {
 public:
  OrderedPipeline(int threads, Make& make, Work& work, Use& use)
      : threads_(threads), make_(make), work_(work), use_(use), slots_(static_cast<std::size_t>(2 * threads + 2)) {}
  ~OrderedPipeline() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;

  void run() {
    pool_.emplace_back([this] { make_items(); });
    for (int i = 0; i < threads_; ++i) pool_.emplace_back([this] { work_on_items(); });
    use_items();
  }

 private:
  struct Slot {
    Item item;
    bool done = false;
    std::exception_ptr error;
  };
  Slot& slot(std::uint64_t i) { return slots_[i % slots_.size()]; }

  void make_items() {
    std::unique_lock lock(mutex_);
    while (!stopping_ && !ended_) {
      changed_.wait(lock, [&] { return stopping_ || made_ - used_ < slots_.size(); });
      if (stopping_) break;
      Slot& s = slot(made_);
      s.done = false;
      s.error = nullptr;
      lock.unlock();
      bool more = false;
      try {
        more = make_(s.item);
      } catch (...) {
        s.error = std::current_exception();
      }
      lock.lock();
      ended_ = !more;
      if (more || s.error) ++made_;
      changed_.notify_all();
    }
  }

  void work_on_items() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || taken_ < made_ || ended_; });
      if (stopping_ || taken_ == made_) return;
      Slot& s = slot(taken_++);
      lock.unlock();
      try {
        if (!s.error) work_(s.item);
      } catch (...) {
        s.error = std::current_exception();
      }
      lock.lock();
      s.done = true;
      changed_.notify_all();
    }
  }

  void use_items() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return (used_ < made_ && slot(used_).done) || (ended_ && used_ == made_); });
      if (used_ == made_) return;
      Slot& s = slot(used_);
      lock.unlock();
      if (s.error) std::rethrow_exception(s.error);
      use_(s.item);
      lock.lock();
      ++used_;
      changed_.notify_all();
    }
  }

  int threads_;
  Make& make_;
  Work& work_;
  Use& use_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t made_ = 0, taken_ = 0, used_ = 0;  // slots [used, made) are alive
  bool ended_ = false, stopping_ = false;
  std::vector<std::jthread> pool_;  // the last member: joined before the others go
};

// make(item) → false when there is no more (one thread); work(item) (any thread); use(item) in the order made (the calling thread).
// Items are reused, so their buffers keep their memory; at most 2·threads + 2 are alive. An exception in make or work surfaces where
// the item would have been used, so the first error in order wins on any number of threads.
template <class Item, class Make, class Work, class Use>
void ordered_pipeline(int threads, Make&& make, Work&& work, Use&& use) {
  if (threads > 1) return OrderedPipeline<Item, Make, Work, Use>(threads, make, work, use).run();
  Item item;
  while (make(item)) {
    work(item);
    use(item);
  }
}

}  // namespace bhyt
