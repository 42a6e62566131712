// From tasks to questions: rows of data sets with solved examples before them, exactly as lm-evaluation-harness 0.4.9.1 writes them.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/load_task.h"
#include "eval/question.h"
#include "text/chat_template.h"

namespace bhyt {

struct RenderOptions {
  std::int64_t shots = 0;
  std::int64_t seed = 0;
  std::int64_t limit = 0;            // the first documents of each subtask; 0: all
  const ChatFormat* chat = nullptr;  // as turns of a conversation
};

// The questions of a subtask in the order of its documents. UsageError for more shots than there are rows to take them from, Error for a
// document that is not as the task expects it.
std::vector<Question> render(const LoadedTask& loaded, const Subtask& subtask, const RenderOptions& options);

}  // namespace bhyt
