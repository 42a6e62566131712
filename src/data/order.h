// The order in which an epoch goes through n examples.
#pragma once

#include <cstdint>
#include <vector>

namespace bhyt {

// PyTorch's: torch.randperm(n) of a CPU generator seeded with `seed`; transformers' Trainer takes seed + epoch.
std::vector<std::int64_t> torch_randperm(std::int64_t n, std::uint64_t seed);

// Ours: place i of (seed, epoch) is a pure function (data/permutation.h).
std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::uint64_t epoch);

}  // namespace bhyt
