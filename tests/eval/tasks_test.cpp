// The table of tasks, names, templates and files, and what is said of data that is not as it should be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/documents.h"
#include "eval/fields.h"
#include "eval/render.h"
#include "eval/task.h"
#include "tests/data/test_util.h"
#include "tests/eval/task_files.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace bhyt {
namespace {

using Json = nlohmann::json;
using ::bhyt::test::message_of;
using Strings = std::vector<std::string>;

Strings names_of(const Selection& selection) {
  Strings all;
  for (const ChosenTask& c : selection.tasks) all.push_back(c.task.name);
  return all;
}
Strings groups_of(const Selection& selection) {
  Strings all;
  for (const TaskGroup& g : selection.groups) all.push_back(g.name);
  return all;
}

TEST(TaskNames, ThePaperAndAll) {
  EXPECT_EQ(names_of(resolve_tasks({"paper"})),
            (Strings{"arc_challenge", "arc_easy", "piqa", "hellaswag", "openbookqa", "winogrande", "mmlu", "boolq"}));
  EXPECT_EQ(names_of(resolve_tasks({"all"})).size(), task_table().size());
  EXPECT_EQ(names_of(resolve_tasks({"piqa", "boolq", "piqa"})), (Strings{"piqa", "boolq"}));
}

TEST(TaskNames, GroupsAndSubjects) {
  const Selection whole = resolve_tasks({"mmlu"});
  EXPECT_EQ(whole.tasks.front().subjects.size(), 57u);
  EXPECT_EQ(groups_of(whole), (Strings{"mmlu", "mmlu_humanities", "mmlu_other", "mmlu_social_sciences", "mmlu_stem"}));
  EXPECT_EQ(whole.groups.front().members.size(), 57u);
  EXPECT_EQ(whole.groups[3].alias, "social sciences");
  EXPECT_EQ(whole.groups[3].parent, "mmlu");
  EXPECT_EQ(whole.groups[3].version, "2");
  EXPECT_EQ(whole.group_of("mmlu_anatomy"), "mmlu_stem");
  std::vector<std::size_t> sizes;
  for (const TaskGroup& g : whole.groups) sizes.push_back(g.members.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{57, 13, 13, 12, 19}));

  const Selection stem = resolve_tasks({"mmlu_stem"});
  EXPECT_EQ(stem.tasks.front().subjects.size(), 19u);
  EXPECT_EQ(groups_of(stem), Strings{"mmlu_stem"});
  EXPECT_EQ(stem.groups.front().parent, "");

  const Selection mixed = resolve_tasks({"mmlu_virology", "mmlu_anatomy", "mmlu_anatomy"});
  ASSERT_EQ(mixed.tasks.size(), 1u);
  EXPECT_EQ(mixed.tasks.front().subjects, (Strings{"virology", "anatomy"}));  // the table's order
  EXPECT_TRUE(mixed.groups.empty());
  EXPECT_EQ(mixed.group_of("mmlu_anatomy"), "");
}

