#include "eval/request_file.h"

#include "core/check.h"
#include "eval/documents.h"

namespace bhyt {

std::vector<Question> read_requests(const std::filesystem::path& file) {
  std::vector<Question> requests;
  for_each_row(file, [&](const Row& row) {
    const auto text = [&](const char* key) {
      const auto found = row.columns.find(key);
      if (found == row.columns.end()) row.fail(key, "a text", "nothing");
      if (!found->is_string()) row.fail(key, "a text", *found);
      return found->get<std::string>();
    };
    Question q{.task = file.filename().string(), .document = row.line - 1, .examples = {}, .contexts = {text("context")}};
    q.continuations = {text("continuation")};
    requests.push_back(std::move(q));
    return true;
  });
  return requests;
}

}  // namespace bhyt
