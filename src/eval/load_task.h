// Tasks with their data: which files they need, and the rows that are in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "eval/documents.h"
#include "eval/task.h"

namespace bhyt {

// A task by itself, or one subject of a task that has subjects.
struct Subtask {
  std::string name, alias;                    // "mmlu_anatomy", "anatomy"; both "arc_easy"
  std::vector<std::int64_t> documents, pool;  // rows of LoadedTask::evaluated and LoadedTask::examples
};

struct LoadedTask {
  Task task;
  std::shared_ptr<const Documents> evaluated, examples;  // the same where there is no split of examples; none without shots
  std::vector<Subtask> subtasks;
};

// UsageError where files are missing: which, in which layout, and what the data sets are called. For an empty `data` (no --data) too.
void check_data(const Selection& selection, const std::filesystem::path& data, std::int64_t shots, const char* setting = "--data");

// Multiple-choice tasks: reads what is needed to ask with that many examples.
LoadedTask load_task(const ChosenTask& chosen, const std::filesystem::path& data, std::int64_t shots);

// Rolling tasks: the texts of all documents, or of the first `limit`.
struct TaskTexts {
  std::vector<std::string> texts;
  std::int64_t documents = 0;  // that the data set has
};
TaskTexts read_texts(const Task& task, const std::filesystem::path& data, std::int64_t limit);

}  // namespace bhyt
