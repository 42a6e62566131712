// An evaluation as it is printed: one model with one seed as the harness has it, several in one table with their differences.
#include "eval/findings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/results.h"
#include "eval/scored.h"
#include "tests/eval/answers.h"

namespace bhyt {
namespace {

using test::answer;

Catalog two_tasks_and_a_text() {
  return {.tasks = {{"piqa", "piqa", 1, "", 3, 1838}, {"boolq", "boolq", 2, "", 3, 3270}, {"wikitext", "wikitext", 2, "", 0, 62}},
          .groups = {}};
}

ScoredModel model_a() {
  return {"A",
          {answer("piqa", 0, 0, 1, 42),
           answer("piqa", 1, 0, 0, 42),
           answer("piqa", 0, 0, 1, 43),
           answer("piqa", 1, 0, 1, 43),
           answer("boolq", 0, 1, {}, 42),
           answer("boolq", 1, 0, {}, 42),
           answer("boolq", 0, 1, {}, 43),
           answer("boolq", 1, 0, {}, 43),
           {"wikitext", 0, 42, Rolled{-300, 100, 60, 400}},
           {"wikitext", 0, 43, Rolled{-300, 100, 60, 400}}}};
}

// Below A on piqa's document 0 with seed 42, and on boolq's document 0 with both.
ScoredModel model_b() {
  ScoredModel b{"B <2>", model_a().documents};
  std::get<Graded>(b.documents[0].what).acc_norm = 0;
  std::get<Graded>(b.documents[4].what).acc = 0;
  std::get<Graded>(b.documents[6].what).acc = 0;
  for (const std::size_t i : {8, 9}) std::get<Rolled>(b.documents[i].what).sum = -200;
  return b;
}

Findings both() { return findings_of(two_tasks_and_a_text(), {model_a(), model_b()}, {42, 43}, {"piqa", "boolq"}); }

TEST(Findings, OfOneModelWithOneSeedIsTheHarnesses) {
  const Findings one = findings_of(two_tasks_and_a_text(), {model_a()}, {43}, {"piqa", "boolq"});
  const Results results = collect(two_tasks_and_a_text(), model_a().documents, 43);
  EXPECT_EQ(to_json(one), to_json(results));
  EXPECT_EQ(to_table(one), to_table(results));
  EXPECT_FALSE(one.summary.has_value());
}

TEST(Findings, OfOneModelWithSeveralSeedsHasASummary) {
  const Findings seeds = findings_of(two_tasks_and_a_text(), {model_a()}, {42, 43}, {"piqa", "boolq"});
  EXPECT_EQ(to_json(seeds), to_full_json(seeds));
  EXPECT_EQ(seeds.summary.value().seeds, 2);
  EXPECT_TRUE(seeds.comparisons.empty());
  EXPECT_EQ(to_json(seeds).at("models").at(0).at("seeds").at(1).at("seed"), 43);
}

// The report of such an evaluation is tested on the same file.
TEST(Findings, OfSeveralModelsAsJson) {
  std::ifstream file(std::string(BHYT_TEST_DIR) + "/golden/eval/evaluation.json");
  const nlohmann::json expected = nlohmann::json::parse(file).flatten(), got = nlohmann::json(to_json(both())).flatten();
  ASSERT_EQ(expected.size(), got.size()) << got.dump(1);
  for (const auto& [path, value] : expected.items()) {
    ASSERT_TRUE(got.contains(path)) << path;
    if (value.is_number_float())
      EXPECT_NEAR(value.get<double>(), got[path].get<double>(), 1e-9) << path;  // the last bits of exp are each machine's own
    else
      EXPECT_EQ(value, got[path]) << path;
  }
}

TEST(Findings, OfSeveralModelsAsTables) {
  EXPECT_EQ(to_table(both()), R"(|Model|    piqa     |   boolq    |   Average   |
|-----|-------------|------------|-------------|
|A    |75.00 ± 35.36|50.00 ± 0.00|62.50 ± 17.68|
|B <2>|50.00 ± 70.71|0.00 ± 0.00 |25.00 ± 35.36|

acc_norm of piqa; acc of boolq, in percent; mean ± standard deviation over 2 few-shot seeds.

|Model|  Text  |bits_per_byte|byte_perplexity|word_perplexity|
|-----|--------|------------:|--------------:|--------------:|
|A    |wikitext|       1.0820|         2.1170|       148.4132|
|B <2>|wikitext|       0.7213|         1.6487|        28.0316|

|     Tasks     |   Metric    |   | n |B <2> |  A  |Difference|   |Stderr|Above|Below| p |
|---------------|-------------|---|--:|-----:|----:|---------:|---|------|----:|----:|--:|
|piqa           |acc_norm     |↑  |  2|0.5000|0.750|   -0.2500|±  |0.2500|    0|    1|1.0|
|boolq          |acc          |↑  |  2|0.0000|0.500|   -0.5000|±  |0.5000|    0|    1|1.0|
|wikitext       |bits_per_byte|↓  |  1|0.7213|1.082|   -0.3607|±  |N/A   |    0|    1|1.0|
|all tasks alike|accuracy     |↑  |  4|0.2500|0.625|   -0.3750|±  |0.2795|    0|    2|0.5|

Difference: B <2> − A, document by document, ± its standard error. Above, Below: documents on which B <2> is above or below A; p: exact two-sided sign test over them.
)");
}

TEST(Findings, OfTextsAlone) {
  const ScoredModel a{"A", {{"wikitext", 0, 42, Rolled{-300, 100, 60, 400}}}}, b{"B", {{"wikitext", 0, 42, Rolled{-200, 100, 60, 400}}}};
  const Findings texts = findings_of(two_tasks_and_a_text(), {a, b}, {42}, {});
  EXPECT_FALSE(texts.summary.has_value());
  EXPECT_TRUE(to_table(texts).starts_with("|Model|  Text  |bits_per_byte|")) << to_table(texts);
  EXPECT_FALSE(to_json(texts).contains("summary"));
}

}  // namespace
}  // namespace bhyt
