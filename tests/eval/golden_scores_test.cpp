// Documents of every golden run through the engine: the harness's log-likelihoods and greedy flags, on every device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "eval/metrics.h"
#include "model/checkpoint.h"
#include "tests/devices.h"
#include "tests/eval/golden.h"
#include "tests/eval/task_files.h"

namespace bhyt {
namespace {

class GoldenScores : public test::EvalFixtures {};

// A golden model, ready to be asked.
struct Asked {
  Asked(Context& ctx, const std::string& name)
      : at((test::eval_fixtures() / "models" / name).string()),
        tokenizer(load_tokenizer(at)),
        model(load_model(ctx, at, DType::f32, Model::Repack{})),
        engine(ctx, *model) {}

  std::string at;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Model> model;
  Engine engine;
};

Question question_of(const nlohmann::json& d) {
  Question q{.task = d.at("task"), .document = d.at("doc_id"), .gold = d.at("gold")};
  for (const auto& c : d.at("choices")) {
    q.contexts.push_back(c.contains("context") ? c.at("context") : d.at("context"));
    q.continuations.push_back(c.at("continuation"));
    q.characters.push_back(c.value("chars", std::int64_t{0}));
  }
  return q;
}

double tolerance(const nlohmann::json& choice) {
  return 1e-3 * std::max(1.0, static_cast<double>(choice.at("continuation_ids").size()) / 64);
}

void expect_golden(const nlohmann::json& d, const Question& q, std::vector<Likelihood> got) {
  ASSERT_EQ(got.size(), d.at("choices").size());
  double best = -INFINITY, second = -INFINITY;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto& c = d.at("choices")[i];
    EXPECT_NEAR(got[i].sum, c.at("loglikelihood").get<double>(), tolerance(c)) << q.task << " " << q.document << " " << i;
    EXPECT_EQ(got[i].greedy, c.at("is_greedy").get<bool>()) << q.task << " " << q.document << " " << i;
    EXPECT_EQ(got[i].tokens, std::ssize(c.at("continuation_ids")));
    const double x = c.at("loglikelihood");
    second = std::max(second, std::min(best, x));
    best = std::max(best, x);
  }
  if (best - second > 0.01) {  // else rounding may decide
    EXPECT_EQ(grade(q, std::move(got), false).acc, d.at("acc").get<double>()) << q.task << " " << q.document;
  }
}

TEST_F(GoldenScores, TwoDocumentsOfEveryCase) {
  for (Context& ctx : test::contexts())
    for (const char* name : {"gpt2-tiny", "llama3-tiny"}) {
      Asked asked(ctx, name);
      for (const test::GoldenCase& g : test::read_golden_cases("eval")) {
        if (g.head.at("model") != name) continue;
        SCOPED_TRACE(g.name);
        const auto& length = g.head.at("max_length");
        const Reader reader{.engine = [&]() -> Engine& { return asked.engine; },
                            .tokenizer = *asked.tokenizer,
                            .reading = {.length = length.is_null() ? asked.model->config().max_positions : length.get<std::int64_t>(),
                                        .bos = g.head.at("bos")}};
        const std::vector<std::size_t> some{0, g.documents.size() - 1};
        std::vector<Question> questions;
        for (const std::size_t n : some) questions.push_back(question_of(g.documents[n]));
        EXPECT_TRUE(score_questions(reader, questions, [&](std::size_t i, std::vector<Likelihood> got) {
          expect_golden(g.documents[some[i]], questions[i], std::move(got));
        }));
      }
    }
}

}  // namespace
}  // namespace bhyt
