#include "eval/task_yaml.h"

#include "core/check.h"
#include "core/schema.h"
#include "io/yaml.h"

namespace bhyt {

namespace {

using schema::Json;

// A row of the table without what a user's task does not have: it is one question per document, with one form and no subjects.
struct OwnTask {
  Task row;
  Prompt prompt;
  std::optional<std::int64_t> extra_draws;
};

template <class T>
T parsed(const Json& value, const std::string& key) {
  if (!value.is_string()) schema::wrong(key, "a text (one that begins with a brace needs quotes)", value);
  try {
    return T(std::string_view(value.get_ref<const std::string&>()));
  } catch (const UsageError& e) {
    throw UsageError(fmt::format("{}: {}", key, e.what()));
  }
}

std::vector<Template> parsed_list(const Json& value, const std::string& key) {
  if (!value.is_array()) return {parsed<Template>(value, key)};
  if (value.empty()) schema::wrong(key, "a text or a list of texts", value);
  std::vector<Template> all;
  for (const Json& v : value) all.push_back(parsed<Template>(v, key));
  return all;
}

void read_fields(OwnTask& t, schema::Reader& v) {
  const auto take = [&](const char* key, auto&& read) {
    if (const Json* value = v.take(key)) read(*value, v.full(key));
  };
  v.text("name", t.row.name, "");
  v.text("source", t.row.source, "");
  v.text("version", t.row.version, "");
  v.text("split", t.row.split, "");
  v.text("example_split", t.row.example_split, "");
  take("description", [&](const Json& j, const std::string& key) { t.row.description = parsed<Template>(j, key); });
  take("text", [&](const Json& j, const std::string& key) { t.prompt.text = parsed_list(j, key); });
  take("choices", [&](const Json& j, const std::string& key) { t.prompt.choices = parsed_list(j, key); });
  take("ending", [&](const Json& j, const std::string& key) { t.prompt.ending = parsed<Template>(j, key); });
  take("gold", [&](const Json& j, const std::string& key) { t.prompt.gold = parsed<Template>(j, key); });
  take("labels", [&](const Json& j, const std::string& key) { t.prompt.labels = parsed_list(j, key); });
  take("clean", [&](const Json& j, const std::string& key) { t.prompt.clean = parsed<Filter>(j, key); });
  v.boolean("acc_norm", t.row.acc_norm, "");
  v.choice("examples", t.row.examples, schema::Names<Examples>{{"drawn", Examples::drawn}, {"first", Examples::first}}, "");
  take("extra_draws", [&](const Json& j, const std::string& key) { t.extra_draws = schema::Reader::as_integer(key, j, {.at_least = 0}); });
  v.finish();
}

void check_complete(const OwnTask& t) {
  const auto needs = [](bool there, const char* key, const char* what) { check_usage(there, "{} is missing: {}", key, what); };
  needs(!t.row.name.empty(), "name", "what the task is called, and the folder of its data");
  check_usage(t.row.name.find('/') == std::string::npos && !t.row.name.starts_with('.'), "name must be the name of a folder, got {:?}",
              t.row.name);
  needs(!t.row.split.empty(), "split", "the split that is evaluated");
  needs(!t.prompt.text.empty(), "text", "what a model reads of a document");
  needs(!t.prompt.gold.empty(), "gold", "which choice is the right one");
}

// What belongs together: one text and its choices, or several texts and the ending of all of them.
void check_form(const Prompt& p, bool acc_norm) {
  if (p.text.size() == 1) {
    check_usage(!p.ending, "ending goes with a list of texts, one for each choice; with one text expected choices");
    check_usage(!p.choices.empty(), "choices is missing: a list, or a column that holds one");
    check_usage(p.choices.size() > 1 || p.choices.front().is_column(), "choices must be at least two, or a column that holds a list");
  } else {
    check_usage(p.choices.empty(), "choices goes with one text; with a list of texts expected ending, which follows each of them");
    check_usage(p.ending.has_value(), "ending is missing: what follows each of the texts");
    check_usage(!acc_norm, "acc_norm must be false where all choices have the same ending: it would be acc");
  }
}

}  // namespace

Task read_task_yaml(const std::filesystem::path& file) {
  const Json tree = read_yaml(file);
  try {
    OwnTask own;
    own.row.example_split = "train";
    own.row.version = "Yaml";  // what the harness prints for a task without one
    schema::Reader reader(tree, "");
    read_fields(own, reader);
    check_complete(own);
    check_form(own.prompt, own.row.acc_norm);
    own.row.extra_draws = own.extra_draws.value_or(own.row.example_split == own.row.split ? 1 : 0);
    own.row.prompts = {std::move(own.prompt)};
    return std::move(own.row);
  } catch (const UsageError& e) {
    throw UsageError(fmt::format("{}: {}", file.string(), e.what()));
  }
}

}  // namespace bhyt
