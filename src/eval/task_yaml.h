// A user's own multiple-choice task: a row of the table as a YAML file.
#pragma once

#include <filesystem>

#include "eval/task.h"

namespace bhyt {

// UsageError that names file and key for a key that is unknown, missing or of another type.
Task read_task_yaml(const std::filesystem::path& file);

}  // namespace bhyt
