// Means, spreads and verdicts against numbers by hand; the index as a file; how many runs go at once.
#include "study/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "study/jobs.h"
#include "study/page.h"
#include "study/results.h"
#include "tests/temporary_folder.h"

namespace bhyt::study {
namespace {

Record record(const std::string& variant, const std::string& lr, int seed, double valid, Status status = Status::done) {
  Record r{.id = variant + lr + std::to_string(seed),
           .point = {{"variant", variant}, {"train.lr", lr}, {"seed", std::to_string(seed)}},
           .status = status,
           .dir = "x"};
  if (std::isfinite(valid)) r.valid_loss = r.best_valid_loss = r.loss = valid;
  return r;
}

Index three_seeds() {
  Index index;
  index.runs = {record("a", "0.001", 0, 3.0), record("a", "0.001", 1, 3.2),   record("a", "0.001", 2, 3.4),
                record("a", "0.002", 0, 2.9), record("a", "0.002", 1, 3.1),   record("a", "0.002", 2, NAN, Status::diverged),
                record("b", "0.001", 0, 3.1), record("b", "0.001", 1, 3.125), record("b", "0.001", 2, 3.15)};
  return index;
}

TEST(Summary, MeanAndStandardDeviationOverSeeds) {
  const Spread s = spread_of({3.0, 3.2, 3.4});
  EXPECT_NEAR(s.mean, 3.2, 1e-12);
  EXPECT_NEAR(s.std, 0.2, 1e-12);  // √((0.04 + 0 + 0.04)/2)
  EXPECT_NEAR(s.error(), 0.2 / std::sqrt(3.0), 1e-12);
  EXPECT_TRUE(std::isnan(spread_of({1.0}).std));
  EXPECT_TRUE(std::isnan(spread_of({}).mean));
}

TEST(Summary, RunsThatDifferInTheirSeedAreOneGroup) {
  const Index index = three_seeds();
  const std::vector<Group> groups = group_runs(index);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].valid.n, 3u);
  EXPECT_EQ(groups[1].valid.n, 2u);
  EXPECT_EQ(groups[1].ended_badly, 1u);
  EXPECT_NEAR(groups[1].valid.mean, 3.0, 1e-12);
  EXPECT_EQ(cell_text(&groups[0]), "3.2000 ± 0.2000");
  EXPECT_EQ(cell_text(&groups[1]), "3.0000 ± 0.1414 (1 of 3 diverged)");
}

