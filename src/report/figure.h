// Figures as data: curves, ranges and words. svg.cpp draws them for the page as it stands, script.inc again when it is used.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "report/run.h"
#include "report/scale.h"

namespace bhyt::report {

struct Line {
  int run = 0;       // which gives the colour
  std::string name;  // its column in the table that hovering shows
  Thinned data;
  bool smoothed = false;  // drawn faint, its moving average on top
  bool dots = false;
  double tint = -1;  // 0…1: coloured by layer instead
};

// A horizontal line.
struct Level {
  double y = 0;
  std::string label;
};

struct Figure {
  std::string id, title, unit, caption;
  double width = 1120, height = 400;
  std::string section;  // figures of a section stand together
  std::string group;    // figures of a group share their y range
  bool steps = true;    // x is the step, else the layer
  std::string x_name;   // under the axis; "": as `steps` says
  bool can_log = false, log = false, from_zero = false;
  bool close = false;  // a closer look at a part of the run: averages without the faint records, its own range, no zoom
  double cap = std::numeric_limits<double>::quiet_NaN();  // a linear axis takes no heed of what lies above
  int only_run = -1;                                      // the one run it shows
  std::vector<Line> lines;
  std::vector<Level> levels;
  std::vector<std::vector<double>> skipped;  // per run, steps to mark
  Axis x, y;
};

// The width of the window that curves are smoothed with at first, in steps; 0 where there is little to smooth.
double default_window(const std::vector<Run>& runs);

std::vector<Figure> make_figures(const std::vector<Run>& runs);

std::string draw_svg(const Figure& figure, double window);  // svg.cpp
std::string look_of(int run);                               // its colour and dashes, as CSS
std::string escape(const std::string& text);                // for HTML text and attributes; what is not UTF-8 is replaced

}  // namespace bhyt::report
