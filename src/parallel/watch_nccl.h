// What a stream of collectives was given and has not done, for those who wait and for the watchdog.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "core/cuda_host.h"
#include "parallel/watchdog.h"

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
};

class NcclWatch {
 public:
  NcclWatch(int device, Group& group, const nccl::Api& api);

  Watchdog& dog() { return dog_; }

  Issued take(const std::string& name);
  std::uint64_t add(Issued one);  // returns its number: 1, 2, …
  // What the stream is given from here on comes behind that one.
  void wait(cudaStream_t stream, std::uint64_t number);

  void keep();                // from here on those that are done are kept
  std::deque<Issued> kept();  // ends that

 private:
  void retire();
  std::optional<Watchdog::UnderWay> under_way();

  std::mutex mutex_;
  std::deque<Issued> issued_, kept_;
  std::vector<Issued> free_;
  std::uint64_t given_ = 0;
  bool keeping_ = false;
  Watchdog dog_;  // last: its thread looks at the others
};

}  // namespace bhyt::parallel
