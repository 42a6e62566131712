// The report of an evaluation: models by tasks, their differences document by document, and every single result.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace bhyt::report {

// `evaluation` as bhyt eval --json prints it of several models or seeds: {"models", "summary", "comparisons"}, the last two where there are
// any.
std::string evaluation_sections(const nlohmann::ordered_json& evaluation);  // to stand in a page
std::string render_evaluation(const nlohmann::ordered_json& evaluation);    // a page of its own

}  // namespace bhyt::report
