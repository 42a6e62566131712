#include "eval/load_task.h"

#include <map>
#include <numeric>

#include "core/check.h"
#include "core/log.h"

namespace bhyt {

namespace fs = std::filesystem;

namespace {

// Examples that are drawn may come from the evaluated split where there is no other, which is the harness's rule.
bool needs_example_split(const Task& task, std::int64_t shots) { return shots > 0 && task.examples == Examples::first; }

std::vector<std::string> needed_splits(const Task& task, std::int64_t shots) {
  std::vector<std::string> all{task.split};
  if (needs_example_split(task, shots)) all.push_back(task.example_split);
  return all;
}

std::string described(const Task& task, std::int64_t shots) {
  std::string splits = fmt::format("{}", fmt::join(needed_splits(task, shots), ", "));
  if (task.seed_matters(shots) && task.example_split != task.split) splits += fmt::format(", {} (for examples)", task.example_split);
  return fmt::format("\n  {}: {}{}", task.name, splits, task.source.empty() ? "" : " of " + task.source);
}

fs::path split_file(const Task& task, const fs::path& data, const std::string& split) {
  const auto file = find_split(data, task.name, split);
  check_usage(file.has_value(), "no split {} of {} in {}", split, task.name, data.string());  // check_data says more before
  return *file;
}

std::shared_ptr<const Documents> read_split(const Task& task, const fs::path& data, const std::string& split) {
  return std::make_shared<const Documents>(read_documents(split_file(task, data, split)));
}

std::shared_ptr<const Documents> read_examples(const Task& task, const fs::path& data, const std::shared_ptr<const Documents>& evaluated) {
  if (task.example_split == task.split) return evaluated;
  if (task.examples == Examples::drawn && !find_split(data, task.name, task.example_split)) {
    log::info("{} has no {} split: examples come from {}, as in the harness", task.name, task.example_split, task.split);
    return evaluated;
  }
  return read_split(task, data, task.example_split);
}

std::vector<std::int64_t> all_rows(const Documents& documents) {
  std::vector<std::int64_t> rows(documents.rows.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::map<std::string, std::vector<std::int64_t>> rows_by_subject(const Task& task, const Documents& documents) {
  std::map<std::string, std::vector<std::int64_t>> rows;
  for (const SubjectGroup& g : task.groups)
    for (const std::string& s : g.subjects) rows[s];
  const Template column("{" + task.subject_column + "}");
  for (std::int64_t i = 0; i < std::ssize(documents.rows); ++i) {
    const Row row = documents.row(i);
    const std::string subject = column.fill(row);
    const auto there = rows.find(subject);
    if (there == rows.end())
      row.fail(task.subject_column, fmt::format("one of the {} subjects of {}", rows.size(), task.name), Document(subject));
    there->second.push_back(i);
  }
  return rows;
}

void divide(LoadedTask& loaded, const std::vector<std::string>& subjects) {
  const Task& task = loaded.task;
  auto documents = rows_by_subject(task, *loaded.evaluated);
  auto pool = loaded.examples ? rows_by_subject(task, *loaded.examples) : decltype(documents)();
  for (const std::string& s : subjects) {
    check(!documents[s].empty(), "{} has no row with {} {}: leave {}_{} out, or name the subjects that are there", loaded.evaluated->file,
          task.subject_column, s, task.name, s);
    loaded.subtasks.push_back({task.name + "_" + s, s, std::move(documents[s]), std::move(pool[s])});
  }
}

}  // namespace

void check_data(const Selection& selection, const fs::path& data, std::int64_t shots, const char* setting) {
  std::string missing, expected;
  for (const ChosenTask& c : selection.tasks) {
    expected += described(c.task, shots);
    if (data.empty()) continue;
    for (const std::string& split : needed_splits(c.task, shots))
      if (!find_split(data, c.task.name, split))
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", (data / c.task.name / (split + ".jsonl")).string());
  }
  if (!data.empty() && missing.empty()) return;
  throw UsageError(
      fmt::format("{}; expected in {} DIR the files DIR/TASK/SPLIT.jsonl (or .jsonl.gz, .jsonl.zst), one JSON object a line "
                  "with the columns of the Hugging Face data sets:{}",
                  data.empty() ? std::string(setting) + " is missing" : "there is no " + missing, setting, expected));
}

LoadedTask load_task(const ChosenTask& chosen, const fs::path& data, std::int64_t shots) {
  LoadedTask loaded{
      .task = chosen.task, .evaluated = read_split(chosen.task, data, chosen.task.split), .examples = nullptr, .subtasks = {}};
  if (shots > 0) loaded.examples = read_examples(chosen.task, data, loaded.evaluated);
  if (!chosen.task.subject_column.empty())
    divide(loaded, chosen.subjects);
  else
    loaded.subtasks.push_back({chosen.task.name, chosen.task.name, all_rows(*loaded.evaluated),
                               loaded.examples ? all_rows(*loaded.examples) : std::vector<std::int64_t>()});
  return loaded;
}

TaskTexts read_texts(const Task& task, const fs::path& data, std::int64_t limit) {
  const Template& text = task.prompts.front().text.front();
  TaskTexts out;
  for_each_row(split_file(task, data, task.split), [&](const Row& row) {
    if (limit <= 0 || out.documents < limit) out.texts.push_back(text.fill(row));
    ++out.documents;
    return true;
  });
  return out;
}

}  // namespace bhyt
