// Groups without MPI: one of a single rank, and one whose ranks are threads.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/context.h"
#include "core/error.h"
#include "parallel/group.h"

namespace bhyt::test {

class OneRank : public parallel::Group {
 public:
  OneRank() { hosts_ = {"here"}; }
  void exchange(const void* send, std::size_t, std::size_t bytes, void* receive) override { std::memcpy(receive, send, bytes); }
  void gather(void*, std::size_t, std::size_t) override {}
  [[noreturn]] void abort(int) override { std::terminate(); }
  void close() override {}
};

// Where the threads of a group meet: each leaves a pointer and finds those of the others.
class Meeting {
 public:
  explicit Meeting(int size) : offered_(static_cast<std::size_t>(size)) {}

  struct Offer {
    const char* data = nullptr;
    std::size_t stride = 0;
  };
  const Offer& of(int rank) const { return offered_[static_cast<std::size_t>(rank)]; }

  void offer(int rank, const void* data, std::size_t stride, double timeout) {
    offered_[static_cast<std::size_t>(rank)] = {static_cast<const char*>(data), stride};
    wait_for_all(timeout);
  }
  void wait_for_all(double timeout) {
    std::unique_lock lock(mutex_);
    const std::uint64_t turn = turn_;
    if (lost_) throw Error("a rank did not answer");
    if (++here_ == offered_.size()) {
      here_ = 0;
      ++turn_;
      changed_.notify_all();
      return;
    }
    if (changed_.wait_for(lock, std::chrono::duration<double>(timeout), [&] { return turn_ != turn; })) return;
    lost_ = true;  // who came and went counts no more
    throw Error("a rank did not answer");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Offer> offered_;
  std::size_t here_ = 0;
  std::uint64_t turn_ = 0;
  bool lost_ = false;
};

class ThreadGroup : public parallel::Group {
 public:
  ThreadGroup(Meeting& meeting, int rank, int size) : meeting_(meeting) {
    rank_ = rank;
    local_size_ = size;
    hosts_.assign(static_cast<std::size_t>(size), "here");
  }

  void exchange(const void* send, std::size_t stride, std::size_t bytes, void* receive) override {
    ++exchanges;
    meeting_.offer(rank_, send, stride, timeout_);
    for (int peer = 0; peer < size(); ++peer) {
      const Meeting::Offer& o = meeting_.of(peer);
      std::memcpy(static_cast<char*>(receive) + static_cast<std::size_t>(peer) * bytes, o.data + static_cast<std::size_t>(rank_) * o.stride,
                  bytes);
    }
    meeting_.wait_for_all(timeout_);
  }
  void gather(void* all, std::size_t stride, std::size_t bytes) override {
    meeting_.offer(rank_, all, stride, timeout_);
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * stride;
      if (peer != rank_) std::memcpy(static_cast<char*>(all) + at, meeting_.of(peer).data + at, bytes);
    }
    meeting_.wait_for_all(timeout_);
  }
  [[noreturn]] void abort(int) override { std::terminate(); }
  void close() override {}

  std::atomic<int> exchanges = 0;  // calls so far

 private:
  Meeting& meeting_;
};

// Runs work on every rank, each a thread with a context of its own. What one throws is a failure of the test, once all have ended.
inline void on_ranks(int size, const std::function<void(Context&, ThreadGroup&)>& work) {
  Meeting meeting(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&meeting, &work, rank, size] {
      try {
        Context ctx(Device::cpu(), 1);
        ThreadGroup group(meeting, rank, size);
        work(ctx, group);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << " of " << size << ": " << e.what();
      }
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace bhyt::test