TEST(TaskNames, UnknownOnesGetTheNearestAndAll) {
  const std::string said = message_of<UsageError>([] { resolve_tasks({"arc_esay"}); });
  for (const char* part : {"unknown task arc_esay (did you mean arc_easy?)", "winogrande", "mmlu_stem", "paper, all", "YAML"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  EXPECT_NE(message_of<UsageError>([] { resolve_tasks({"mmlu_anatomi"}); }).find("did you mean mmlu_anatomy?"), std::string::npos);
  EXPECT_NE(message_of<UsageError>([] { resolve_tasks({}); }).find("no task is named"), std::string::npos);
}

TEST(TaskTable, SeedsMatterWhereExamplesAreDrawn) {
  for (const Task& t : task_table()) {
    EXPECT_FALSE(t.seed_matters(0)) << t.name;
    EXPECT_EQ(t.seed_matters(3), t.name != "mmlu" && t.kind == TaskKind::multiple_choice) << t.name;
  }
}

class Templates : public ::testing::Test {
 protected:
  Row row() const { return {columns_, file_, 7}; }
  std::string fill(const char* source) const { return Template(source).fill(row()); }

  Json columns_ = {{"goal", " cut it_up \t"}, {"choices", {{"text", {"a", "b"}}}}, {"label", 1}, {"name", "éTAT_x"}, {"flag", true}};
  std::string file_ = "FILE";
};

TEST_F(Templates, AreFilledWithColumns) {
  EXPECT_EQ(fill("Q: {goal}\nA:"), "Q:  cut it_up \t\nA:");
  EXPECT_EQ(fill("{goal|strip}"), "cut it_up");
  EXPECT_EQ(fill("{goal|lstrip}!"), "cut it_up \t!");
  EXPECT_EQ(fill("{goal|before _|strip}-{goal|after _|strip}"), "cut it-up");
  EXPECT_EQ(fill("{name|capitalize}"), "État_x");
  EXPECT_EQ(fill("{name|spaces}"), "éTAT x");
  EXPECT_EQ(fill("{choices.text.1}{choices.text.0}"), "ba");
  EXPECT_EQ(fill("{{goal}} {{{choices.text.0}}}"), "{goal} {a}");
  EXPECT_EQ(Template("{choices.text}").fill_list(row()), (Strings{"a", "b"}));
  EXPECT_EQ(Template("{label}").fill_label(row()), "1");
  EXPECT_EQ(fill_all({"x{choices.text.0}", "y"}, row()), (Strings{"xa", "y"}));
}

TEST_F(Templates, SayWhatIsWrongWithADocument) {
  EXPECT_EQ(message_of([&] { fill("{nothing}"); }), "FILE, line 7: expected a column nothing, found choices, flag, goal, label, name");
  EXPECT_EQ(message_of([&] { fill("{label}"); }), "FILE, line 7, column label: expected a text, found 1");
  EXPECT_EQ(message_of([&] { fill("{choices.text.2}"); }),
            "FILE, line 7, column choices.text.2: expected something under 2, found [\"a\",\"b\"]");
  EXPECT_EQ(message_of([&] { Template("{flag}").fill_label(row()); }),
            "FILE, line 7, column flag: expected a text or a whole number, found true");
  EXPECT_EQ(message_of([&] { Template("{goal}").fill_list(row()); }),
            "FILE, line 7, column goal: expected a list of texts, found \" cut it_up \\t\"");
  EXPECT_EQ(message_of([&] { fill("{choices.text.0|before _}"); }),
            "FILE, line 7, column choices.text.0: expected a text with _, found \"a\"");
}

TEST_F(Templates, AreCheckedWhenTheyAreRead) {
  for (const char* bad : {"{goal", "goal}", "{}", "{a{b}}", "{|strip}"}) EXPECT_THROW(Template{bad}, UsageError) << bad;
  EXPECT_NE(message_of<UsageError>([] { Template("{goal|trim}"); }).find("expected one of strip, lstrip, "), std::string::npos);
  EXPECT_THROW(Template("{goal|before}"), UsageError);
  EXPECT_THROW(Template("{goal|strip x}"), UsageError);
}

// Four rows of openbookqa and their answers, which tests change.
class OneTask : public ::testing::Test {
 protected:
  static Json question(int i, const std::string& key = "A") {
    return {{"question_stem", "Stem " + std::to_string(i)}, {"choices", {{"text", {"x", "y"}}, {"label", {"A", "B"}}}}, {"answerKey", key}};
  }
  void write(const std::string& split, const std::vector<Json>& rows) { test::write_rows(dir_ / ("openbookqa/" + split + ".jsonl"), rows); }
  std::vector<Question> ask(const RenderOptions& options = {}) {
    const LoadedTask loaded = load_task(resolve_tasks({"openbookqa"}).tasks.front(), dir_.str(), options.shots);
    return render(loaded, loaded.subtasks.front(), options);
  }
  // What is said of a document that stands in line 2.
  std::string said_of(const Json& bad) {
    write("test", {question(0), bad});
    const std::string said = message_of([&] { ask(); }), place = (dir_ / "openbookqa/test.jsonl") + ", line 2";
    EXPECT_EQ(said.substr(0, place.size()), place);
    return said.substr(std::min(said.size(), place.size()));
  }
  static Json with(const char* pointer, const Json& value) {
    Json row = question(1);
    row[Json::json_pointer(pointer)] = value;
    return row;
  }

  test::TempDir dir_;
};

TEST_F(OneTask, BadDocuments) {
  Json without = question(1);
  without.erase("question_stem");
  EXPECT_EQ(said_of(without), ": expected a column question_stem, found answerKey, choices");
  EXPECT_EQ(said_of(with("/question_stem", 3)), ", column question_stem: expected a text, found 3");
  EXPECT_EQ(said_of(with("/choices/text", Json::array())), ", column choices.text: expected a list of texts, found []");
  EXPECT_EQ(said_of(with("/choices/text/1", 5)), ", column choices.text: expected a list of texts, found [\"x\",5]");
  EXPECT_EQ(said_of(with("/choices", "x")), ", column choices.text: expected something under text, found \"x\"");
  EXPECT_EQ(said_of(with("/answerKey", "C")), ", column answerKey: expected one of A, B, found \"C\"");
  EXPECT_EQ(said_of(with("/answerKey", nullptr)), ", column answerKey: expected a text or a whole number, found null");
  Json more_labels = with("/choices/label", {"A", "B", "C"});
  more_labels["answerKey"] = "C";
  EXPECT_EQ(said_of(more_labels), ", column answerKey: expected the label of one of 2 choices, found \"C\"");
}

TEST_F(OneTask, GoldByPlaceIsInRange) {
  for (const Json& label : {Json(2), Json(-1), Json("x"), Json("")}) {
    test::write_rows(dir_ / "piqa/validation.jsonl", {{{"goal", "g"}, {"sol1", "a"}, {"sol2", "b"}, {"label", label}}});
    const LoadedTask loaded = load_task(resolve_tasks({"piqa"}).tasks.front(), dir_.str(), 0);
    const std::string said = message_of([&] { render(loaded, loaded.subtasks.front(), {}); });
    EXPECT_NE(said.find("line 1, column label: expected the place of the right choice, 0 to 1, found"), std::string::npos) << said;
  }
}

TEST_F(OneTask, LongValuesAreShortenedBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "é";
  const std::string said = said_of(with("/answerKey", text));
  EXPECT_NE(said.find("é…"), std::string::npos) << said;
  EXPECT_LT(said.size(), 160u);
}

TEST_F(OneTask, AnEmptyChoiceIsAsked) {
  write("test", {with("/choices/text/1", "")});
  const Question q = ask().front();
  EXPECT_EQ(q.continuations, (Strings{" x", " "}));
  EXPECT_EQ(q.characters, (std::vector<std::int64_t>{1, 0}));
}

TEST_F(OneTask, BadFiles) {
  const auto said = [&](const std::string& text) {
    test::write_file(dir_ / "openbookqa/test.jsonl", text);
    return message_of([&] { ask(); });
  };
  const std::string good = question(0).dump(), file = dir_ / "openbookqa/test.jsonl";
  EXPECT_EQ(said(""), file + " is empty: expected one JSON object a line");
  EXPECT_EQ(said(good + "\n{\"question\" 3}\n" + good + "\n"), file + ", line 2: bad JSON at column 13: expected ':'");
  EXPECT_EQ(said(good + "\n[1]\n"), file + ", line 2: bad JSON at column 1: expected an object");
  EXPECT_EQ(said(good + "\n\n" + good), file + ", line 2: bad JSON at column 1: expected an object");
  EXPECT_EQ(said(good + "\n" + good.substr(0, 9)), file + ", line 2: bad JSON at column 10: expected '\"'");
}

// U+2028 and U+0085 end a line for some, not here; the last line may lack its end, and files may be packed.
TEST_F(OneTask, LinesEndAtNewlines) {
  const std::string a = with("/question_stem", "one\u2028two\u0085three").dump(), b = question(2).dump();
  test::write_file(dir_ / "openbookqa/test.jsonl", a + "\n" + b);
  EXPECT_EQ(ask().at(0).contexts.front(), "one\u2028two\u0085three");
  EXPECT_EQ(ask().size(), 2u);
  std::filesystem::remove(dir_ / "openbookqa/test.jsonl");
  test::write_file(dir_ / "openbookqa/test.jsonl.gz", test::gzip(a + "\n" + b + "\n"));
  EXPECT_EQ(ask().size(), 2u);
  // A line that is longer than what is read at once.
  test::write_file(dir_ / "openbookqa/test.jsonl", with("/question_stem", std::string(1 << 20, 'x')).dump() + "\n" + b);
  EXPECT_EQ(ask().at(0).contexts.front().size(), 1u << 20);
}

TEST_F(OneTask, MissingDataSaysWhatWasExpected) {
  const Selection selection = resolve_tasks({"openbookqa", "mmlu"});
  std::string said = message_of<UsageError>([&] { check_data(selection, "", 0); });
  for (const char* part : {"--data is missing", "DIR/TASK/SPLIT.jsonl", ".jsonl.gz", "allenai/openbookqa", "cais/mmlu"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  write("test", {question(0)});
  said = message_of<UsageError>([&] { check_data(selection, dir_.str(), 3); });
  for (const std::string& part :
       {"there is no " + (dir_ / "mmlu/test.jsonl"), dir_ / "mmlu/dev.jsonl", std::string("train (for examples)")})
    EXPECT_NE(said.find(part), std::string::npos) << said;
  EXPECT_EQ(said.find("openbookqa/test.jsonl"), std::string::npos) << said;
  check_data(resolve_tasks({"openbookqa"}), dir_.str(), 3);  // examples may come from the evaluated split
}

TEST_F(OneTask, ExamplesComeFromTheEvaluatedSplitWhereThereIsNoOther) {
  write("test", {question(0), question(1), question(2)});
  for (const Question& q : ask({.shots = 2, .seed = 1})) {
    EXPECT_LE(q.examples.size(), 2u);
    EXPECT_EQ(std::ranges::count(q.examples, q.document), 0);
  }
  const std::string said = message_of<UsageError>([&] { ask({.shots = 4}); });
  EXPECT_NE(said.find("openbookqa: 4 examples before a document take 4 rows"), std::string::npos) << said;
}

TEST_F(OneTask, DrawsGoOnFromDocumentToDocument) {
  std::vector<Json> pool;
  for (int i = 0; i < 30; ++i) pool.push_back(question(100 + i));
  write("train", pool);
  write("test", {question(0), question(1), question(2)});
  const std::vector<Question> all = ask({.shots = 3, .seed = 42}), two = ask({.shots = 3, .seed = 42, .limit = 2});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].examples, all[1].examples);
  EXPECT_NE(all[0].examples, all[1].examples);
  EXPECT_NE(ask({.shots = 3, .seed = 43})[0].examples, all[0].examples);
  EXPECT_EQ(ask({.shots = 3, .seed = -42})[0].examples, all[0].examples);
}

// A system turn for the description, and texts of their own conversations behind that of the examples.
TEST_F(OneTask, ChatWithSeveralTextsAndADescription) {
  Task task = resolve_tasks({"winogrande"}).tasks.front().task;
  task.description = "Read.\n";
  const Json row = {{"sentence", "a _ b"}, {"option1", "x"}, {"option2", "y"}, {"answer", "2"}};
  test::write_rows(dir_ / "winogrande/validation.jsonl", {row});
  test::write_rows(dir_ / "winogrande/train.jsonl", {{{"sentence", "c _ d"}, {"option1", "u"}, {"option2", "v"}, {"answer", "1"}}, row});
  const LoadedTask loaded = load_task({task, {}}, dir_.str(), 1);
  const auto tokenizer = make_byte_tokenizer();
  const ChatFormat chat(find_chat_template("chatml"), *tokenizer);
  const auto user = [](const std::string& text) { return "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n"; };
  const Question q = render(loaded, loaded.subtasks.front(), {.shots = 1, .seed = 0, .chat = &chat}).front();
  const std::string head = "<|im_start|>system\nRead.\n<|im_end|>\n" + user("c u d\n\n");
  EXPECT_EQ(q.contexts, (Strings{head + user("a x"), head + user("a y")}));
  EXPECT_EQ(q.continuations, (Strings{"b", "b"}));
  const Question plain = render(loaded, loaded.subtasks.front(), {.shots = 1, .seed = 0}).front();
  EXPECT_EQ(plain.contexts, (Strings{"Read.\nc u d\n\na x", "Read.\nc u d\n\na y"}));
  EXPECT_EQ(plain.continuations, (Strings{" b", " b"}));
}

TEST_F(OneTask, SubjectsAreThoseOfTheTable) {
  const Json row = {{"question", "q"}, {"subject", "anatomy"}, {"choices", {"a", "b", "c", "d"}}, {"answer", 2}};
  test::write_rows(dir_ / "mmlu/test.jsonl", {row});
  test::write_rows(dir_ / "mmlu/dev.jsonl", {row, row});
  const auto load = [&](const char* name, std::int64_t shots) { return load_task(resolve_tasks({name}).tasks.front(), dir_.str(), shots); };
  const LoadedTask anatomy = load("mmlu_anatomy", 2);
  ASSERT_EQ(anatomy.subtasks.size(), 1u);
  EXPECT_EQ(anatomy.subtasks.front().alias, "anatomy");
  EXPECT_EQ(render(anatomy, anatomy.subtasks.front(), {.shots = 2}).front().examples, (std::vector<std::int64_t>{0, 1}));
  EXPECT_NE(message_of<UsageError>([&] { render(anatomy, anatomy.subtasks.front(), {.shots = 3}); }).find("mmlu_anatomy: 3 examples"),
            std::string::npos);
  EXPECT_NE(message_of([&] { load("mmlu_stem", 0); }).find("has no row with subject abstract_algebra"), std::string::npos);
  Json other = row;
  other["subject"] = "anatomie";
  test::write_rows(dir_ / "mmlu/test.jsonl", {row, other});
  EXPECT_NE(message_of([&] { load("mmlu_anatomy", 0); }).find("line 2, column subject: expected one of the 57 subjects"),
            std::string::npos);
}

TEST_F(OneTask, HellaswagInNeitherForm) {
  test::write_rows(dir_ / "hellaswag/validation.jsonl", {{{"ctx_a", "a"}, {"endings", {"x", "y"}}, {"label", "0"}}});
  const LoadedTask loaded = load_task(resolve_tasks({"hellaswag"}).tasks.front(), dir_.str(), 0);
  EXPECT_EQ(message_of([&] { render(loaded, loaded.subtasks.front(), {}); }),
            (dir_ / "hellaswag/validation.jsonl") +
                ", line 1: expected the columns activity_label, ctx_a, ctx_b, endings, label or endings, "
                "label, query, found ctx_a, endings, label");
}

TEST_F(OneTask, TextsOfRollingTasks) {
  test::write_rows(dir_ / "wikitext/test.jsonl", {{{"page", "one"}}, {{"page", "two"}}, {{"page", "three"}}});
  const Task task = resolve_tasks({"wikitext"}).tasks.front().task;
  EXPECT_EQ(read_texts(task, dir_.str(), 0).texts, (Strings{"one", "two", "three"}));
  const TaskTexts two = read_texts(task, dir_.str(), 2);
  EXPECT_EQ(two.texts, (Strings{"one", "two"}));
  EXPECT_EQ(two.documents, 3);
  test::write_rows(dir_ / "wikitext/test.jsonl", {{{"text", "one"}}});
  EXPECT_NE(message_of([&] { read_texts(task, dir_.str(), 0); }).find("line 1: expected a column page, found text"), std::string::npos);
}

}  // namespace
}  // namespace bhyt
