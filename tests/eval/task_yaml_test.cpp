// Tasks of users, written as YAML.
#include "eval/task_yaml.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/render.h"
#include "eval/task.h"
#include "tests/data/test_util.h"
#include "tests/eval/task_files.h"

namespace bhyt {
namespace {

using ::bhyt::test::message_of;

constexpr const char* kArcEasy = R"(
name: arc_easy
split: test
example_split: train
text: "Question: {question}\nAnswer:"
choices: "{choices.text}"
gold: "{answerKey}"
labels: "{choices.label}"
acc_norm: true
)";

constexpr const char* kWinogrande = R"(
name: winogrande
split: validation
text: ["{sentence|before _}{option1}", "{sentence|before _}{option2}"]
ending: "{sentence|after _|strip}"
gold: "{answer}"
labels: ["1", "2"]
extra_draws: 1
)";

constexpr const char* kHellaswag = R"(
name: hellaswag
source: Rowan/hellaswag
split: validation
text: "{activity_label}: {ctx_a} {ctx_b|capitalize}"
choices: "{endings}"
gold: "{label}"
clean: wikihow
acc_norm: true
examples: drawn
extra_draws: 1
)";

std::vector<Question> ask(const Task& task, const std::filesystem::path& data, const RenderOptions& options) {
  const LoadedTask loaded = load_task({task, {}}, data, options.shots);
  return render(loaded, loaded.subtasks.front(), options);
}

class TaskYaml : public ::testing::Test {
 protected:
  Task read(const std::string& yaml) {
    test::write_file(dir_ / "own.yaml", yaml);
    return read_task_yaml(dir_ / "own.yaml");
  }
  // What is said of it behind the name of the file.
  std::string said_of(const std::string& yaml) {
    const std::string said = message_of<UsageError>([&] { read(yaml); }), file = (dir_ / "own.yaml") + ": ";
    EXPECT_EQ(said.substr(0, file.size()), file);
    return said.substr(std::min(said.size(), file.size()));
  }
  // A task that is right, with a line more.
  static std::string with(const std::string& line) { return kArcEasy + line + "\n"; }
  static std::string without(const std::string& key) {
    std::string text = kArcEasy;
    const std::size_t at = text.find("\n" + key + ":") + 1;
    return text.erase(at, text.find('\n', at) + 1 - at);
  }
  test::TempDir dir_;
};

TEST_F(TaskYaml, IsARow) {
  const Task task = read(kWinogrande);
  EXPECT_EQ(task.name, "winogrande");
  EXPECT_EQ(task.example_split, "train");
  EXPECT_EQ(task.extra_draws, 1);
  EXPECT_EQ(task.version, "Yaml");
  EXPECT_FALSE(task.acc_norm);
  EXPECT_EQ(read(kArcEasy).extra_draws, 0);
  EXPECT_EQ(read(with("example_split: test").replace(with("").find("example_split: train\n"), 21, "")).extra_draws, 1);
}

TEST_F(TaskYaml, WrongOnesNameFileAndKey) {
  EXPECT_NE(said_of(with("metric: acc")).find("unknown key metric"), std::string::npos);
  EXPECT_NE(said_of(with("label: x")).find("did you mean labels?"), std::string::npos);
  for (const char* key : {"name", "split", "text", "gold", "choices"})
    EXPECT_EQ(said_of(without(key)).find(std::string(key) + " is missing"), 0u) << key;
  EXPECT_EQ(said_of(without("acc_norm") + "acc_norm: often\n"), "acc_norm must be true or false, got \"often\"");
  EXPECT_EQ(said_of(without("split") + "split: [a]\n").find("split must be"), 0u);
  EXPECT_EQ(said_of(without("gold") + "gold: {answerKey}\n").find("gold must be a text (one that begins with a brace needs quotes)"), 0u);
  EXPECT_EQ(said_of(without("labels") + "labels: [1, 2]\n").find("labels must be a text"), 0u);
  EXPECT_EQ(said_of(without("labels") + "labels: []\n").find("labels must be"), 0u);
  EXPECT_EQ(said_of(with("examples: last")).find("examples must be one of drawn, first"), 0u);
  EXPECT_EQ(said_of(with("extra_draws: -1")).find("extra_draws must be at least 0"), 0u);
  EXPECT_EQ(said_of(with("clean: soap")).find("clean: unknown filter"), 0u);
  EXPECT_EQ(said_of(without("text") + "text: \"{question\"\n").find("text: "), 0u);
  EXPECT_EQ(said_of(without("name") + "name: ../x\n").find("name must be the name of a folder"), 0u);
  EXPECT_EQ(said_of("[1, 2]").find("config must be a map of keys"), 0u);
  EXPECT_EQ(said_of("a: [").find("line "), 0u);
  EXPECT_THROW(read_task_yaml(dir_ / "nowhere.yaml"), Error);
}

TEST_F(TaskYaml, TextsAndChoicesFitTogether) {
  EXPECT_EQ(said_of(with("ending: x")).find("ending goes with a list of texts"), 0u);
  EXPECT_EQ(said_of(without("choices") + "choices: [one]\n").find("choices must be at least two"), 0u);
  EXPECT_EQ(said_of(std::string(kWinogrande) + "choices: [a, b]\n").find("choices goes with one text"), 0u);
  EXPECT_EQ(said_of(std::string(kWinogrande) + "acc_norm: true\n").find("acc_norm must be false"), 0u);
  std::string no_ending = kWinogrande;
  no_ending.erase(no_ending.find("ending:"), no_ending.find("gold:") - no_ending.find("ending:"));
  EXPECT_EQ(said_of(no_ending).find("ending is missing"), 0u);
}

TEST_F(TaskYaml, IsAskedForByItsPath) {
  test::write_file(dir_ / "mine.yaml", kArcEasy);
  const std::string file = dir_ / "mine.yaml";
  EXPECT_EQ(resolve_tasks({"piqa", file}).tasks.at(1).task.name, "arc_easy");
  EXPECT_NE(message_of<UsageError>([&] { resolve_tasks({"arc_easy", file}); }).find("another task is called arc_easy"), std::string::npos);
  EXPECT_NE(message_of<UsageError>([&] { resolve_tasks({file, "arc_easy"}); }).find("two tasks are called arc_easy"), std::string::npos);
}

class TaskYamlGolden : public test::EvalFixtures {};

TEST_F(TaskYamlGolden, EqualsTheBuiltInRows) {
  test::TempDir dir;
  for (const char* yaml : {kArcEasy, kWinogrande, kHellaswag}) {
    test::write_file(dir / "own.yaml", yaml);
    const Task own = read_task_yaml(dir / "own.yaml"), built_in = resolve_tasks({own.name}).tasks.front().task;
    EXPECT_EQ(own.acc_norm, built_in.acc_norm);
    for (const std::int64_t shots : {0, 3}) {
      const RenderOptions options{.shots = shots, .seed = 1234};
      const auto a = ask(own, test::eval_fixtures() / "traps", options), b = ask(built_in, test::eval_fixtures() / "traps", options);
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].contexts, b[i].contexts) << own.name;
        EXPECT_EQ(a[i].continuations, b[i].continuations) << own.name;
        EXPECT_EQ(a[i].characters, b[i].characters) << own.name;
        EXPECT_EQ(a[i].examples, b[i].examples) << own.name;
        EXPECT_EQ(a[i].gold, b[i].gold) << own.name;
      }
    }
  }
}

}  // namespace
}  // namespace bhyt
