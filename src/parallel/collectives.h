// Collectives over tensors of a context. They run beside what the context computes and are waited for where their result is needed. All
// ranks ask for the same ones in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"
#include "parallel/group.h"

namespace bhyt::parallel {

enum class Reduce : std::uint8_t { fp32, bf16 };  // what gradients travel as; they are added in fp32 (NCCL adds bf16 in bf16)

struct CollectiveOptions {
  std::size_t bucket = std::size_t{32} << 20;  // bytes of all ranks' parts that are under way at a time
  Reduce reduce = Reduce::fp32;
};

// What ran, in order; seconds of a steady clock.
struct Traced {
  std::string name;
  double begin = 0, end = 0;
};
struct Timeline {
  std::vector<Traced> computing, collectives;
};

class Collectives {
 public:
  using Ticket = std::uint64_t;
  virtual ~Collectives() = default;

  // to [p] = Σ over the ranks of their from[rank·p …], added to what it holds with `add`. from: fp32 [ranks·p], left alone until wait().
  // to may be this rank's part of from. The context's work so far comes first.
  virtual Ticket reduce_scatter(const Tensor& from, const Tensor& to, bool add, const std::string& name) = 0;
  // all [ranks·p]: every rank's part from that rank; this rank's is there.
  virtual Ticket all_gather(const Tensor& all, const std::string& name) = 0;
  // What the context is given from here on finds it done. On a CPU: now.
  virtual void wait(Ticket ticket) = 0;
  // In place, small, fp32 or fp64; waits as wait() does. The same bits on every rank.
  virtual void all_reduce(const Tensor& t, const std::string& name) = 0;

  // From here on what runs is written down; traced() ends that.
  virtual void trace() = 0;
  // While it is: a name for what the context was given since the last note, or since trace(). On a GPU its time is that of the work itself.
  virtual void note(const std::string& name) = 0;
  virtual Timeline traced() = 0;
};

// Through the host's memory and the group: for CPUs, and for several ranks on one GPU, where they wait at once. The order of a sum is that
// of the ranks, whatever the number of threads.
std::unique_ptr<Collectives> host_collectives(Context& ctx, Group& group, const CollectiveOptions& options);

// Between GPUs, by NCCL, which is loaded when it is asked for. Error where it is not there.
std::unique_ptr<Collectives> nccl_collectives(Context& ctx, Group& group, const CollectiveOptions& options);

}  // namespace bhyt::parallel
