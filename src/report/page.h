// The report: one HTML file that needs nothing but a browser.
#pragma once

#include <string>
#include <vector>

#include "report/run.h"

namespace bhyt::report {

std::string render_page(const std::vector<Run>& runs);
void write_page(const std::vector<Run>& runs, const std::string& path);  // beside it first, then renamed: never half a file

}  // namespace bhyt::report
