// The files that a sweep ends with: summary.json, summary.md, report.html and across.svg, beside its index.
#pragma once

#include <string>

#include "study/index.h"

namespace bhyt::study {

// across.svg, loss by the axis across: where that axis has several numbers and a run is done.
void write_figure(const Index& index, const fs::path& folder);

// Returns the markdown.
std::string write_results(const Index& index, const fs::path& folder, const std::string& title);

}  // namespace bhyt::study
