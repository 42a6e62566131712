// Which GPU each rank takes. A launcher may show all GPUs of a host to each of its ranks, or to each rank its own alone (Slurm, by
// CUDA_VISIBLE_DEVICES): the numbers say nothing across ranks, so GPUs are compared by their ids.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace bhyt::parallel {

// What a rank sees, by the numbers that it knows them under: cuda:0 is the first.
struct VisibleGpus {
  std::vector<std::string> ids;
  std::optional<int> named;  // the one that the user asks for, where he asks for one
};
std::string to_text(const VisibleGpus& gpus);
VisibleGpus visible_gpus_from(const std::string& text);

// The number that each rank takes: the one that it names, else the first of those it sees that no rank before it takes. UsageError where
// two would have the same one, with the ranks and its id; `otherwise` says what else could be done. share: then ranks that are left without
// one take turns.
std::vector<int> share_out_gpus(const std::vector<VisibleGpus>& ranks, bool share, const std::string& otherwise = "");

}  // namespace bhyt::parallel
