// What a model is asked. Tasks are rows of one table (tasks.cpp); a user's own is the same row, read from YAML (task_yaml.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eval/fields.h"

namespace bhyt {

enum class TaskKind : std::uint8_t {
  multiple_choice,  // which of several endings is the likeliest?
  rolling,          // how likely is a text?
};
enum class Examples : std::uint8_t {
  drawn,  // from the few-shot split, anew for each document
  first,  // its first rows for all documents
};

// How a document becomes a question.
struct Prompt {
  std::vector<Template> text;      // what the model reads first; several: one for each choice
  std::vector<Template> choices;   // what may follow. One template: a column that holds the list; several: a choice each
  std::optional<Template> ending;  // instead of choices where there are several texts: what follows each of them
  Template gold;                   // the right choice: its label or, without labels, its place from 0
  std::vector<Template> labels;    // as choices
  std::optional<Filter> clean;     // goes over the filled text and over every choice
};

struct SubjectGroup {
  std::string name;  // "stem": asked for as mmlu_stem
  std::vector<std::string> subjects;
};

struct Task {
  std::string name;
  std::string source;         // the data set on the Hugging Face hub
  std::string version;        // the harness's, for its table
  std::string group_version;  // the same of the groups of its subjects
  TaskKind kind = TaskKind::multiple_choice;
  std::string split, example_split;  // what is evaluated; where solved examples come from
  Template description;              // stands before everything else
  std::vector<Prompt> prompts;       // several: the first whose columns a document has; rolling: its text is what is scored
  bool acc_norm = false;             // graded by likelihood per character too
  Examples examples = Examples::drawn;
  std::int64_t extra_draws = 0;      // rows drawn beyond the number of shots, in case one of them is the document itself
  std::string subject_column;        // every subject is a task of its own, NAME_SUBJECT
  std::vector<SubjectGroup> groups;  // all subjects, by group

  // Whether another seed asks other questions.
  bool seed_matters(std::int64_t shots) const { return kind == TaskKind::multiple_choice && examples == Examples::drawn && shots > 0; }
};

const std::vector<Task>& task_table();

// The names of the paper's tasks in the order of its tables' columns.
const std::vector<std::string>& paper_tasks();
constexpr std::int64_t kPaperShots = 3;
constexpr std::int64_t kPaperSeeds[] = {42, 43, 44, 45, 46};

// A row of the table as it was asked for.
struct ChosenTask {
  Task task;
  std::vector<std::string> subjects;  // none where the task has none
};
// What is reported together: a mean over members.
struct TaskGroup {
  std::string name, alias;           // "mmlu_social_sciences", "social sciences"
  std::string version;               // the harness's
  std::string parent;                // "mmlu" where that was asked for as a whole, else ""
  std::vector<std::string> members;  // names of subtasks
};
struct Selection {
  std::vector<ChosenTask> tasks;  // in the order asked for, each once
  std::vector<TaskGroup> groups;  // whole ones that were asked for, parents first

  std::string group_of(const std::string& subtask) const;  // the narrowest; "" where it stands by itself
};

// Names of tasks, of their subjects (mmlu_anatomy) and groups (mmlu_stem), paper, all, and paths of YAML files. UsageError for a name that
// is not known, with the nearest and all of them.
Selection resolve_tasks(const std::vector<std::string>& names);
std::vector<std::string> split_names(const std::string& list);  // "a, b" at its commas, without the blanks
std::string task_names();                                       // "arc_challenge, arc_easy, …"

}  // namespace bhyt
