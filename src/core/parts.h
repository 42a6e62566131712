// Where the time of a pass goes, part by part, by the names that the pass itself gives ("qkv", "norm+qkv+rope+cache"): it knows which
// product is which, and which kernel does several things at once; profile.h knows kinds of operations. Costs one branch without a
// recording.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace bhyt::profile {

struct Part {
  std::string name;
  double seconds = 0, bytes = 0;  // bytes: of the weights that it reads
};

// What a job's time goes to, all of it: parts in the order in which they come first; "other" is what comes before the first.
std::vector<Part> parts_of(Context& ctx, const std::function<void()>& job);

void switch_part(Context& ctx, std::initializer_list<const char*> name, const Tensor& weights);

// Time from here on belongs to the part of this name, given in pieces; weights: what it multiplies by, if anything.
inline void from_here(Context& ctx, std::initializer_list<const char*> name, const Tensor& weights = {}) {
  if (ctx.profile().recording()) [[unlikely]]
    switch_part(ctx, name, weights);
}

}  // namespace bhyt::profile
