#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/memory.h"
#include "parallel/collectives.h"

namespace bhyt::parallel {

namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

BHYT_CLONES void add_floats(float* to, const float* from, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] += from[i];
}
BHYT_CLONES void add_bf16(float* to, const bf16* from, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] += to_float(from[i]);
}

// Runs what it is given in a thread of its own, in order.
class Queue {
 public:
  Queue() : thread_([this] { work(); }) {}
  ~Queue() {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  std::uint64_t add(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return ++given_;
  }
  void wait(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket || error_; });
    if (error_) std::rethrow_exception(error_);
  }
  std::uint64_t last() const { return given_; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return quit_ || !jobs_.empty(); });
      if (jobs_.empty() || error_) return;
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      std::exception_ptr wrong;
      try {
        job();
      } catch (...) {
        wrong = std::current_exception();
      }
      lock.lock();
      ++done_;
      if (wrong) error_ = wrong;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::uint64_t given_ = 0, done_ = 0;
  std::exception_ptr error_;
  bool quit_ = false;
  std::thread thread_;
};

class HostCollectives : public Collectives {
 public:
  HostCollectives(Context& ctx, Group& group, const CollectiveOptions& options) : ctx_(ctx), group_(group), options_(options) {}

  Ticket reduce_scatter(const Tensor& from, const Tensor& to, bool add, const std::string& name) override {
    check(from.dtype == DType::f32 && to.dtype == DType::f32 && from.size() == to.size() * ranks(),
          "[reduce_scatter] expected fp32 and {} × {} elements, got {}", ranks(), to.size(), from.size());
    return start(name, [this, from, to, add] {
      if (!gpu()) return reduce(from.as<float>(), to.as<float>(), to.size(), add);
      float* const host = staging(static_cast<std::size_t>(from.size()));
      float* const own = host + static_cast<std::int64_t>(group_.rank()) * to.size();
      to_host(ctx_, from, host);
      reduce(host, own, to.size(), false);
      if (add) {
        std::vector<float> before(static_cast<std::size_t>(to.size()));
        to_host(ctx_, to, before.data());
        add_floats(own, before.data(), to.size());
      }
      from_host(ctx_, own, to);
    });
  }

  Ticket all_gather(const Tensor& all, const std::string& name) override {
    check(all.size() % ranks() == 0, "[all_gather] expected a multiple of {} elements, got {}", ranks(), all.size());
    return start(name, [this, all] {
      const std::size_t part = all.bytes() / static_cast<std::size_t>(ranks());
      if (!gpu()) return group_.gather(all.data, part, part);
      auto* const host = reinterpret_cast<char*>(staging(all.bytes() / sizeof(float) + 1));
      const std::size_t own = static_cast<std::size_t>(group_.rank()) * part;
      ctx_.copy(Device::cpu(), host + own, ctx_.device(), static_cast<const char*>(all.data) + own, part);
      group_.gather(host, part, part);
      ctx_.copy(ctx_.device(), all.data, Device::cpu(), host, all.bytes());
    });
  }

  void wait(Ticket ticket) override {
    if (ticket > 0) queue_.wait(ticket);
  }

  void all_reduce(const Tensor& t, const std::string& name) override {
    wait(start(name, [this, t] {
      if (t.dtype == DType::f64)
        sum<double>(t);
      else
        sum<float>(t);
    }));
  }

  void trace() override {
    queue_.wait(queue_.last());
    traced_ = {};
    tracing_ = true;
    waiting([this] { since_ = seconds_now(); });
  }
  void note(const std::string& name) override {
    if (!tracing_) return;
    waiting([&] {
      const double now = seconds_now();
      traced_.computing.push_back({name, std::exchange(since_, now), now});
    });
  }
  Timeline traced() override {
    queue_.wait(queue_.last());
    tracing_ = false;
    return std::exchange(traced_, {});
  }

 private:
  std::int64_t ranks() const { return group_.size(); }
  bool gpu() const { return ctx_.device().is_cuda(); }

