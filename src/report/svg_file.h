// A figure as a file of its own: with its title, its legend and literal colours, for viewers that know neither the page nor its style.
#pragma once

#include <string>
#include <vector>

#include "report/figure.h"

namespace bhyt::report {

struct SvgFile {
  std::string text;
  double height;
};

// legend: the names of runs 0, 1, …; those without a line in the figure are left out.
SvgFile svg_file(const Figure& figure, const std::vector<std::string>& legend);

}  // namespace bhyt::report
