// bhyt analyze: what there is to say of a model's inside, and of the theory behind it.
#include "cli/analyze.h"

#include "core/check.h"

namespace bhyt::cli {

int cmd_analyze(const Args& args) {
  const std::string what = args.empty() ? "" : args.front();
  const Args rest(args.begin() + (args.empty() ? 0 : 1), args.end());
  if (what == "theory") return analyze_theory(rest);
  if (what == "toy") return analyze_toy(rest);
  if (what == "depth") return analyze_depth(rest);
  throw UsageError("expected theory, toy or depth: bhyt analyze theory --help says more");
}

}  // namespace bhyt::cli
