// Figures as an SVG file by itself: panels in rows, a heading over each, and what the lines mean beside them. No style sheet, script or
// page is needed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "report/figure.h"

namespace bhyt::report {

struct Panel {
  Figure figure;                   // its axes are fitted to its lines
  std::vector<std::string> names;  // of its lines, by Line::run; "": not named
};

struct Sheet {
  std::string title;
  int columns = 2;
  std::vector<Panel> panels;  // row by row
};

std::string draw_sheet(Sheet sheet);

}  // namespace bhyt::report
