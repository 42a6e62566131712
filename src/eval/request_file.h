#pragma once

#include <filesystem>
#include <vector>

#include "eval/question.h"

namespace bhyt {

// The pairs of a JSONL file, plain or with .gz or .zst, each as a question with one choice: {"context": TEXT, "continuation": TEXT}.
// Error that names the line for what is no such pair.
std::vector<Question> read_requests(const std::filesystem::path& file);

}  // namespace bhyt
