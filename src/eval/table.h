// Markdown tables that read well as plain text, laid out as the harness's are (by pytablewriter).
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace bhyt {

using TableCell = std::variant<std::string, double>;

// Columns of numbers (a text that is a number counts as one) are set to the right, with as many decimal places as the one that needs most;
// others to the left. Blank cells fit in both.
std::string markdown_table(const std::vector<std::string>& headers, const std::vector<std::vector<TableCell>>& rows);

}  // namespace bhyt