  // A GPU's context belongs to the thread that computes: there a collective is over when the call is.
  Ticket start(const std::string& name, std::function<void()> work) {
    const auto timed = [this, name, work = std::move(work)] {
      const double begin = seconds_now();
      work();
      if (tracing_) traced_.collectives.push_back({name, begin, seconds_now()});
    };
    if (!gpu()) return queue_.add(timed);
    waiting(timed);
    return 0;
  }

  // Behind all that the context was given, which may be settled.
  template <class Work>
  void waiting(const Work& work) {
    const bool settled = ctx_.is_settled();
    ctx_.settled(false);
    ctx_.synchronize();
    work();
    ctx_.settled(settled);
  }

  float* staging(std::size_t floats) {
    if (staging_.size() < floats) staging_.resize(floats);
    return staging_.data();
  }

  // from: ranks · n on the host; to[i] = (add ? to[i] : 0) + Σ from of all ranks, in their order.
  void reduce(const float* from, float* to, std::int64_t n, bool add) {
    const bool low = options_.reduce == Reduce::bf16;
    const std::int64_t element = low ? sizeof(bf16) : sizeof(float);
    const std::int64_t chunk = std::max<std::int64_t>(static_cast<std::int64_t>(options_.bucket) / (element * ranks()), 1024);
    for (std::int64_t at = 0; at < n; at += chunk) {
      const std::int64_t size = std::min(chunk, n - at);
      if (low)
        reduce_bf16(from, to, n, at, size, add);
      else
        reduce_fp32(from, to, n, at, size, add);
    }
  }
  void reduce_fp32(const float* from, float* to, std::int64_t n, std::int64_t at, std::int64_t size, bool add) {
    received_.resize(static_cast<std::size_t>(size * ranks()));
    group_.exchange(from + at, static_cast<std::size_t>(n) * sizeof(float), static_cast<std::size_t>(size) * sizeof(float),
                    received_.data());
    if (!add) std::fill(to + at, to + at + size, 0.0f);
    for (std::int64_t r = 0; r < ranks(); ++r) add_floats(to + at, received_.data() + r * size, size);
  }
  void reduce_bf16(const float* from, float* to, std::int64_t n, std::int64_t at, std::int64_t size, bool add) {
    low_.resize(static_cast<std::size_t>(2 * size * ranks()));
    bf16 *const send = low_.data(), *const got = send + size * ranks();
    for (std::int64_t r = 0; r < ranks(); ++r)
      for (std::int64_t i = 0; i < size; ++i) send[r * size + i] = to_bf16(from[r * n + at + i]);
    const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(bf16);
    group_.exchange(send, bytes, bytes, got);
    if (!add) std::fill(to + at, to + at + size, 0.0f);
    for (std::int64_t r = 0; r < ranks(); ++r) add_bf16(to + at, got + r * size, size);
  }

  template <class T>
  void sum(const Tensor& t) {
    const auto n = static_cast<std::size_t>(t.size());
    std::vector<T> all(n * static_cast<std::size_t>(ranks()));
    T* const own = all.data() + n * static_cast<std::size_t>(group_.rank());
    ctx_.copy(Device::cpu(), own, ctx_.device(), t.data, t.bytes());
    group_.gather(all.data(), t.bytes(), t.bytes());
    std::vector<T> total(n, T(0));
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks()); ++r)
      for (std::size_t i = 0; i < n; ++i) total[i] += all[r * n + i];
    ctx_.copy(ctx_.device(), t.data, Device::cpu(), total.data(), t.bytes());
  }

  Context& ctx_;
  Group& group_;
  CollectiveOptions options_;
  std::vector<float> staging_, received_;
  std::vector<bf16> low_;
  bool tracing_ = false;
  double since_ = 0;
  Timeline traced_;
  Queue queue_;  // last: its thread ends before what it uses
};

}  // namespace

std::unique_ptr<Collectives> host_collectives(Context& ctx, Group& group, const CollectiveOptions& options) {
  return std::make_unique<HostCollectives>(ctx, group, options);
}

}  // namespace bhyt::parallel
