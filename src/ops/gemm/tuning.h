// The algorithms that the CUDA backend chose by measuring, shape by shape: written to a run's tuning.json and read back on resume, so
// that the bits repeat. Empty without CUDA.
#pragma once

#include <map>
#include <string>

namespace bhyt::cuda {

std::map<std::string, std::string> tuning();
void set_tuning(const std::map<std::string, std::string>& saved);

}  // namespace bhyt::cuda
