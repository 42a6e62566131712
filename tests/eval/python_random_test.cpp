#include "eval/python_random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "tests/data/test_util.h"
#include "tests/eval/task_files.h"

namespace bhyt {
namespace {

using Indices = std::vector<std::int64_t>;

TEST(PythonRandom, DrawsWhatPythonDraws) {
  PythonRandom r(42);
  for (const std::uint32_t word : {2746317213u, 478163327u, 107420369u, 3184935163u}) EXPECT_EQ(r.word(), word);
  EXPECT_EQ(PythonRandom(42).sample(2251, 3), (Indices{456, 102, 1126}));
  EXPECT_EQ(PythonRandom(42).sample(40398, 4), (Indices{7296, 1639, 18024, 16049}));
  EXPECT_EQ(PythonRandom(1234).sample(20, 4), (Indices{14, 3, 0, 2}));
}

// Six and more are drawn from a list up to 85, from 86 on as a set.
TEST(PythonRandom, TakesAListOrASet) {
  EXPECT_EQ(PythonRandom(1234).sample(85, 6), (Indices{56, 14, 0, 11, 74, 4}));
  EXPECT_EQ(PythonRandom(1234).sample(86, 7), (Indices{56, 14, 0, 11, 74, 4, 85}));
}

// random.Random(-7), (-2**40), (2**40) and (-2**63) of CPython 3.11.
TEST(PythonRandom, SeedsMayBeNegativeAndLong) {
  EXPECT_EQ(PythonRandom::signed_seed(-7).word(), PythonRandom(7).word());
  EXPECT_EQ(PythonRandom::signed_seed(-7).word(), 1390851128u);
  EXPECT_EQ(PythonRandom::signed_seed(-(std::int64_t{1} << 40)).sample(1000, 3), PythonRandom(std::uint64_t{1} << 40).sample(1000, 3));
  EXPECT_EQ(PythonRandom(std::uint64_t{1} << 40).sample(1000, 3), (Indices{106, 361, 686}));
  EXPECT_EQ(PythonRandom::signed_seed(INT64_MIN).word(), 2377109768u);
}

TEST(PythonRandom, Bounds) {
  EXPECT_EQ(PythonRandom(1).below(1), 0);
  EXPECT_TRUE(PythonRandom(1).sample(5, 0).empty());
  Indices all = PythonRandom(1).sample(5, 5);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (Indices{0, 1, 2, 3, 4}));
  EXPECT_THROW(PythonRandom(1).below(0), Error);
  EXPECT_THROW(PythonRandom(1).sample(3, 4), Error);
}

class PythonRandomGolden : public test::EvalFixtures {};

TEST_F(PythonRandomGolden, Vectors) {
  const auto all = nlohmann::json::parse(test::read_file((test::eval_fixtures() / "rng.json").string()));
  int seen = 0;
  for (const auto& c : all["cases"]) {
    const auto seed = c["seed"].get<std::uint64_t>();
    PythonRandom words(seed), bounded(seed);
    for (const auto& word : c["u32"]) EXPECT_EQ(words.word(), word.get<std::uint32_t>()) << seed;
    for (const auto& b : c["below"]) EXPECT_EQ(bounded.below(b[0]), b[1].get<std::int64_t>()) << seed;
    for (const auto& s : c["sample"]) EXPECT_EQ(PythonRandom(seed).sample(s["n"], s["k"]), s["indices"].get<Indices>()) << seed;
    for (const auto& s : c["stream"]) {
      PythonRandom running(seed);
      for (const auto& draw : s["draws"]) EXPECT_EQ(running.sample(s["n"], s["k"]), draw.get<Indices>()) << seed;
    }
    ++seen;
  }
  EXPECT_GE(seen, 8);
}

}  // namespace
}  // namespace bhyt
