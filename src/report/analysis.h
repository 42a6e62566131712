// What bhyt analyze found, as figures and tables: magnitude and variance by layer (one line a model), the norms, what each block is worth,
// and the approximated statistic against the actual one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace bhyt::report {

constexpr const char* kAnalysisFile = "analysis.json";  // in a run directory

// `analysis` as bhyt analyze --json prints it: {"models": […]}.
std::string analysis_sections(const nlohmann::ordered_json& analysis);  // to stand in a page
std::string render_analysis(const nlohmann::ordered_json& analysis);    // a page of its own

// The same figures as files that need no page around them.
struct NamedSvg {
  std::string name, svg;
};
std::vector<NamedSvg> analysis_svgs(const nlohmann::ordered_json& analysis);

}  // namespace bhyt::report
