// How runs compare, where they do: a loss says which run is better only beside a loss that was measured on the same.
#pragma once

#include <string>
#include <vector>

#include "report/run.h"

namespace bhyt::report {

struct Verdict {
  std::string text;  // one line of plain text
  int best = -1;     // the run with the lowest final loss; -1 where nothing compares, or two share it
};

Verdict judge(const std::vector<Run>& runs);

}  // namespace bhyt::report
