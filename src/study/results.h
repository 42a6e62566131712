// The files that a sweep ends with: summary.json, summary.md and report.html, beside its index.
#pragma once

#include <string>

#include "study/index.h"

namespace bhyt::study {

// Returns the markdown.
std::string write_results(const Index& index, const fs::path& folder, const std::string& title);

}  // namespace bhyt::study
