// The algorithms of matrix products on a GPU, shape by shape. A product takes what was chosen for its shape, else the library's first
// choice; choosing by measurement is a step of its own, between a first run of the work and the rest. The choices are written to a run's
// tuning.json and read back on resume, so that the bits repeat. Nothing happens without CUDA.
#pragma once

#include <map>
#include <string>

#include "core/context.h"

namespace bhyt::cuda {

// Measures the library's candidates for every large product that ran in this context since the last call (or since forget_products) and
// keeps the fastest. The operands of those products must still be there; their contents do not change.
void tune_products(Context& ctx);
void forget_products(Context& ctx);  // those so far are not to be measured: their operands may be gone

std::map<std::string, std::string> tuning(Context& ctx);  // what was chosen and what was set, by shape
// Before a context's first product: shapes that are named take what is given, if the library takes it. Error, and nothing set, for
// nonsense.
void set_tuning(Context& ctx, const std::map<std::string, std::string>& saved);
std::string tuning_library();  // name and version: choices of one mean nothing to another

}  // namespace bhyt::cuda
