// A group of processes by MPI. A library of its own (libbhyt_mpi.so), loaded by the program when MPI launched it.
#define OMPI_SKIP_MPICXX
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.h"
#include "parallel/group.h"

namespace bhyt::parallel {

namespace {

constexpr std::size_t kName = 256;
constexpr std::size_t kMost = std::size_t{1} << 30;  // bytes of a message: MPI counts in int
enum Tag : int { kReady = 1, kData = 2 };

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void must(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(std::string(what) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

class MpiGroup : public Group {
 public:
  MpiGroup() {
    int given = 0, size = 0;
    must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
    if (given < MPI_THREAD_SERIALIZED) throw Error("this MPI does not let another thread than the first make its calls");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<char> names(static_cast<std::size_t>(size) * kName);
    char* own = names.data() + static_cast<std::size_t>(rank_) * kName;
    ::gethostname(own, kName - 1);
    const std::string host = own;
    hosts_.assign(static_cast<std::size_t>(size), "");
    gather(names.data(), kName, kName);
    for (int i = 0; i < size; ++i) hosts_[static_cast<std::size_t>(i)] = names.data() + static_cast<std::size_t>(i) * kName;
    local_size_ = static_cast<int>(std::count(hosts_.begin(), hosts_.end(), host));
  }

  void exchange(const void* send, std::size_t stride, std::size_t bytes, void* receive) override {
    const auto* from = static_cast<const char*>(send);
    auto* to = static_cast<char*>(receive);
    meet();
    move(
        bytes, [&](int peer) { return from + static_cast<std::size_t>(peer) * stride; },
        [&](int peer) { return to + static_cast<std::size_t>(peer) * bytes; });
    std::memcpy(to + own() * bytes, from + own() * stride, bytes);
  }

  void gather(void* all, std::size_t stride, std::size_t bytes) override {
    auto* at = static_cast<char*>(all);
    meet();
    move(
        bytes, [&](int) { return at + own() * stride; }, [&](int peer) { return at + static_cast<std::size_t>(peer) * stride; });
  }

  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    ::_exit(code);
  }

  void close() override { MPI_Finalize(); }

 private:
  struct Pending {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    void add(int peer, MPI_Request r) {
      requests.push_back(r);
      peers.push_back(peer);
    }
  };
  std::size_t own() const { return static_cast<std::size_t>(rank_); }

  // Until every rank is here. Nobody hurries: who waits for others leaves the core to them.
  void meet() {
    Pending p;
    std::vector<char> tokens(static_cast<std::size_t>(size()), 0);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      MPI_Request r;
      must(MPI_Irecv(&tokens[static_cast<std::size_t>(peer)], 1, MPI_BYTE, peer, kReady, MPI_COMM_WORLD, &r), "MPI_Irecv");
      p.add(peer, r);
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      MPI_Request r;
      must(MPI_Isend(&tokens[own()], 1, MPI_BYTE, peer, kReady, MPI_COMM_WORLD, &r), "MPI_Isend");
      p.add(peer, r);
    }
    wait(p, true);
  }

  template <class From, class To>
  void move(std::size_t bytes, const From& from, const To& to) {
    for (std::size_t at = 0; at < bytes; at += kMost) {
      const int n = static_cast<int>(std::min(kMost, bytes - at));
      Pending p;
      for (int step = 1; step < size(); ++step) {  // everyone begins with another one
        const int peer = (rank_ + size() - step) % size();
        MPI_Request r;
        must(MPI_Irecv(to(peer) + at, n, MPI_BYTE, peer, kData, MPI_COMM_WORLD, &r), "MPI_Irecv");
        p.add(peer, r);
      }
      for (int step = 1; step < size(); ++step) {
        const int peer = (rank_ + step) % size();
        MPI_Request r;
        must(MPI_Isend(from(peer) + at, n, MPI_BYTE, peer, kData, MPI_COMM_WORLD, &r), "MPI_Isend");
        p.add(peer, r);
      }
      wait(p, false);
    }
  }

  void wait(Pending& p, bool patient) {
    const double start = now();
    auto pause = std::chrono::microseconds(1);
    for (;;) {
      int done = 0;
      must(MPI_Testall(static_cast<int>(p.requests.size()), p.requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
      if (done) return;
      if (now() - start > timeout_) lost(p);
      if (patient) {
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::microseconds(200));
      } else {
        std::this_thread::yield();
      }
    }
  }

  [[noreturn]] void lost(Pending& p) {
    std::vector<int> missing;
    for (std::size_t i = 0; i < p.requests.size(); ++i) {
      int done = 0;
      MPI_Test(&p.requests[i], &done, MPI_STATUS_IGNORE);
      if (!done && std::find(missing.begin(), missing.end(), p.peers[i]) == missing.end()) missing.push_back(p.peers[i]);
    }
    std::sort(missing.begin(), missing.end());
    // One message: of the first rank that still answers. The others give it time.
    int speaker = 0;
    while (std::binary_search(missing.begin(), missing.end(), speaker)) ++speaker;
    if (rank_ != speaker) std::this_thread::sleep_for(std::chrono::seconds(5));
    std::string who;
    for (const int peer : missing) who += (who.empty() ? "rank " : ", rank ") + std::to_string(peer) + " on " + host_of(peer);
    throw Error(who + " did not answer for " + std::to_string(static_cast<long>(timeout_)) +
                " s (parallel.timeout); all ranks end here (training goes on from its newest checkpoint with resume=auto)");
  }
  std::string host_of(int peer) const {
    const std::string& name = hosts_[static_cast<std::size_t>(peer)];
    return name.empty() ? "an unknown host" : name;
  }
};

}  // namespace

}  // namespace bhyt::parallel

extern "C" bhyt::parallel::Group* bhyt_open_group() { return new bhyt::parallel::MpiGroup(); }
