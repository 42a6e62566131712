// Results as the harness prints them: every golden case again from the numbers of its documents, tables to the byte.
#include "eval/results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/metrics.h"
#include "eval/question.h"
#include "eval/scored.h"
#include "eval/table.h"
#include "tests/eval/answers.h"
#include "tests/eval/golden.h"

namespace bhyt {
namespace {

using Json = nlohmann::json;
using test::answer;

const std::map<std::string, std::optional<double>> kVersions = {{"boolq", 2}, {"commonsense_qa", std::nullopt}, {"wikitext", 2}, {"c4", 0}};

bool with_lengths(const std::string& task) {
  return task.starts_with("arc") || task == "openbookqa" || task == "piqa" || task == "hellaswag";
}

// Tasks and groups, from the order and the indentation of the golden results.
Catalog catalog_of(const Json& head) {
  Catalog catalog;
  const Json groups = head.value("groups", Json::object());
  for (const auto& [name, result] : head.at("results").items()) {
    const std::string alias = result.at("alias");
    const std::string plain = alias.substr(alias.find_first_not_of(" -"));
    if (groups.contains(name)) catalog.groups.push_back({name, plain, 2, name == "mmlu" ? "" : "mmlu"});
    if (!groups.contains(name)) catalog.tasks.push_back({name, plain, kVersions.contains(name) ? kVersions.at(name) : 1, "", 0, 0});
    if (!groups.contains(name)) catalog.tasks.back().shots = head.value("shots", 0);
  }
  return catalog;
}

// Which group a subject is in does not follow from its name: the harness's table has each group before its subjects.
void join_groups(const std::string& table, Catalog& catalog) {
  std::map<std::string, std::string> group_of;  // by alias
  std::string group;
  for (std::size_t at = table.find("\n|"); at != std::string::npos; at = table.find("\n|", at + 1)) {
    const std::string cell = table.substr(at + 2, table.find('|', at + 2) - at - 2);
    const std::string alias = cell.substr(0, cell.find_last_not_of(' ') + 1);
    for (const GroupEntry& g : catalog.groups)
      if (alias == " - " + g.alias) group = g.name;
    if (alias.starts_with("  - ")) group_of[alias.substr(4)] = group;
  }
  for (TaskEntry& task : catalog.tasks)
    if (group_of.contains(task.alias)) task.group = group_of.at(task.alias);
}

Scored graded_again(const Json& document) {
  const std::string task = document.at("task");
  Question question{.task = task, .document = document.at("doc_id"), .gold = document.at("gold")};
  std::vector<Likelihood> choices;
  for (const Json& choice : document.at("choices")) {
    choices.push_back({choice.at("loglikelihood"), choice.at("is_greedy"), 0});
    question.characters.push_back(choice.value("chars", 0));
  }
  const Graded graded = grade(question, choices, with_lengths(task));
  EXPECT_EQ(graded.acc, document.at("acc").get<double>());
  const auto by_length = document.contains("acc_norm") ? std::optional(document.at("acc_norm").get<double>()) : std::nullopt;
  EXPECT_EQ(graded.acc_norm, by_length);
  return {.task = task, .document = question.document, .seed = 0, .what = graded};
}

void expect_same(const Json& expected, const Json& got, double relative) {
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [name, row] : expected.items()) {
    ASSERT_EQ(row.size(), got.at(name).size()) << name;
    for (const auto& [key, value] : row.items()) {
      if (!value.is_number()) {
        EXPECT_EQ(value, got.at(name).at(key)) << name << " " << key;
        continue;
      }
      EXPECT_NEAR(value.get<double>(), got.at(name).at(key).get<double>(), relative * std::abs(value.get<double>()) + 1e-12) << name << key;
    }
  }
}

TEST(Results, EveryGoldenCaseAgain) {
  if (test::golden_folder().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const auto cases = test::read_golden_cases("eval");
  EXPECT_GT(cases.size(), 50u);
  for (const test::GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    Catalog catalog = catalog_of(golden.head);
    join_groups(golden.head.at("table"), catalog);
    std::vector<Scored> documents;
    for (const Json& document : golden.documents) documents.push_back(graded_again(document));
    const Results results = collect(catalog, documents);
    const Json json = to_json(results);
    expect_same(golden.head.at("results"), json.at("results"), 1e-12);
    expect_same(golden.head.at("groups"), json.value("groups", Json::object()), 1e-12);
    EXPECT_EQ(golden.head.at("table"), to_table(results));
    for (const auto& [task, count] : golden.head.at("n_samples").items()) EXPECT_EQ(count, json.at("n-samples").at(task).at("effective"));
  }
}

TEST(Results, GoldenTextsAgain) {
  if (test::golden_folder().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
  const auto cases = test::read_golden_cases("rolling");
  EXPECT_GE(cases.size(), 4u);
  for (const test::GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.name);
    std::vector<Scored> documents;
    for (const Json& d : golden.documents)
      documents.push_back({d.at("task"), d.at("doc_id"), 0, Rolled{d.at("loglikelihood"), d.at("tokens"), d.at("words"), d.at("bytes")}});
    Results results = collect(catalog_of(golden.head), documents);
    const Json& expected = golden.head.at("results");
    expect_same(expected, Json(to_json(results)).at("results"), 1e-6);
    // The documents' numbers are rounded; the table shows more of a perplexity in the millions than they give.
    for (Metric& metric : results.rows.at(0).metrics) metric.value = expected.at(results.rows[0].name).at(metric.name + ",none");
    EXPECT_EQ(golden.head.at("table"), to_table(results));
  }
}

Catalog three_tasks() {
  return {.tasks = {{"wikitext", "wikitext", 2, "", 0, 62},
                    {"commonsense_qa", "commonsense_qa", {}, "", 3, 1221},
                    {"arc_easy", "arc_easy", 1, "", 3, 2376}},
          .groups = {{"empty", "empty", 1, ""}}};
}

// Made with the harness's make_table. Below N/A a 0.0000 is a whole number to its table writer.
TEST(Results, TasksOfDifferentKindsInOneTable) {
  const Results results = collect(three_tasks(), std::vector<Scored>{{"wikitext", 0, 0, Rolled{-1000, 300, 200, 1000}},
                                                                     answer("arc_easy", 0, 1, 0),
                                                                     answer("arc_easy", 1, 0, 0),
                                                                     answer("commonsense_qa", 0, 1)});
  EXPECT_EQ(to_table(results),
            "|    Tasks     |Version|Filter|n-shot|    Metric     |   | Value  |   |Stderr|\n"
            "|--------------|-------|------|-----:|---------------|---|-------:|---|------|\n"
            "|arc_easy      |      1|none  |     3|acc            |↑  |  0.5000|±  |   0.5|\n"
            "|              |       |none  |     3|acc_norm       |↑  |  0.0000|±  |     0|\n"
            "|commonsense_qa|Yaml   |none  |     3|acc            |↑  |  1.0000|±  |   N/A|\n"
            "|wikitext      |      2|none  |     0|bits_per_byte  |↓  |  1.4427|±  |   N/A|\n"
            "|              |       |none  |     0|byte_perplexity|↓  |  2.7183|±  |   N/A|\n"
            "|              |       |none  |     0|word_perplexity|↓  |148.4132|±  |   N/A|\n");
}

TEST(Results, TheJsonHasTheHarnessesNames) {
  const Results results =
      collect(three_tasks(), std::vector<Scored>{answer("arc_easy", 0, 1, 0), answer("arc_easy", 1, 0, 0), answer("commonsense_qa", 0, 1)});
  EXPECT_EQ(
      to_json(results).dump(),
      R"({"results":{"arc_easy":{"alias":"arc_easy","acc,none":0.5,"acc_stderr,none":0.5,"acc_norm,none":0.0,"acc_norm_stderr,none":0.0},)"
      R"("commonsense_qa":{"alias":"commonsense_qa","acc,none":1.0,"acc_stderr,none":"N/A"}},)"
      R"("versions":{"arc_easy":1.0,"commonsense_qa":"Yaml"},"n-shot":{"arc_easy":3,"commonsense_qa":3},)"
      R"("higher_is_better":{"arc_easy":{"acc":true,"acc_norm":true},"commonsense_qa":{"acc":true}},)"
      R"("n-samples":{"arc_easy":{"original":2376,"effective":2},"commonsense_qa":{"original":1221,"effective":1}}})");
}

TEST(Results, OfOneSeed) {
  const std::vector<Scored> documents = {answer("arc_easy", 0, 1, 1, 42),
                                         answer("arc_easy", 0, 0, 0, 43),
                                         {"wikitext", 0, 42, Rolled{-1000, 300, 200, 1000}},
                                         {"wikitext", 0, 43, Rolled{-1000, 300, 200, 1000}}};
  const Results results = collect(three_tasks(), documents, 43);
  EXPECT_EQ(results.rows.size(), 2u);
  EXPECT_EQ(results.row("arc_easy").main().value, 0.0);
  EXPECT_EQ(results.row("arc_easy").scored, 1);
  EXPECT_EQ(results.row("wikitext").main().name, "bits_per_byte");
  EXPECT_EQ(results.row("wikitext").scored, 1);
  EXPECT_THROW((void)results.row("commonsense_qa"), Error);
}

TEST(Results, RefusesDocumentsOfNoTask) { EXPECT_THROW((void)collect(three_tasks(), std::vector<Scored>{answer("piqa", 0, 1)}), Error); }

TEST(Table, LaysOutAsThePackageOfTheHarness) {
  EXPECT_EQ(markdown_table({"Name", "x"}, {{"aé", 1.0}, {"b", 2.5}}), "|Name| x |\n|----|--:|\n|aé  |1.0|\n|b   |2.5|\n");
  EXPECT_EQ(markdown_table({"x"}, {{"0.2750"}, {" "}}), "|  x  |\n|----:|\n|0.275|\n|     |\n");
}

// Below mostly N/A a text is a text, even if it is a number; a number is none.
TEST(Table, TakesAfterWhatStandsAbove) {
  EXPECT_EQ(markdown_table({"Version", "Stderr"}, {{"Yaml", "   N/A"}, {"Yaml", "   N/A"}, {1.0, "0.5000"}}),
            "|Version|Stderr|\n"
            "|-------|------|\n"
            "|Yaml   |   N/A|\n"
            "|Yaml   |   N/A|\n"
            "|      1|0.5000|\n");
  EXPECT_EQ(markdown_table({"Stderr"}, {{"0.5000"}, {"   N/A"}, {"0.0000"}, {"   N/A"}, {"   N/A"}, {"0.5000"}}),
            "|Stderr|\n"
            "|------|\n"
            "|   0.5|\n"
            "|   N/A|\n"
            "|     0|\n"
            "|   N/A|\n"
            "|   N/A|\n"
            "|0.5000|\n");
}

}  // namespace
}  // namespace bhyt