TEST(Summary, TheTableHasRatesAcross) {
  const Index index = three_seeds();
  const std::vector<Group> groups = group_runs(index);
  const Pivot p = pivot_of(groups);
  EXPECT_EQ(p.across, "train.lr");
  EXPECT_EQ(p.rows, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(p.columns, (std::vector<std::string>{"0.001", "0.002"}));
  EXPECT_EQ(p.cells[1][1], nullptr);
  const std::string text = summary_markdown(index, "T");
  EXPECT_NE(text.find("| variant | lr 0.001 | lr 0.002 |"), std::string::npos) << text;
  EXPECT_NE(text.find("| b | 3.1250 ± 0.0250 | – |"), std::string::npos) << text;
}

// Rates in the order in which they were run, one variant without any loss, one far above.
Index three_rates() {
  Index index;
  index.runs = {record("a", "0.004", 0, 3.5),
                record("b", "0.004", 0, 3.25),
                record("c", "0.004", 0, NAN, Status::diverged),
                record("a", "0.001", 0, 3.75),
                record("b", "0.001", 0, 3.5),
                record("a", "0.016", 0, 9.0),
                record("b", "0.016", 0, NAN, Status::planned),
                record("a", "0.0001", 0, NAN, Status::planned)};
  return index;
}

TEST(Summary, ColumnsThatAreNumbersAreInTheirOrder) {
  const Index index = three_rates();
  const std::vector<Group> groups = group_runs(index);
  const Pivot p = pivot_of(groups);
  EXPECT_EQ(p.columns, (std::vector<std::string>{"0.0001", "0.001", "0.004", "0.016"}));
  EXPECT_EQ(p.cells[0][1]->valid.mean, 3.75);
  Index words;
  words.runs = {record("a", "x", 0, 1), record("a", "2", 0, 1), record("b", "x", 0, 1)};
  const std::vector<Group> other = group_runs(words);
  EXPECT_EQ(pivot_of(other).columns, (std::vector<std::string>{"x", "2"}));
}

TEST(Summary, TheFigureHasALineForEachRowThatHasALoss) {
  const Index index = three_rates();
  const std::vector<Group> groups = group_runs(index);
  const auto figure = across_figure(pivot_of(groups));
  ASSERT_TRUE(figure);
  ASSERT_EQ(figure->lines.size(), 2u);
  EXPECT_EQ(figure->lines[0].data.x, (std::vector<double>{0.001, 0.004, 0.016}));
  EXPECT_EQ(figure->lines[0].data.y, (std::vector<double>{3.75, 3.5, 9.0}));
  EXPECT_EQ(figure->lines[1].name, "b");
  EXPECT_EQ(figure->lines[1].data.x, (std::vector<double>{0.001, 0.004}));
  EXPECT_TRUE(figure->x.log);
  EXPECT_GT(figure->x.lo, 0.0005);  // 0.0001 is planned only
  EXPECT_LT(figure->y.hi, 5);       // what learns nothing does not flatten the rest
  const test::TemporaryFolder folder;
  write_figure(index, folder.path);
  const std::string svg = read_text(folder.path / "across.svg");
  EXPECT_EQ(svg.substr(0, 5), "<svg ");
  EXPECT_NE(svg.find(">b</text>"), std::string::npos);
  EXPECT_EQ(svg.find(">c</text>"), std::string::npos);
  Index one;
  one.runs = {record("a", "0.001", 0, 3.0), record("b", "0.001", 0, 3.0)};
  const std::vector<Group> same = group_runs(one);
  EXPECT_FALSE(across_figure(pivot_of(same)));
}

TEST(Summary, TheVerdictCountsStandardErrors) {
  const Index index = three_seeds();
  // b at 0.001: 3.125, error 0.025/√3 = 0.014434; a at 0.002: 3.0, error 0.141421/√2 = 0.1: (3.125 − 3)/√(0.1² + 0.014434²) = 1.2372
  const std::vector<Group> groups = group_runs(index);
  EXPECT_NEAR(standard_errors(groups[2].valid, groups[1].valid), 1.2372, 1e-3);
  const std::string text = verdict(pivot_of(groups));
  // One of a's three runs at 0.002 diverged: what is left there is no best.
  EXPECT_NE(text.find("Lowest validation loss, each at its best: b at lr 0.001, 3.1250 ± 0.0250 (3 seeds)."), std::string::npos) << text;
  EXPECT_NE(text.find("a at lr 0.001 is 0.0750 above (0.6 standard errors: within noise)"), std::string::npos) << text;
  Index lucky;
  lucky.runs = {record("a", "1", 0, 3.0), record("a", "1", 1, NAN, Status::diverged), record("b", "1", 0, 3.5),
                record("c", "1", 0, NAN, Status::diverged)};
  const std::vector<Group> left = group_runs(lucky);
  const std::string told = verdict(pivot_of(left));
  EXPECT_NE(told.find("a (without 1 of 2 seeds, which ended badly)"), std::string::npos) << told;
  EXPECT_NE(told.find("No run came through: c."), std::string::npos) << told;
  Index clear;
  clear.runs = {record("a", "1", 0, 3.0), record("a", "1", 1, 3.01), record("b", "1", 0, 3.5), record("b", "1", 1, 3.51)};
  const std::vector<Group> apart = group_runs(clear);
  const std::string said = verdict(pivot_of(apart));
  EXPECT_NE(said.find("b is 0.5000 above (70.7 standard errors)"), std::string::npos) << said;
  EXPECT_EQ(said.find("noise"), std::string::npos);
}

TEST(Index, IsTheSameWhenItIsReadBack) {
  const test::TemporaryFolder folder;
  Index index = three_seeds();
  index.runs[0].error = "a \"quoted\" error";
  index.runs[0].settings["train.lr"] = 1e-3;
  index.runs[0].best_step = 12;
  write_index(index, folder.path);
  const Index back = read_index(folder.path);
  ASSERT_EQ(back.runs.size(), index.runs.size());
  for (std::size_t i = 0; i < back.runs.size(); ++i) {
    EXPECT_EQ(back.runs[i].point, index.runs[i].point);
    EXPECT_EQ(back.runs[i].status, index.runs[i].status);
    EXPECT_EQ(back.runs[i].valid_loss, index.runs[i].valid_loss);
  }
  EXPECT_EQ(back.runs[0].error, index.runs[0].error);
  EXPECT_EQ(back.runs[0].settings, index.runs[0].settings);
  EXPECT_EQ(back.runs[0].best_step, 12);
  EXPECT_TRUE(read_index(folder.path / "elsewhere").runs.empty());
  std::ofstream(folder.path / kIndexFile) << "{";
  EXPECT_THROW((void)read_index(folder.path), Error);
}

TEST(Index, KnownRunsKeepTheirStateAndOtherSettingsAreRefused) {
  const auto planned = [](const char* lr) {
    return Plan{.runs = {{.id = "one", .point = {{"variant", "one"}, {"seed", "0"}}, .tree = {{"train", {{"lr", lr}, {"log_every", 3}}}}},
                         {.id = "two", .point = {{"variant", "two"}, {"seed", "0"}}, .tree = Json::object()}}};
  };
  Index before = merge({}, planned("1"));
  EXPECT_EQ(before.count(Status::planned), 2u);
  before.runs[0].status = Status::done;
  before.runs[0].valid_loss = 3;
  before.runs[0].settings["train.log_every"] = 10;  // what it told on its way may differ
  before.runs.push_back({.id = "of another grid", .point = {{"variant", "three"}, {"seed", "0"}}, .status = Status::done});
  const Index after = merge(before, planned("1"));
  ASSERT_EQ(after.runs.size(), 3u);
  EXPECT_EQ(after.runs[0].status, Status::done);
  EXPECT_EQ(after.runs[0].valid_loss, 3);
  EXPECT_EQ(after.runs[2].id, "of another grid");
  EXPECT_THROW((void)merge(before, planned("2")), UsageError);
  // Another seed of the same thing must be of the same thing; and the same run under another name is not another seed.
  Index seeds = before;
  seeds.runs[2].point = {{"variant", "one"}, {"seed", "1"}};
  EXPECT_THROW((void)merge(seeds, planned("1")), UsageError);
  seeds.runs[2].settings = {{"train.lr", "1"}, {"run.seed", 1}};
  EXPECT_EQ(merge(seeds, planned("1")).runs.size(), 3u);
  seeds.runs[2].point = {{"seed", "0"}, {"variant", "one"}};
  EXPECT_THROW((void)merge(seeds, planned("1")), UsageError);
}

TEST(Jobs, RiseWhileAllTogetherAreFaster) {
  JobCount jobs(0, 8);
  EXPECT_EQ(jobs.now(), 1);
  jobs.measured(100);
  EXPECT_EQ(jobs.now(), 2);
  jobs.measured(150);
  EXPECT_EQ(jobs.now(), 4);
  EXPECT_EQ(jobs.rise(152), 0);
  EXPECT_EQ(jobs.rise(300), 4);
  jobs.measured(152);  // not a twentieth more
  EXPECT_EQ(jobs.now(), 2);
  EXPECT_TRUE(jobs.settled());
  jobs.measured(900);
  EXPECT_EQ(jobs.now(), 2);
  JobCount given(3, 8);
  given.measured(1);
  EXPECT_EQ(given.now(), 3);
  JobCount few(0, 3);
  few.measured(1);
  few.measured(2);
  few.measured(3);
  EXPECT_EQ(few.now(), 3);
  EXPECT_TRUE(few.settled());
}

}  // namespace
}  // namespace bhyt::study
