#include "plan/timeline.h"

#include <algorithm>
#include <array>

namespace bhyt::plan {

namespace {

class Simulation {
 public:
  Simulation(const Work& work, const Ring& ring) : work_(work), ring_(ring), gathered_(work.sections.size()) {}

  // From the end of one update to the end of the next: nothing is under way at either but the new weights.
  StepTime run() {
    if (work_.zero > 0)
      for (std::size_t i = 0; i < work_.sections.size(); ++i) gathered_[i] = send(work_.sections[i].weights, 1);
    for (std::int64_t piece = 0; piece < work_.pieces; ++piece) {
      forward(piece == 0);
      backward(work_.zero == 2 || piece + 1 == work_.pieces);
    }
    now_ = std::max(now_, send(work_.vectors, 2));
    for (int i = 0; i < 2; ++i) now_ = std::max(now_, send(0, 2));  // loss, squares
    now_ += work_.optimizer;
    time_.step = now_;
    time_.compute =
        static_cast<double>(work_.pieces) * (static_cast<double>(work_.layers) * (work_.forward + work_.backward) + work_.head) +
        work_.optimizer;
    return time_;
  }

 private:
  // Puts a collective of so many rounds behind the others; returns when it will be done.
  double send(double bytes, int rounds) {
    if (ring_.ranks == 1) return 0;
    const double seconds = rounds * ring_.seconds(bytes);
    wire_ = std::max(wire_, now_) + seconds;
    time_.communication += seconds;
    time_.sent += rounds * ring_.sent(bytes);
    return wire_;
  }

  void forward(bool first) {
    const auto wait_for = [&](std::int64_t layer) {
      for (std::size_t i = 0; first && i < work_.sections.size(); ++i)
        if (work_.sections[i].layer == layer) now_ = std::max(now_, gathered_[i]);
    };
    wait_for(0);
    for (std::int64_t layer = 1; layer <= work_.layers; ++layer) {
      wait_for(layer);
      now_ += work_.forward;
    }
    wait_for(work_.layers + 1);
    now_ += work_.head;
  }

  void backward(bool reduces) {
    if (reduces) reduce(work_.layers + 1);
    for (std::int64_t layer = work_.layers; layer >= 1; --layer) {
      double& free = place_free_[static_cast<std::size_t>(layer % 2)];
      if (work_.zero == 2) now_ = std::max(now_, free);  // two blocks' gradients have a place
      now_ += work_.backward;
      if (reduces) free = reduce(layer);
    }
    if (reduces) reduce(0);
  }

  double reduce(std::int64_t layer) {
    double done = 0;
    for (const Work::Section& s : work_.sections)
      if (s.layer == layer) done = send(s.gradients, work_.zero == 0 ? 2 : 1);
    return done;
  }

  const Work& work_;
  const Ring& ring_;
  std::vector<double> gathered_;
  std::array<double, 2> place_free_{};
  double now_ = 0, wire_ = 0;
  StepTime time_;
};

}  // namespace

Ring ring_of(const Cluster& c) {
  Ring ring{.ranks = c.ranks(), .rate = kLinkShare * c.gpu.link};
  const int between = c.nodes > 1 ? c.nodes : 0;
  ring.latency = (ring.ranks - 1 - std::min(between, ring.ranks - 1)) * kHopInside + between * kHopBetween;
  // Rings that begin at other GPUs share the bytes and the adapters of a node.
  ring.over_network = c.nodes > 1 && (c.per_node == 1 || kLinkShare * c.network < ring.rate);
  if (ring.over_network) ring.rate = kLinkShare * c.network;
  return ring;
}

StepTime time_step(const Work& work, const Ring& ring) { return Simulation(work, ring).run(); }

}  // namespace bhyt::plan
