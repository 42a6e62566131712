// Prompts, against what lm-evaluation-harness wrote for the same documents.
#include "eval/render.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/documents.h"
#include "tests/data/test_util.h"
#include "tests/eval/task_files.h"
#include "text/chat_jinja.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace bhyt {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// What a case was made from: the whole data, or the evaluated split cut to some rows (of each subject).
struct CaseData {
  test::TempDir folder;
  LoadedTask loaded;
};

void cut_rows(const fs::path& from, const fs::path& to, std::int64_t begin, std::int64_t end) {
  std::map<std::string, std::int64_t> count;
  std::vector<Json> kept;
  for (const Json& row : read_documents(from).rows)
    if (const std::int64_t i = count[row.value("subject", "")]++; i >= begin && i < end) kept.push_back(row);
  test::write_rows(to.string(), kept);
}

std::unique_ptr<CaseData> data_of(const Json& head) {
  auto data = std::make_unique<CaseData>();
  const ChosenTask chosen = resolve_tasks({head["task"].get<std::string>()}).tasks.front();
  const fs::path all = head["data"].is_null() ? test::data_folder() / "tasks" : test::eval_fixtures() / head["data"].get<std::string>();
  fs::path from = all;
  if (!head["rows"].is_null()) {
    from = data->folder.str();
    const std::string& name = chosen.task.name;
    const std::string& split = chosen.task.split;
    cut_rows(*find_split(all, name, split), from / name / (split + ".jsonl"), head["rows"][0], head["rows"][1]);
    if (const auto examples = find_split(all, name, chosen.task.example_split))
      fs::create_symlink(fs::absolute(*examples), from / name / examples->filename());
  }
  data->loaded = load_task(chosen, from, head["shots"]);
  return data;
}

void expect_same(const Question& got, const Json& want, const std::string& where) {
  EXPECT_EQ(got.examples, want.value("fewshot", std::vector<std::int64_t>())) << where;
  EXPECT_EQ(got.gold, want["gold"].get<std::int64_t>()) << where;
  ASSERT_EQ(got.continuations.size(), want["choices"].size()) << where;
  for (std::size_t i = 0; i < got.continuations.size(); ++i) {
    const Json& choice = want["choices"][i];
    EXPECT_EQ(got.context(i), choice.contains("context") ? choice["context"] : want["context"]) << where;
    EXPECT_EQ(got.continuations[i], choice["continuation"].get<std::string>()) << where;
    if (choice.contains("chars")) {
      EXPECT_EQ(got.characters[i], choice["chars"].get<std::int64_t>()) << where;
    }
  }
}

class RenderGolden : public test::EvalFixtures {
 protected:
  // Every document of a case; how many there were.
  std::size_t compare(const std::string& name, const Json& head, const std::vector<Json>& lines) {
    const auto key = Json{head["task"], head["data"], head["rows"], head["shots"].get<int>() > 0}.dump();
    std::unique_ptr<CaseData>& data = kept_[key];
    if (!data) data = data_of(head);
    RenderOptions options{.shots = head["shots"], .seed = head["seed"], .limit = head["limit"]};
    if (head["chat"].get<bool>()) options.chat = &chat();
    std::map<std::string, std::vector<const Json*>> by_task;
    for (std::size_t i = 1; i < lines.size(); ++i) by_task[lines[i]["task"]].push_back(&lines[i]);
    std::size_t seen = 0;
    for (const Subtask& subtask : data->loaded.subtasks) {
      const std::vector<Question> questions = render(data->loaded, subtask, options);
      const std::vector<const Json*>& want = by_task[subtask.name];
      EXPECT_EQ(questions.size(), want.size()) << name << " " << subtask.name;
      for (std::size_t i = 0; i < std::min(questions.size(), want.size()); ++i, ++seen) {
        EXPECT_EQ(questions[i].document, (*want[i])["doc_id"].get<std::int64_t>());
        expect_same(questions[i], *want[i], name + " " + subtask.name + " " + std::to_string(i));
      }
    }
    return seen;
  }

  static const ChatFormat& chat() {
    static const std::string at = (test::eval_fixtures() / "models" / "llama3-tiny").string();
    static const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(at);
    static const ChatFormat format(*own_chat_template(at, *tokenizer), *tokenizer);
    return format;
  }

  std::map<std::string, std::unique_ptr<CaseData>> kept_;
};

TEST_F(RenderGolden, EveryCase) {
  int cases = 0;
  std::size_t documents = 0;
  for (const auto& entry : fs::directory_iterator(test::eval_fixtures() / "cases")) {
    const std::vector<Json> lines = read_documents(entry.path()).rows;
    if (lines.front()["kind"] != "eval") continue;
    documents += compare(entry.path().filename().string(), lines.front(), lines);
    ++cases;
    if (HasFailure()) return;  // one case says enough
  }
  EXPECT_GE(cases, 60);
  EXPECT_GE(documents, 1000u);
}

// The harness's cleaning of hellaswag, with its inputs and outputs.
TEST_F(RenderGolden, HellaswagIsCleaned) {
  test::TempDir dir;
  fs::create_directories(fs::path(dir.str()) / "hellaswag");
  const fs::path file = test::eval_fixtures() / "hellaswag_clean.jsonl";
  std::vector<Json> rows = read_documents(file).rows, published = rows;
  for (Json& row : published)
    for (const char* made : {"query", "choices", "gold"}) row.erase(made);
  test::write_rows(dir / "hellaswag/validation.jsonl", published);
  const LoadedTask loaded = load_task(resolve_tasks({"hellaswag"}).tasks.front(), dir.str(), 0);
  const std::vector<Question> questions = render(loaded, loaded.subtasks.front(), {});
  ASSERT_EQ(questions.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(questions[i].contexts.front(), rows[i]["query"].get<std::string>());
    EXPECT_EQ(questions[i].gold, rows[i]["gold"].get<std::int64_t>());
    for (std::size_t c = 0; c < questions[i].continuations.size(); ++c)
      EXPECT_EQ(questions[i].continuations[c], " " + rows[i]["choices"][c].get<std::string>());
  }
}

}  // namespace
}  // namespace bhyt
