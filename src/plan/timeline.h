// The time of a step of several ranks: a rank's computing beside the one wire that its collectives take turns on, as
// train/data_parallel.h has them wait for each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/gpus.h"

namespace bhyt::plan {

// A ring through all ranks: of so many bytes each rank hands (N−1)/N on to the next one.
struct Ring {
  int ranks = 1;
  double rate = 0;     // bytes a second, of the slowest link in it
  double latency = 0;  // seconds, once round
  bool over_network = false;

  double sent(double bytes) const { return bytes * (ranks - 1) / ranks; }
  double seconds(double bytes) const { return ranks > 1 ? latency + sent(bytes) / rate : 0; }
};

constexpr double kLinkShare = 0.8;                        // of a link's rate that a collective reaches
constexpr double kHopInside = 3e-6, kHopBetween = 10e-6;  // seconds from a GPU to the next, within a node and between two
Ring ring_of(const Cluster& cluster);

// What a rank does in a step.
struct Work {
  struct Section {
    std::int64_t layer = 0;             // 0 the embedding, 1…L blocks, L+1 the head
    double gradients = 0, weights = 0;  // bytes that are added up, that are handed round
  };
  std::vector<Section> sections;  // in the order of the layers
  double vectors = 0;             // bytes of gradients that every rank keeps
  std::int64_t layers = 1, pieces = 1, zero = 0;
  double forward = 0, backward = 0;  // seconds of a block, for a micro-batch
  double head = 0;                   // of the head and the loss, both ways
  double optimizer = 0;              // of the update
};

struct StepTime {
  double step = 0, compute = 0;                                     // seconds
  double communication = 0;                                         // seconds that the wire is busy, most of them beside computing
  double sent = 0;                                                  // bytes that a rank sends
  double exposed() const { return std::max(step - compute, 0.0); }  // seconds that nothing is computed
};
StepTime time_step(const Work& work, const Ring& ring);

}  // namespace bhyt::plan
