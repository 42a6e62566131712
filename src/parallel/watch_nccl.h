// What a stream of collectives was given and has not done, and the thread that looks at it: where other ranks do not answer within the
// group's time limit, or NCCL reports a fault, all ranks end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/cuda_host.h"
#include "parallel/group.h"
#include "parallel/nccl_api.h"

namespace bhyt::parallel {

struct CloseEvent {
  void operator()(cudaEvent_t e) const noexcept { cudaEventDestroy(e); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, CloseEvent>;
Event make_event();  // with time

// A collective that the stream was given.
struct Issued {
  std::string name;
  Event begin, end;  // begin: when the context's work before it is done
  double since = 0;  // when it was first seen to have begun
};

class NcclWatch {
 public:
  NcclWatch(int device, Group& group, const nccl::Api& api);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  void look_at(nccl::Comm* comm);  // null: at none
  // A call of the host's that other ranks may keep waiting.
  template <class Work>
  void call(const std::string& name, const Work& work) {
    const Call open(*this, name);
    work();
  }

  Issued take(const std::string& name);
  std::uint64_t add(Issued one);  // returns its number: 1, 2, …
  // What the stream is given from here on comes behind that one.
  void wait(cudaStream_t stream, std::uint64_t number);

  void keep();                // from here on those that are done are kept
  std::deque<Issued> kept();  // ends that

 private:
  struct Call {
    Call(NcclWatch& watch, const std::string& name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    NcclWatch& watch;
  };
  void work();
  void retire();
  std::string fault();
  std::string late(const std::string& name) const;
  void end_all(const std::string& why);

  int device_;
  Group& group_;
  const nccl::Api& api_;
  std::mutex mutex_;
  std::condition_variable changed_;
  nccl::Comm* comm_ = nullptr;
  std::deque<Issued> issued_, kept_;
  std::vector<Issued> free_;
  std::uint64_t given_ = 0;
  std::string call_;
  double called_ = 0;
  bool calling_ = false, keeping_ = false, quit_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace bhyt::parallel
