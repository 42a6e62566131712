// The thread that looks at what NCCL was given to do: where other ranks do not answer within the group's time limit, or NCCL reports a
// fault, all ranks end. It knows nothing of GPUs: what is under way it is told (watch_nccl.h).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "parallel/group.h"
#include "parallel/nccl_api.h"

namespace bhyt::parallel {

class Watchdog {
 public:
  struct UnderWay {
    std::uint64_t number = 0;  // each collective has its own
    std::string name;
  };
  // Both are called in its thread.
  struct Looks {
    std::function<void()> begin;  // before all else
    // The first collective that is not done, once this rank's own work before it is: however long that takes, no other rank is to blame.
    std::function<std::optional<UnderWay>()> under_way;
  };
  Watchdog(Group& group, const nccl::Api& api, Looks looks);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // From here on it looks at the communicator, and aborts it where all ranks end.
  void look_at(nccl::Comm* comm);
  // Gives it back to be ended; null where it is being aborted, which happens once.
  nccl::Comm* release();

  // A call of the host's that other ranks may keep waiting.
  template <class Work>
  void call(const std::string& name, const Work& work) {
    const Call open(*this, name);
    work();
  }

 private:
  struct Call {
    Call(Watchdog& dog, const std::string& name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Watchdog& dog;
  };
  void work();
  std::string fault();
  std::string reported(const std::optional<UnderWay>& first);
  std::string late(const std::string& name) const;
  void end_all(const std::string& why, nccl::Comm* comm);

  Group& group_;
  const nccl::Api& api_;
  Looks looks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  nccl::Comm* comm_ = nullptr;
  std::uint64_t seen_ = 0;  // the collective that was under way when it last looked, 0: none
  double since_ = 0;        // when it was first seen
  std::string call_;
  double called_ = 0;
  bool calling_ = false, quit_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace bhyt::parallel
