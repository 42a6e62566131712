// A sweep as one HTML file: the table of losses, loss against the axis across, the runs' curves, every run.
#pragma once

#include <optional>
#include <string>

#include "report/figure.h"
#include "study/index.h"
#include "study/summary.h"

namespace bhyt::study {

std::string sweep_sections(const Index& index, const fs::path& folder);  // to stand in a page
std::string sweep_page(const Index& index, const fs::path& folder, const std::string& title, const std::string& lead, const char* command);

// Magnitude and variance by layer, the first run of each row.
std::string layer_sections(const Index& index, const fs::path& folder);

// Loss by the axis across, a line for each row that has a loss; nothing where that axis has no numbers.
std::optional<report::Figure> across_figure(const Pivot& pivot);

// A markdown table (a line of cells, a line of rules, lines of cells) as HTML.
std::string html_table(const std::string& markdown);

// The names and colours of lines.
std::string legend(const std::vector<std::string>& names);

}  // namespace bhyt::study
