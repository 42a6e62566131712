// What the makers of figures share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "report/figure.h"

namespace bhyt::report {

std::string number(double v);                          // three significant digits
std::string epoch_or_step(const Run& r, double step);  // "epoch 3", "epoch 2.5", "step 40"
// "a 1, b 2." or "1 in every run."; runs for which there is nothing to say are left out.
std::string each(const std::vector<Run>& runs, const std::function<std::string(const Run&)>& what);
std::string labelled(const char* label, const std::string& text);
// Extremes of all curves and levels; a linear axis leaves out what lies above the cap.
void widen(const Figure& f, double window, double& lo, double& hi);

// Training and validation by epoch, of runs that know how many steps make one.
void add_epoch_figure(const std::vector<Run>& runs, std::vector<Figure>& out);
void add_layer_figures(const std::vector<Run>& runs, std::vector<Figure>& out);
// The learned scalars of a run's norms and what these do, each site a panel, each layer a line.
void add_scalar_figures(const Run& r, int run, double end, std::vector<Figure>& out);

}  // namespace bhyt::report
