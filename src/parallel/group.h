// The processes that work on one thing together. Launched by MPI (mpirun, srun), they talk through the library src/parallel/mpi is built
// into, which is only loaded then: a process on its own needs no MPI. This header has nothing behind it, so that the library needs nothing
// of the program.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bhyt::parallel {

class Group {
 public:
  virtual ~Group() = default;
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(hosts_.size()); }
  int local_size() const { return local_size_; }  // ranks on this host
  const std::string& host(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }

  // All ranks call these, in the same order, one thread at a time. They wait; a rank that does not answer within the time limit is an Error
  // that names it.
  // send holds a piece of `bytes` for every rank, `stride` bytes apart; receive gets one from every rank, one behind the other.
  virtual void exchange(const void* send, std::size_t stride, std::size_t bytes, void* receive) = 0;
  // all holds a piece of `bytes` of every rank, `stride` bytes apart; a rank's own is there already.
  virtual void gather(void* all, std::size_t stride, std::size_t bytes) = 0;

  void set_timeout(double seconds) { timeout_ = seconds; }
  double timeout() const { return timeout_; }

  // Ends the processes of all ranks, this one with the code; there is no way back.
  [[noreturn]] virtual void abort(int code) = 0;
  // The last call of a process that came to its end well.
  virtual void close() = 0;

 protected:
  int rank_ = 0, local_size_ = 1;
  double timeout_ = 600;
  std::vector<std::string> hosts_;
};

// What the loaded library gives; the name of its one function is kOpen.
using OpenGroup = Group* (*)();
constexpr const char* kOpen = "bhyt_open_group";

}  // namespace bhyt::parallel
