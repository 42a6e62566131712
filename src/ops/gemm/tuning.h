// The algorithms that the CUDA backend chose by measuring, shape by shape: written to a run's tuning.json and read back on resume, so
// that the bits repeat. Empty without CUDA.
#pragma once

#include <map>
#include <string>

namespace bhyt::cuda {

std::map<std::string, std::string> tuning();  // what was chosen and what was set, by shape
// Before a run's first product: shapes that are named take what is given, if the library takes it. Error, and nothing set, for nonsense.
void set_tuning(const std::map<std::string, std::string>& saved);
std::string tuning_library();  // name and version: choices of one mean nothing to another

}  // namespace bhyt::cuda
