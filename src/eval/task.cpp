#include "eval/task.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "core/check.h"
#include "core/schema.h"
#include "eval/task_yaml.h"

namespace bhyt {

namespace {

bool is_file(const std::string& name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }

std::vector<std::string> all_subjects(const Task& task) {
  std::vector<std::string> all;
  for (const SubjectGroup& g : task.groups) all.insert(all.end(), g.subjects.begin(), g.subjects.end());
  return all;
}

// A name as it may be asked for: a task, a group of its subjects, or one of them.
struct Name {
  const Task* task = nullptr;
  std::vector<std::string> subjects, groups;  // the groups that it asks for as a whole
};

const std::map<std::string, Name>& known_names() {
  static const std::map<std::string, Name> names = [] {
    std::map<std::string, Name> all;
    for (const Task& t : task_table()) {
      Name& whole = all[t.name] = {&t, all_subjects(t), {}};
      if (!t.groups.empty()) whole.groups.push_back(t.name);
      for (const SubjectGroup& g : t.groups) {
        const std::string group = t.name + "_" + g.name;
        whole.groups.push_back(group);
        all[group] = {&t, g.subjects, {group}};
        for (const std::string& s : g.subjects) all[t.name + "_" + s] = {&t, {s}, {}};
      }
    }
    return all;
  }();
  return names;
}

[[noreturn]] void unknown(const std::string& name) {
  std::vector<std::string> all{"paper", "all"};
  for (const auto& [known, what] : known_names()) all.push_back(known);
  const std::string near = schema::nearest(name, all);
  throw UsageError(fmt::format("unknown task {}{}; expected {}, paper, all, or the YAML file of a task", name,
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near), task_names()));
}

std::vector<std::string> spelled_out(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (name == "paper")
      out.insert(out.end(), paper_tasks().begin(), paper_tasks().end());
    else if (name == "all")
      for (const Task& t : task_table()) out.push_back(t.name);
    else
      out.push_back(name);
  }
  return out;
}

class Chooser {
 public:
  void add(const std::string& name) {
    if (is_file(name)) return add_own(read_task_yaml(name), name);
    const auto known = known_names().find(name);
    if (known == known_names().end()) unknown(name);
    const auto& [task, subjects, groups] = known->second;
    ChosenTask& chosen = find_or_add(*task);
    std::set<std::string>& asked = subjects_[task->name];
    asked.insert(subjects.begin(), subjects.end());
    std::erase_if(chosen.subjects = all_subjects(*task), [&](const std::string& s) { return !asked.contains(s); });
    groups_.insert(groups.begin(), groups.end());
  }

  Selection finish() && {
    for (const ChosenTask& c : out_.tasks) {
      add_group(c.task, c.task.name, c.task.name, "", all_subjects(c.task));
      const std::string parent = groups_.contains(c.task.name) ? c.task.name : "";
      for (const SubjectGroup& g : c.task.groups) {
        std::string alias = g.name;
        std::ranges::replace(alias, '_', ' ');
        add_group(c.task, c.task.name + "_" + g.name, alias, parent, g.subjects);
      }
    }
    return std::move(out_);
  }

 private:
  ChosenTask& find_or_add(const Task& task) {
    const auto there = std::ranges::find(out_.tasks, task.name, [](const ChosenTask& c) { return c.task.name; });
    if (there != out_.tasks.end()) {
      check_usage(!own_.contains(task.name), "two tasks are called {}", task.name);
      return *there;
    }
    return out_.tasks.emplace_back(ChosenTask{task, {}});
  }

  void add_own(Task task, const std::string& file) {
    for (const ChosenTask& c : out_.tasks) check_usage(c.task.name != task.name, "{}: another task is called {} too", file, task.name);
    for (const Task& t : task_table())  // NAME_… are its subjects and groups
      check_usage(t.subject_column.empty() || !task.name.starts_with(t.name), "{}: the name {} is one of those that belong to {}", file,
                  task.name, t.name);
    own_.insert(task.name);
    out_.tasks.push_back({std::move(task), {}});
  }

  void add_group(const Task& task, const std::string& name, const std::string& alias, const std::string& parent,
                 const std::vector<std::string>& subjects) {
    if (!groups_.contains(name)) return;
    TaskGroup& group = out_.groups.emplace_back(TaskGroup{name, alias, task.group_version, parent, {}});
    for (const std::string& s : subjects) group.members.push_back(task.name + "_" + s);
  }

  Selection out_;
  std::map<std::string, std::set<std::string>> subjects_;  // by task
  std::set<std::string> groups_, own_;
};

}  // namespace

std::vector<std::string> split_names(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');) {
    const std::size_t from = name.find_first_not_of(" \t\n"), to = name.find_last_not_of(" \t\n");
    if (from != std::string::npos) names.push_back(name.substr(from, to - from + 1));
  }
  return names;
}

std::string task_names() {
  std::string all;
  for (const Task& t : task_table()) {
    all += (all.empty() ? "" : ", ") + t.name;
    if (t.groups.empty()) continue;
    std::string groups;
    for (const SubjectGroup& g : t.groups) groups += t.name + "_" + g.name + ", ";
    all += fmt::format(" ({}or a subject: {}_{})", groups, t.name, t.groups.front().subjects.front());
  }
  return all;
}

std::string Selection::group_of(const std::string& subtask) const {
  std::string narrowest;
  for (const TaskGroup& g : groups)
    if (std::ranges::count(g.members, subtask) > 0) narrowest = g.name;
  return narrowest;
}

Selection resolve_tasks(const std::vector<std::string>& names) {
  check_usage(!names.empty(), "no task is named; expected {}, paper, all, or the YAML file of a task", task_names());
  Chooser chooser;
  for (const std::string& name : spelled_out(names)) chooser.add(name);
  return std::move(chooser).finish();
}

}  // namespace bhyt
