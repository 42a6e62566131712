// What words and sections come to as runs, before anything is run.
#include "study/grid.h"

#include <gtest/gtest.h>

#include "io/yaml.h"
#include "study/size.h"

namespace bhyt::study {
namespace {

using Texts = std::vector<std::string>;

Plan plan(const std::string& yaml, const Texts& words) {
  return make_plan({.base = parse_yaml(yaml, "test"), .called = "test", .words = words});
}

Texts ids(const Plan& p) {
  Texts out;
  for (const PlannedRun& r : p.runs) out.push_back(r.id);
  return out;
}

std::string refusal(const std::string& yaml, const Texts& words) {
  try {
    (void)plan(yaml, words);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Grid, CommasInsideBracketsBracesAndQuotesDoNotSplit) {
  EXPECT_EQ(split_values("a,b,c"), (Texts{"a", "b", "c"}));
  EXPECT_EQ(split_values("[2,1],[1,0.5]"), (Texts{"[2,1]", "[1,0.5]"}));
  EXPECT_EQ(split_values("[{path: a, weight: 1}, b],c"), (Texts{"[{path: a, weight: 1}, b]", "c"}));
  EXPECT_EQ(split_values("\"a,b\",'c,]d'"), (Texts{"\"a,b\"", "'c,]d'"}));
  EXPECT_EQ(split_values(""), Texts{""});
}

TEST(Grid, RangesAreWholeNumbersFromFirstToLast) {
  EXPECT_EQ(read_values("seed", "0..2"), (std::vector<Json>{0, 1, 2}));
  EXPECT_EQ(read_values("seed", "3,7..8"), (std::vector<Json>{3, 7, 8}));
  EXPECT_EQ(read_values("data.train", "../x.tok"), (std::vector<Json>{"../x.tok"}));  // a path is no range
  EXPECT_THROW((void)read_values("seed", "2..0"), UsageError);
  EXPECT_THROW((void)read_values("seed", "1,,2"), UsageError);
}

TEST(Grid, EveryCombinationHasItsOwnConfigAndName) {
  const Plan p =
      plan("{model: {preset: tiny}, train: {lr: 7}}", {"norm.method=rmsnorm,bhyt", "train.lr=1e-3,2e-3", "seed=0..1", "train.batch=4"});
  EXPECT_EQ(ids(p).size(), 8u);
  EXPECT_EQ(ids(p).front(), "method-rmsnorm_lr-0.001_seed-0");
  EXPECT_EQ(ids(p).back(), "method-bhyt_lr-0.002_seed-1");
  EXPECT_EQ(ids(p)[1], "method-rmsnorm_lr-0.001_seed-1");  // the last axis changes fastest
  const Json& tree = p.runs.back().tree;
  EXPECT_EQ(tree["norm"]["method"], "bhyt");
  EXPECT_EQ(tree["train"]["lr"], 2e-3);
  EXPECT_EQ(tree["train"]["batch"], 4);
  EXPECT_EQ(tree["run"]["seed"], 1);
  EXPECT_EQ(name_of(p.runs.back().point), "bhyt, lr 0.002, seed 1");
}

TEST(Grid, ListsAreValuesOfAnAxis) {
  const Plan p = plan("{model: {preset: tiny}}", {"norm.lambda=[2,1],[1,0.5]"});
  ASSERT_EQ(p.runs.size(), 2u);
  EXPECT_EQ(p.runs[1].tree["norm"]["lambda"], (Json{1, 0.5}));
  EXPECT_NE(p.runs[0].id, p.runs[1].id);
}

constexpr const char* kVariants = R"(
model: {preset: tiny}
norm: {p: 0.99}
train: {tokens: 1M}
sweep:
  axes:
    - variant:
        rmsnorm: {norm.method: rmsnorm}
        bhyt unit gain: {norm: {method: bhyt, gain: unit, kappa: 4}}
    - train.lr: [1e-3, 2e-3]
    - seed: 0..1
)";

TEST(Grid, VariantsSetSeveralKeysUnderOneName) {
  const Plan p = plan(kVariants, {});
  ASSERT_EQ(p.runs.size(), 8u);
  EXPECT_EQ(p.runs[4].id, "bhyt-unit-gain_lr-0.001_seed-0");
  EXPECT_EQ(p.runs[4].point[0], (std::pair<std::string, std::string>{"variant", "bhyt unit gain"}));
  EXPECT_EQ(p.runs[4].tree["norm"]["gain"], "unit");
  EXPECT_FALSE(p.runs[4].tree["norm"].contains("p"));  // kappa takes its place
  EXPECT_FALSE(p.runs[4].tree.contains("sweep"));
  EXPECT_EQ(p.runs[0].tree["norm"]["p"], 0.99);
  // In words, and in the place of those of the config.
  const Plan q = plan(kVariants, {"variant.a b=norm.method=lns", "variant.c=norm.method=dyt", "seed=3", "train.steps=9"});
  EXPECT_EQ(ids(q), (Texts{"a-b_lr-0.001_seed-3", "a-b_lr-0.002_seed-3", "c_lr-0.001_seed-3", "c_lr-0.002_seed-3"}));
  EXPECT_EQ(q.runs[0].tree["train"]["steps"], 9);
  EXPECT_FALSE(q.runs[0].tree["train"].contains("tokens"));
  EXPECT_EQ(q.runs[1].tree["train"]["lr"], 2e-3);
}

TEST(Grid, WordsGoBeforeTheConfigAndVariantsInWordsBeforeBoth) {
  const std::string yaml =
      "{model: {preset: tiny}, sweep: {axes: [{variant: {a: {train.lr: 1e-3, train.tokens: 1M}, b: {train.lr: 2e-3}}}]}}";
  for (const PlannedRun& r : plan(yaml, {"train.lr=5e-3", "train.steps=3"}).runs) {
    EXPECT_EQ(r.tree["train"]["lr"], 5e-3);
    EXPECT_EQ(r.tree["train"]["steps"], 3);
    EXPECT_FALSE(r.tree["train"].contains("tokens"));
  }
  const Plan p = plan("{model: {preset: tiny}}", {"train.lr=1", "variant.a=train.lr=2", "variant.b=seed=3", "seed=5"});
  EXPECT_EQ(p.runs[0].tree["train"]["lr"], 2);
  EXPECT_EQ(p.runs[1].tree["train"]["lr"], 1);
  EXPECT_EQ(p.runs[1].tree["run"]["seed"], 3);
  // Of two words for one key the last.
  EXPECT_EQ(plan("{model: {preset: tiny}}", {"train.lr=1", "train.lr=2,3"}).runs.size(), 2u);
  EXPECT_EQ(plan("{model: {preset: tiny}}", {"train.lr=2,3", "train.lr=1"}).runs.size(), 1u);
}

TEST(Grid, SeveralGridsAreOneSweepAndWhatTheyShareIsRunOnce) {
  const Plan p = plan("{model: {preset: tiny}, sweep: {grids: [[{train.lr: [1e-3, 2e-3]}], [{train.lr: [2e-3, 4e-3]}]]}}", {});
  EXPECT_EQ(ids(p), (Texts{"lr-0.001", "lr-0.002", "lr-0.004"}));
}

TEST(Grid, MistakesAreToldBeforeAnythingRuns) {
  const std::string base = "{model: {preset: tiny}}";
  EXPECT_TRUE(has(refusal(base, {"train.lrr=1,2"}), "did you mean train.lr?"));
  EXPECT_TRUE(has(refusal(base, {"norm.method=bhyt,nonsense"}), "nonsense"));
  EXPECT_TRUE(has(refusal(base, {"train.lr=1e-3,-1"}), "train.lr must be greater than 0"));
  EXPECT_TRUE(has(refusal(base, {"seed=0,1,0"}), "seed: 0 is given twice"));
  EXPECT_TRUE(has(refusal(base, {"train.lr=1e-3,0.001"}), "train.lr: 0.001 is given twice"));
  EXPECT_TRUE(has(refusal(base, {"seed=0,1", "run.seed=2,3"}), "seed is given twice"));
  EXPECT_TRUE(has(refusal(base, {"run.dir=x", "seed=0,1"}), "--out names its folder"));
  EXPECT_TRUE(has(refusal(base, {"variant.a=norm.method"}), "expected key=value words"));
  EXPECT_TRUE(has(refusal(base, {"variant.a b=seed=1", "variant.a-b=seed=2"}), "two runs would be called a-b"));
  EXPECT_TRUE(has(refusal("{sweep: {axis: []}}", {}), "unknown key sweep.axis (did you mean sweep.axes?)"));
  EXPECT_TRUE(has(refusal("{model: {preset: tiny}, norm: {method: lns}}", {"norm.depth_factor=none,inv_sqrt"}), "depth_factor"));
}

// How many runs fit beside each other goes by the largest of them, wherever it stands.
TEST(Grid, TheLargestRunSaysHowMuchMemory) {
  const Plan p = plan("{model: {preset: tiny, vocab: 256}, run: {device: cpu}}", {"model.d=32,256,64", "model.heads=4", "train.batch=4"});
  std::vector<const PlannedRun*> all, small;
  for (const PlannedRun& r : p.runs) all.push_back(&r);
  for (const std::size_t i : {0, 2}) small.push_back(&p.runs[i]);
  const auto of_all = largest_memory(all, p.work), of_small = largest_memory(small, p.work);
  ASSERT_TRUE(of_all && of_small);
  EXPECT_EQ(of_all, largest_memory({&p.runs[1]}, p.work));
  EXPECT_EQ(of_small, largest_memory({&p.runs[2]}, p.work));
  EXPECT_GT(*of_all, *of_small);
  const Plan unknown = plan("{model: {preset: tiny}, data: {train: [nowhere.tok]}}", {"seed=0..1"});
  EXPECT_FALSE(largest_memory({&unknown.runs[0]}, unknown.work));
}

TEST(Grid, FolderNamesAreTame) {
  EXPECT_EQ(slug("bhyt, γ₀ = κ/λ"), "bhyt-γ₀-κ-λ");
  EXPECT_EQ(slug("../../etc"), "etc");
  EXPECT_EQ(slug("---"), "x");
  EXPECT_EQ(slug("[2.0,1.0]"), "2.0-1.0");
}

}  // namespace
}  // namespace bhyt::study
