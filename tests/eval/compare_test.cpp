// Paired differences and the sign test against numbers worked out by hand; the summary of several seeds.
#include "eval/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/results.h"
#include "eval/scored.h"
#include "eval/summary.h"
#include "tests/eval/answers.h"

namespace bhyt {
namespace {

using test::answer;

Scored text(std::int64_t document, double sum, std::int64_t bytes) { return {"wikitext", document, 0, Rolled{sum, 10, 5, bytes}}; }

std::vector<Scored> answers(const std::string& task, const std::vector<double>& accs) {
  std::vector<Scored> all;
  for (const double acc : accs) all.push_back(answer(task, static_cast<std::int64_t>(all.size()), acc));
  return all;
}

std::vector<Scored> operator+(std::vector<Scored> a, const std::vector<Scored>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Catalog catalog() {
  return {.tasks = {{"boolq", "boolq", 2, "", 0, 0},
                    {"piqa", "piqa", 1, "", 0, 0},
                    {"mmlu_anatomy", "anatomy", 1, "mmlu_stem", 0, 0},
                    {"mmlu_virology", "virology", 1, "mmlu_other", 0, 0},
                    {"wikitext", "wikitext", 2, "", 0, 0}},
          .groups = {{"mmlu", "mmlu", 2, ""}, {"mmlu_stem", "stem", 2, "mmlu"}, {"mmlu_other", "other", 2, "mmlu"}}};
}

Comparison compared(const std::vector<Scored>& a, const std::vector<Scored>& b) { return compare(catalog(), "A", a, "B", b); }

// Exact: 2 · (number of ways to have no more than the fewer) / 2^n, in fractions.
TEST(SignTest, IsExact) {
  EXPECT_NEAR(sign_test(7, 2), 0.1796875, 1e-14);  // 2 · (1 + 9 + 36) / 512
  EXPECT_NEAR(sign_test(2, 7), 0.1796875, 1e-14);
  EXPECT_NEAR(sign_test(10, 0), 0.001953125, 1e-15);
  EXPECT_NEAR(sign_test(60, 40), 0.05688793364098079, 1e-13);
  EXPECT_NEAR(sign_test(1150, 1300), 0.0026031931941466265, 1e-12);
  EXPECT_NEAR(sign_test(7200, 6800), 0.0007452325248581519, 1e-11);
  EXPECT_NEAR(sign_test(3, 1000) / 3.923720417925807e-294, 1, 1e-9);
  EXPECT_EQ(sign_test(0, 0), 1);
  EXPECT_EQ(sign_test(5, 5), 1);  // both tails with the middle would be more
  EXPECT_EQ(sign_test(1, 0), 1);
}

// d = 1, 0, 0, 1: mean 0.5, squares around it 4 · 0.25, error √(1 / 3 / 4).
TEST(Compare, OneTaskByHand) {
  const Comparison c = compared(answers("boolq", {1, 0, 1, 1}), answers("boolq", {0, 0, 1, 0}));
  ASSERT_EQ(c.tasks.size(), 1u);
  const Difference& d = c.tasks[0];
  EXPECT_EQ(d.task, "boolq");
  EXPECT_EQ(d.metric, "acc");
  EXPECT_EQ(d.documents, 4);
  EXPECT_DOUBLE_EQ(d.first, 0.75);
  EXPECT_DOUBLE_EQ(d.second, 0.25);
  EXPECT_DOUBLE_EQ(d.difference, 0.5);
  EXPECT_DOUBLE_EQ(d.error.value(), std::sqrt(1.0 / 12));
  EXPECT_EQ(d.up, 2);
  EXPECT_EQ(d.down, 0);
  EXPECT_NEAR(d.p, 0.5, 1e-15);  // 2 · 1/4
  EXPECT_FALSE(c.all.has_value());
}

// boolq as above; mmlu d = -1, 0, 1, -1, -1 over both subjects: mean -0.4, squares 4 - 5 · 0.16 = 3.2, error √(3.2 / 4 / 5) = 0.4.
TEST(Compare, AllTasksHaveTheSameWeight) {
  const Comparison c = compared(answers("boolq", {1, 0, 1, 1}) + answers("mmlu_anatomy", {0, 1, 1}) + answers("mmlu_virology", {0, 0}),
                                answers("boolq", {0, 0, 1, 0}) + answers("mmlu_anatomy", {1, 1, 0}) + answers("mmlu_virology", {1, 1}));
  ASSERT_EQ(c.tasks.size(), 2u);
  EXPECT_EQ(c.tasks[1].task, "mmlu");
  EXPECT_EQ(c.tasks[1].documents, 5);
  EXPECT_DOUBLE_EQ(c.tasks[1].difference, -0.4);
  EXPECT_DOUBLE_EQ(c.tasks[1].error.value(), 0.4);
  EXPECT_DOUBLE_EQ(c.all.value().difference, (0.5 - 0.4) / 2);
  EXPECT_DOUBLE_EQ(c.all->error.value(), std::sqrt(1.0 / 12 + 0.16) / 2);
  EXPECT_EQ(c.all->documents, 9);
  EXPECT_EQ(c.all->up, 3);
  EXPECT_EQ(c.all->down, 3);
  EXPECT_EQ(c.all->p, 1);
}

TEST(Compare, ByLengthWhereTheTaskHasIt) {
  const Comparison c = compared({answer("piqa", 0, 0, 1), answer("piqa", 1, 0, 1)}, {answer("piqa", 0, 1, 0), answer("piqa", 1, 1, 1)});
  EXPECT_EQ(c.tasks.at(0).metric, "acc_norm");
  EXPECT_DOUBLE_EQ(c.tasks[0].difference, 0.5);
}

// Bits per byte: 20/10 - 30/10 = -1 and 40/80 - 36/80 = 0.05 nats: mean -0.475; error half of 1.05; in bits.
TEST(Compare, TextsByTheirBytesAndNotInTheAverage) {
  const Comparison c = compared({text(0, -20, 10), text(1, -40, 80)}, {text(1, -36, 80), text(0, -30, 10)});
  ASSERT_EQ(c.tasks.size(), 1u);
  EXPECT_EQ(c.tasks[0].metric, "bits_per_byte");
  EXPECT_NEAR(c.tasks[0].difference, -0.475 / std::log(2.0), 1e-15);
  EXPECT_NEAR(c.tasks[0].error.value(), 1.05 / 2 / std::log(2.0), 1e-15);
  EXPECT_EQ(c.tasks[0].up, 1);
  EXPECT_EQ(c.tasks[0].down, 1);
  const Comparison with_texts = compared(answers("boolq", {1}) + std::vector<Scored>{text(0, -20, 10)},
                                         answers("boolq", {0}) + std::vector<Scored>{text(0, -30, 10)});
  EXPECT_EQ(with_texts.tasks.size(), 2u);
  EXPECT_FALSE(with_texts.all.has_value());  // one task with accuracies
}

// Seeds are not documents of their own: (1 + 0) / 2 - (0 + 0) / 2 and 1 - (0 + 1) / 2.
TEST(Compare, TheMeanOverSeedsOfADocument) {
  const std::vector<Scored> a = {answer("boolq", 0, 1, {}, 42), answer("boolq", 1, 1, {}, 42), answer("boolq", 0, 0, {}, 43),
                                 answer("boolq", 1, 1, {}, 43)};
  const std::vector<Scored> b = {answer("boolq", 0, 0, {}, 42), answer("boolq", 1, 0, {}, 42), answer("boolq", 0, 0, {}, 43),
                                 answer("boolq", 1, 1, {}, 43)};
  const Difference d = compared(a, b).tasks.at(0);
  EXPECT_EQ(d.documents, 2);
  EXPECT_DOUBLE_EQ(d.difference, 0.5);
  EXPECT_DOUBLE_EQ(d.error.value(), 0);
  EXPECT_EQ(d.up, 2);
}

TEST(Compare, SaysWhichDocumentIsMissingWhere) {
  const auto message = [](const std::vector<Scored>& a, const std::vector<Scored>& b) {
    try {
      (void)compared(a, b);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("compared");
  };
  const std::string a = message(answers("boolq", {1, 0, 1}), answers("boolq", {1, 0}));
  EXPECT_NE(a.find("A was scored on boolq document 2 (seed 42), B was not"), std::string::npos) << a;
  const std::string b = message(answers("boolq", {1}), answers("boolq", {1}) + answers("piqa", {1}));
  EXPECT_NE(b.find("B was scored on piqa document 0 (seed 42), A was not"), std::string::npos) << b;
  const std::string seed = message({answer("boolq", 0, 1, {}, 42)}, {answer("boolq", 0, 1, {}, 43)});
  EXPECT_NE(seed.find("A was scored on boolq document 0 (seed 42), B was not"), std::string::npos) << seed;
}

TEST(Compare, TableAndJson) {
  const Comparison c = compared(answers("boolq", {1, 0, 1, 1}) + answers("mmlu_anatomy", {0}),
                                answers("boolq", {0, 0, 1, 0}) + answers("mmlu_anatomy", {1}));
  EXPECT_EQ(to_table(c),
            "|     Tasks     | Metric |   | n |  A  |  B  |Difference|   |Stderr|Above|Below| p |\n"
            "|---------------|--------|---|--:|----:|----:|---------:|---|------|----:|----:|--:|\n"
            "|boolq          |acc     |↑  |  4|0.750|0.250|      0.50|±  |0.2887|    2|    0|0.5|\n"
            "|mmlu           |acc     |↑  |  1|0.000|1.000|     -1.00|±  |N/A   |    0|    1|1.0|\n"
            "|all tasks alike|accuracy|↑  |  5|0.375|0.625|     -0.25|±  |N/A   |    2|    1|1.0|\n"
            "\nDifference: A − B, document by document, ± its standard error. Above, Below: documents on which A is above or below B; "
            "p: exact two-sided sign test over them.\n");
  const nlohmann::json json = to_json(c);
  EXPECT_EQ(json.at("first"), "A");
  EXPECT_EQ(json.at("tasks").at("boolq").at("difference"), 0.5);
  EXPECT_EQ(json.at("tasks").at("mmlu").at("stderr"), "N/A");
  EXPECT_EQ(json.at("all").at("up"), 2);
}

SeedResults results_of(double boolq, double piqa) {
  return {0, collect(catalog(), std::vector<Scored>{answer("boolq", 0, boolq), answer("piqa", 0, 0.125, piqa)})};
}

// Averages of the two tasks by seed: 0.3, 0.4, 0.6 → mean 1.3/3, deviation of 0.1528.
TEST(Summary, MeanAndDeviationOverSeeds) {
  const ModelResults a{"A", {results_of(0.25, 0.35), results_of(0.5, 0.3), results_of(0.75, 0.45)}};
  const ModelResults b{"B", {results_of(0.5, 0.5), results_of(0.5, 0.5), results_of(0.5, 0.5)}};
  const Summary s = summarize({"piqa", "boolq"}, std::vector<ModelResults>{a, b});
  EXPECT_EQ(s.metrics, (std::vector<std::string>{"acc_norm", "acc"}));
  ASSERT_EQ(s.rows.size(), 2u);
  EXPECT_NEAR(s.rows[0].tasks.at(0).mean, 1.1 / 3, 1e-15);
  EXPECT_NEAR(s.rows[0].tasks.at(1).mean, 0.5, 1e-15);
  EXPECT_NEAR(s.rows[0].tasks[1].deviation.value(), 0.25, 1e-15);
  EXPECT_NEAR(s.rows[0].average.mean, 1.3 / 3, 1e-15);
  EXPECT_NEAR(s.rows[0].average.deviation.value(), std::sqrt((0.61 - 1.69 / 3) / 2), 1e-12);
  EXPECT_EQ(to_table(s),
            "|Model|    piqa    |    boolq    |   Average   |\n"
            "|-----|------------|-------------|-------------|\n"
            "|A    |36.67 ± 7.64|50.00 ± 25.00|43.33 ± 15.28|\n"
            "|B    |50.00 ± 0.00|50.00 ± 0.00 |50.00 ± 0.00 |\n"
            "\nacc_norm of piqa; acc of boolq, in percent; mean ± standard deviation over 3 few-shot seeds.\n");
  const nlohmann::json json = to_json(s);
  EXPECT_EQ(json.at("metrics").at("piqa"), "acc_norm");
  EXPECT_EQ(json.at("models").at(1).at("tasks").at("boolq").at("std"), 0.0);
  EXPECT_EQ(json.at("seeds"), 3);
}

TEST(Summary, OfOneSeedHasNoDeviation) {
  const Summary s = summarize({"boolq"}, std::vector<ModelResults>{{"A", {results_of(1, 0)}}});
  EXPECT_FALSE(s.rows.at(0).average.deviation.has_value());
  EXPECT_EQ(nlohmann::json(to_json(s)).at("models").at(0).at("average").at("std"), "N/A");
  EXPECT_EQ(to_table(s), "|Model|boolq|Average|\n|-----|----:|------:|\n|A    |  100|    100|\n\nacc of boolq, in percent.\n");
}

TEST(Summary, NeedsTheSameOfEveryModel) {
  const ModelResults a{"A", {results_of(1, 0)}}, b{"B", {results_of(1, 0), results_of(1, 0)}};
  EXPECT_THROW((void)summarize({"boolq"}, std::vector<ModelResults>{a, b}), Error);
  EXPECT_THROW((void)summarize({"mmlu"}, std::vector<ModelResults>{a}), Error);
  const Results texts = collect(catalog(), std::vector<Scored>{text(0, -20, 10)});
  EXPECT_THROW((void)summarize({"wikitext"}, std::vector<ModelResults>{{"A", {{0, texts}}}}), Error);
}

}  // namespace
}  // namespace bhyt
