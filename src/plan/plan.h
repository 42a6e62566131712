// What a run would take on GPUs that are not here: memory by rank, the largest micro-batch, communication, time of a step. Memory is the
// run's own plan (train/memory.h); speed is what was measured on one GPU, by the model's size, and the timeline's idea of communication.
#pragma once

#include <string>
#include <vector>

#include "plan/timeline.h"
#include "train/memory.h"

namespace bhyt::plan {

constexpr double kReserve = 2.0 * (1 << 30);    // bytes for CUDA, libraries' scratch and NCCL's buffers, beside what a run plans
constexpr double kUpdateBytes = 32;             // that norm and update read and write of an element
constexpr double kUpdateShare = 0.85;           // of the memory's rate that they reach
constexpr double kRecomputeNorms = 0.007;       // of a pass, for norms or SwiGLU made again (measured 0.5 and 0.7 %)
constexpr std::int64_t kUsualTokens = 1 << 14;  // of a micro-batch, with which the rates were measured

// Tokens a second of a whole step on one H200, bf16 (docs/benchmarks.md).
struct Measured {
  const char* preset;
  std::int64_t batch, seq;
  double tok_s;
};

struct Row {
  std::int64_t zero = 0;
  Recompute recompute = Recompute::none;
  std::int64_t largest = 0;      // rows of a micro-batch that fit, at most those of a rank; 0: none does
  std::int64_t micro_batch = 1;  // what the figures are for: train.micro_batch, or as few pieces of equal size as fit
  std::int64_t pieces = 1;
  train::MemoryPlan memory;
  double workspace = 0;  // of its activations
  double missing = 0;    // bytes beyond what the GPU has; 0: it fits
  StepTime time;
  double tok_s = 0;

  bool fits() const { return missing <= 0; }
};

struct Plan {
  train::RunConfig config;
  Cluster cluster;
  Ring ring;
  std::int64_t parameters = 0;
  Measured measured{};    // the nearest by size
  double share = 0;       // of the peak that passes reach with it, without the update
  double room = 0;        // bytes of a GPU that a run may take
  std::vector<Row> rows;  // by zero, then by recompute
  std::size_t best = 0;   // the quickest; of those as quick the one that takes least

  double tokens() const { return static_cast<double>(config.train.batch) * static_cast<double>(config.data.seq_len); }
  // compute, NVLink (or PCIe) or network: what takes longest.
  std::string limit(const Row& row) const;
};

const char* name_of(Recompute recompute);

// Of a config whose vocabulary is known. UsageError, by how much, where nothing fits.
Plan make_plan(train::RunConfig config, const Cluster& cluster);

}  // namespace bhyt::plan
