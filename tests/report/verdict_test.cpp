// The verdict: from the numbers, and only where they compare.
#include "report/verdict.h"
#include "tests/report/helpers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace bhyt::report {
namespace {

// Ten steps of 64 tokens each, validated on 640 tokens.
report::Run run_of(const std::string& name, double valid) {
  report::Run r;
  r.name = name;
  r.loss.add(10, 3);
  r.tokens.add(10, 640);
  r.valid.add(10, valid);
  r.valid_tokens = 640;
  r.config = {{"data.train", "[t.tok]"}, {"data.valid", "[v.tok]"}, {"data.tokenizer", "bytes"}, {"data.seq_len", "64"}};
  return r;
}

void set(Entries& entries, const std::string& key, const std::string& value) {
  for (auto& [k, v] : entries)
    if (k == key) {
      v = value;
      return;
    }
  entries.emplace_back(key, value);
}

std::string text_of(const std::vector<report::Run>& runs) { return judge(runs).text; }

TEST(Verdict, OfOneRun) {
  report::Run a;
  a.name = "a";
  EXPECT_EQ(text_of({a}), "No loss has been recorded yet.");
  a.loss.add(10, 3);
  EXPECT_EQ(text_of({a}), "a: training loss 3.0000 at step 10.");
  a.valid.add(10, 2.5);
  a.floor = 2;
  a.loss.add(15, 3);
  EXPECT_EQ(text_of({a}), "a: validation loss 2.5000 (0.5000 above the entropy floor) at step 10.");
  EXPECT_NEAR(a.above_floor(), 0.5, 1e-12);
  EXPECT_EQ(judge({a}).best, -1);  // nothing was compared
}

// What a run keeps is what it is judged by, whatever became of it afterwards; only where all of them keep their best.
TEST(Verdict, ComparesTheCheckpointsThatWereChosen) {
  report::Run a = run_of("a", 2.5), b = run_of("b", 2.25);
  a.chosen = {5, 2};
  EXPECT_EQ(text_of({a, b}), "Lowest final validation loss: b, 2.2500; a 0.2500 higher.");
  b.chosen = {10, 2.25};
  EXPECT_EQ(text_of({a, b}), "Lowest validation loss: a, 2.0000; b 0.2500 higher.");
  EXPECT_EQ(judge({a, b}).best, 0);
  EXPECT_EQ(text_of({a}), "a: validation loss 2.0000 at step 5, the lowest of its checkpoints.");
}

TEST(Verdict, FollowsTheNumbers) {
  report::Run a = run_of("a", 2.5), b = run_of("b", 2.25), c = run_of("c", 3);
  EXPECT_EQ(text_of({a, b, c}), "Lowest final validation loss: b, 2.2500; a 0.2500 higher, c 0.7500 higher.");
  EXPECT_EQ(judge({a, b, c}).best, 1);
  c = run_of("c", 2.25);
  EXPECT_EQ(text_of({a, b, c}), "Lowest final validation loss: b, 2.2500; c the same, a 0.2500 higher.");
  EXPECT_EQ(judge({a, b, c}).best, -1);  // nobody won
  std::vector<report::Run> many;
  for (int i = 0; i < 6; ++i) many.push_back(run_of(fmt::format("r{}", i), 3 - 0.25 * i));
  EXPECT_EQ(text_of(many), "Lowest final validation loss: r5, 1.7500; the others 0.2500 to 1.2500 higher.");
  EXPECT_EQ(judge(many).best, 5);
}

TEST(Verdict, RunsWithoutAFinalValidationLossTakeNoPart) {
  report::Run a = run_of("a", 2.5), b = run_of("b", 2.25), c = run_of("c", 1), d = run_of("d", 1);
  c.valid = {};
  c.loss.add(10, 0.5);  // the lowest number, and of another kind
  d.valid.add(10, kNaN);
  EXPECT_EQ(text_of({a, b, c, d}),
            "Lowest final validation loss: b, 2.2500; a 0.2500 higher. Final validation loss not finite: d. Not validated: c.");
  EXPECT_EQ(text_of({a, c}), "a: validation loss 2.5000 at step 10. Not validated: c.");
  EXPECT_EQ(text_of({c, d}), "Final validation loss not finite: d. Not validated: c.");
  EXPECT_EQ(judge({c, a}).best, -1);
}

TEST(Verdict, WithoutAnyValidationTrainingLossesCompareOnTheSameData) {
  report::Run a = run_of("a", 0), b = run_of("b", 0);
  a.valid = b.valid = {};
  b.loss.add(10, 2.5);
  set(b.config, "data.valid", "[other.tok]");
  EXPECT_EQ(text_of({a, b}), "Lowest final training loss: b, 2.5000; a 0.5000 higher.");
  set(b.config, "data.train", "[u.tok]");
  EXPECT_EQ(text_of({a, b}), "No verdict: a and b were trained on different data: t.tok (a), u.tok (b).");
}

TEST(Verdict, NoneWhereLossesWereMeasuredDifferently) {
  const report::Run a = run_of("a", 2.5), b = run_of("b", 2.25);
  const auto with = [&](const char* key, const char* value) {
    report::Run c = run_of("c", 2);
    set(c.config, key, value);
    EXPECT_EQ(judge({a, b, c}).best, -1) << key;
    return text_of({a, b, c});
  };
  EXPECT_EQ(with("data.valid", "[w.tok]"), "No verdict: the runs were validated on different data: v.tok (a and b), w.tok (c).");
  EXPECT_EQ(with("data.tokenizer", "bpe"), "No verdict: the runs have different tokenizers: bytes (a and b), bpe (c).");
  EXPECT_EQ(with("data.seq_len", "128"), "No verdict: the runs differ in data.seq_len: 64 (a and b), 128 (c).");
  report::Run c = run_of("c", 2);
  set(c.config, "data.train", "[u.tok]");  // what they learn from may differ
  EXPECT_EQ(judge({a, b, c}).best, 2);
  c.valid_tokens = 320;
  EXPECT_EQ(text_of({a, c}), "No verdict: a and c were validated on different numbers of tokens: 640 (a), 320 (c).");
  c.config.clear();
  EXPECT_EQ(text_of({a, c}), "No verdict: without resolved.yaml it is not known what c trained on.");
}

TEST(Verdict, FingerprintsSayMoreThanPaths) {
  report::Run a = run_of("a", 2.5), b = run_of("b", 2.25);
  const auto tokenizers = [&](const char* of_a, const char* of_b) { set(a.about, "tokenizer", of_a), set(b.about, "tokenizer", of_b); };
  set(b.config, "data.valid", "[/elsewhere/v.tok]");
  set(b.config, "data.tokenizer", "auto");
  set(a.about, "validation_data", "01");
  tokenizers("02", "02");
  EXPECT_EQ(judge({a, b}).best, -1);  // b has no fingerprint of its data: the paths decide
  set(b.about, "validation_data", "01");
  EXPECT_EQ(judge({a, b}).best, 1);  // the same data under another name
  set(b.config, "data.valid", "[v.tok]");
  set(b.about, "validation_data", "03");  // other data under the same name
  EXPECT_EQ(text_of({a, b}), "No verdict: a and b were validated on different data.");
  EXPECT_EQ(text_of({a, b, a}), "No verdict: the runs were validated on different data: (a and a), (b).");
  tokenizers("02", "04");
  EXPECT_EQ(text_of({a, b}), "No verdict: a and b have different tokenizers: bytes (a), auto (b).");
}

TEST(Verdict, NoneForDifferentNumbersOfTokens) {
  const report::Run a = run_of("a", 2.5);
  report::Run b = run_of("b", 2.25);
  b.loss.add(20, 2);
  b.tokens.add(20, 1280);
  EXPECT_EQ(judge({a, b}).best, 1);  // b goes on, but it was validated at the same point
  b.valid.add(11, 2);
  EXPECT_EQ(text_of({a, b}), "No verdict: a and b were trained on different numbers of tokens: 640 (a), 704 (b).");
  set(b.config, "data.valid", "[w.tok]");
  EXPECT_EQ(text_of({a, b}),
            "No verdict: a and b were validated on different data: v.tok (a), w.tok (b); they were trained on different numbers of tokens: "
            "640 (a), 704 (b).");
  // A budget of tokens in steps of 96: as near as it gets.
  report::Run c = run_of("c", 2);
  c.tokens = c.valid = {};
  c.tokens.add(7, 672);
  c.valid.add(7, 2);
  EXPECT_EQ(judge({a, c}).best, 1);
  // Metrics without tokens are compared by steps.
  report::Run d = run_of("d", 2.5), e = run_of("e", 2);
  d.tokens = e.tokens = {};
  EXPECT_EQ(judge({d, e}).best, 1);
  e.valid.add(11, 2);
  EXPECT_EQ(judge({d, e}).best, -1);
}

}  // namespace
}  // namespace bhyt::report
