// Figure 6.
#include <functional>

#include "analysis/toy.h"
#include "report/sheet.h"

namespace bhyt::analysis {

namespace {

using report::Figure;
using report::Panel;

// Magnitude or variance over depth of the profiles that `wanted` takes, one line each.
Panel panel(const std::vector<ToyProfile>& profiles, const std::function<bool(const ToyVariant&)>& wanted, bool magnitude,
            const std::string& title, const std::string& id) {
  Panel p{.figure = {.id = id,
                     .title = title + (magnitude ? ": magnitude ‖x‖₂" : ": variance"),
                     .width = 540,
                     .height = 300,
                     .steps = false,
                     .x_name = "layer (0 is the input)",
                     .log = true}};
  for (const ToyProfile& t : profiles) {
    if (!wanted(t.variant)) continue;
    report::Line line{.run = static_cast<int>(p.names.size()), .name = t.variant.name};
    line.data.y = magnitude ? t.norm : t.variance;
    for (std::size_t i = 0; i < line.data.y.size(); ++i) line.data.x.push_back(static_cast<double>(i));
    p.figure.lines.push_back(std::move(line));
    p.names.push_back(magnitude ? "" : t.variant.name);  // the key stands once, under the lower panel
  }
  return p;
}

}  // namespace

std::string toy_figure(const std::vector<ToyProfile>& profiles) {
  const auto noise = [](const ToyVariant& v) { return v.family == "noise"; };
  const auto methods = [](const ToyVariant& v) { return v.name == "rmsnorm" || ((v.family == "dyt" || v.family == "bhyt") && v.setting); };
  report::Sheet sheet{.title = "Growth of a residual stack: x + f(x)·W"};
  for (const bool magnitude : {true, false}) {
    sheet.panels.push_back(panel(profiles, noise, magnitude, "f(x) = c·noise", magnitude ? "noise-norm" : "noise-variance"));
    sheet.panels.push_back(panel(profiles, methods, magnitude, "RMSNorm, DyT, BHyT", magnitude ? "sweep-norm" : "sweep-variance"));
  }
  return draw_sheet(std::move(sheet));
}

std::string toy_methods_figure(const std::vector<ToyProfile>& profiles) {
  const auto methods = [](const ToyVariant& v) { return v.norm && !v.setting; };
  report::Sheet sheet{.title = "Growth of a residual stack under every method as it begins"};
  for (const bool magnitude : {true, false})
    sheet.panels.push_back(panel(profiles, methods, magnitude, "Methods", magnitude ? "methods-norm" : "methods-variance"));
  for (Panel& p : sheet.panels)
    for (std::size_t i = 0; i < p.names.size(); ++i) p.names[i] = p.figure.lines[i].name;
  return draw_sheet(std::move(sheet));
}

}  // namespace bhyt::analysis
