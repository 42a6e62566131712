// The file of samples: what is written comes back to the last bit, a run that was stopped continues, and nothing foreign is touched.
#include "eval/samples.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/scored.h"
#include "tests/temporary_folder.h"

namespace bhyt {
namespace {

using OrderedJson = nlohmann::ordered_json;

class SampleFiles : public ::testing::Test {
 protected:
  SampleFile open(std::int64_t documents = 3, bool force = false, const OrderedJson& settings = {{"model", "A"}, {"shots", 3}}) const {
    return {file_, settings, {.documents = documents, .force = force}};
  }
  std::string text() const { return read_text(file_); }
  void write(const std::string& bytes) const { std::ofstream(file_, std::ios::binary) << bytes; }
  std::string refusal(const std::function<void()>& act) const {
    try {
      act();
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }

  test::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path;
  fs::path file_ = folder_ / "out.jsonl";
};

Question question(std::int64_t document) {
  return {.task = "arc_easy",
          .document = document,
          .examples = {4, 2},
          .contexts = {"Question: \u2028\"é\"?\nAnswer:"},
          .continuations = {" one", " two"},
          .characters = {3, 3},
          .gold = 1};
}

const Graded kGraded{.choices = {{-149.44084200000001, false, 12}, {-1.0 / 3, true, 2}}, .acc = 1, .acc_norm = 0.0};

TEST_F(SampleFiles, ALineIsAsTheContractHasIt) {
  open().add(question(0), kGraded, 42);
  EXPECT_EQ(text(),
            "{\"task\":\"arc_easy\",\"doc_id\":0,\"target\":1,\"requests\":["
            "{\"context\":\"Question: \u2028\\\"é\\\"?\\nAnswer:\",\"continuation\":\" one\",\"loglikelihood\":-149.440842,"
            "\"is_greedy\":false,\"tokens\":12},"
            "{\"context\":\"Question: \u2028\\\"é\\\"?\\nAnswer:\",\"continuation\":\" two\",\"loglikelihood\":-0.3333333333333333,"
            "\"is_greedy\":true,\"tokens\":2}],"
            "\"fewshot\":[4,2],\"acc\":1.0,\"acc_norm\":0.0}\n");
}

TEST_F(SampleFiles, WhatWasWrittenComesBackToTheLastBit) {
  open().add(question(0), kGraded, 42);
  SampleFile again = open();
  EXPECT_EQ(again.held(), 1);
  EXPECT_FALSE(again.finished());
  const std::optional<Scored> scored = again.next(question(0), 42);
  ASSERT_TRUE(scored.has_value());
  EXPECT_EQ(scored->task, "arc_easy");
  EXPECT_EQ(scored->document, 0);
  EXPECT_EQ(scored->seed, 42);
  const Graded& graded = std::get<Graded>(scored->what);
  EXPECT_EQ(graded.choices.at(0).sum, kGraded.choices[0].sum);
  EXPECT_EQ(graded.choices.at(1).sum, -1.0 / 3);
  EXPECT_FALSE(graded.choices[0].greedy);
  EXPECT_TRUE(graded.choices[1].greedy);
  EXPECT_EQ(graded.choices[0].tokens, 12);
  EXPECT_EQ(graded.acc, 1.0);
  EXPECT_EQ(graded.acc_norm, 0.0);
  EXPECT_FALSE(again.next(question(1), 42).has_value());
}

TEST_F(SampleFiles, IsContinuedToTheSameFile) {
  {
    SampleFile whole = open();
    for (std::int64_t d = 0; d < 3; ++d) whole.add(question(d), kGraded, 42);
    EXPECT_TRUE(whole.finished());
  }
  const std::string expected = text();
  const std::size_t second_line = expected.find('\n') + 1;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{10}, second_line - 1, second_line, second_line + 40, expected.size() - 1}) {
    cut_file(file_, 0);
    write(expected.substr(0, bytes));  // as a killed process leaves it
    SampleFile again = open();
    for (std::int64_t d = 0; d < 3; ++d)
      if (!again.next(question(d), 42)) again.add(question(d), kGraded, 42);
    EXPECT_TRUE(again.finished());
    EXPECT_EQ(text(), expected) << bytes;
  }
}

TEST_F(SampleFiles, AFinishedFileIsKnownForOne) {
  {
    SampleFile whole = open(1);
    whole.add(question(0), kGraded, 42);
  }
  EXPECT_TRUE(open(1).finished());
}

TEST_F(SampleFiles, OtherSettingsAreRefusedByName) {
  open().add(question(0), kGraded, 42);
  const std::string before = text();
  const auto with = [&](const OrderedJson& settings) { return refusal([&] { open(3, false, settings); }); };
  const std::string other = with({{"model", "B"}, {"shots", 3}});
  EXPECT_NE(other.find("another model: \"A\"; now it is \"B\""), std::string::npos) << other;
  EXPECT_NE(other.find("--force"), std::string::npos) << other;
  EXPECT_NE(with({{"model", "A"}}).find("another shots: 3; now it is none"), std::string::npos);
  EXPECT_NE(with({{"model", "A"}, {"shots", 3}, {"chat", true}}).find("another chat: none; now it is true"), std::string::npos);
  EXPECT_EQ(with({{"shots", 3}, {"model", "A"}}), "accepted");  // in another order
  EXPECT_EQ(text(), before);
}

TEST_F(SampleFiles, ForceStartsAnew) {
  open().add(question(0), kGraded, 42);
  const OrderedJson settings = {{"model", "B"}};
  EXPECT_EQ(open(3, true, settings).held(), 0);
  EXPECT_EQ(text(), "");
  EXPECT_EQ(open(3, false, settings).held(), 0);  // they are its settings now
}

TEST_F(SampleFiles, AFileThatIsNotOursIsLeftAlone) {
  write("my notes\n");
  const std::string no_meta = refusal([&] { open(); });
  EXPECT_NE(no_meta.find("out.jsonl.meta.json"), std::string::npos) << no_meta;
  std::ofstream(file_.string() + ".meta.json") << R"({"model": "A", "shots": 3})";
  const std::string line = refusal([&] { open(); });
  EXPECT_NE(line.find("out.jsonl, line 1: expected"), std::string::npos) << line;
  EXPECT_EQ(text(), "my notes\n");
  std::ofstream(file_.string() + ".meta.json") << "[1";
  EXPECT_NE(refusal([&] { open(); }).find("meta.json: expected the settings"), std::string::npos);
}

TEST_F(SampleFiles, SaysWhichLineIsDamaged) {
  {
    SampleFile file = open();
    for (std::int64_t d = 0; d < 2; ++d) file.add(question(d), kGraded, 42);
  }
  const std::string good = text();
  for (const std::string bad : {"{\"task\": \"arc_easy\"}\n", "{\n", "[]\n", "\n", "{\"loglikelihood\": null, \"is_greedy\": true}\n"}) {
    write(good + bad);
    const std::string message = refusal([&] { open(); });
    EXPECT_NE(message.find("out.jsonl, line 3: expected a line that --samples has written"), std::string::npos) << message;
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
    EXPECT_EQ(text(), good + bad);
  }
}

TEST_F(SampleFiles, NestingWithoutEndIsRefused) {
  const std::string deep = "{\"x\":" + std::string(50000, '[') + std::string(50000, ']') + ",\"model\":\"A\",\"shots\":3}";
  open().add(question(0), kGraded, 42);
  const std::string good = text();
  write(good + deep + "\n");
  const std::string line = refusal([&] { open(); });
  EXPECT_NE(line.find("out.jsonl, line 2: expected a line that --samples has written: nested more than 500 deep"), std::string::npos)
      << line;
  write(good);
  std::ofstream(file_.string() + ".meta.json") << deep;
  const std::string meta = refusal([&] { open(); });
  EXPECT_NE(meta.find("meta.json: expected the settings of"), std::string::npos) << meta;
  EXPECT_NE(meta.find("nested more than 500 deep"), std::string::npos) << meta;
}

TEST_F(SampleFiles, AnotherDocumentOrPromptIsRefused) {
  open().add(question(0), kGraded, 42);
  const std::string document = refusal([&] { open().next(question(1), 42); });
  EXPECT_NE(document.find("line 1: expected arc_easy document 1, got arc_easy document 0"), std::string::npos) << document;
  Question changed = question(0);
  changed.contexts[0] += " ";
  EXPECT_NE(refusal([&] { open().next(changed, 42); }).find("another prompt"), std::string::npos);
  changed = question(0);
  changed.gold = 0;
  EXPECT_NE(refusal([&] { open().next(changed, 42); }).find("another prompt"), std::string::npos);
  EXPECT_NE(refusal([&] { open(0); }).find("has 1 lines, but there are 0 documents"), std::string::npos);
}

TEST_F(SampleFiles, SeedsStandInTheLinesWhereThereAreSeveral) {
  {
    SampleFile file(file_, OrderedJson::object(), {.documents = 2, .with_seeds = true});
    file.add(question(0), kGraded, 42);
    file.add(question(0), kGraded, 43);
  }
  EXPECT_NE(text().find("\"seed\":43"), std::string::npos);
  SampleFile again(file_, OrderedJson::object(), {.documents = 2, .with_seeds = true});
  EXPECT_EQ(again.next(question(0), 42).value().seed, 42);
  const std::string message = refusal([&] { again.next(question(0), 44); });
  EXPECT_NE(message.find("expected arc_easy document 0 (seed 44), got arc_easy document 0 (seed 43)"), std::string::npos) << message;
}

TEST_F(SampleFiles, TextsAndRequests) {
  const Rolled rolled{-1234.0625001, 300, 200, 1000};
  open().add("wikitext", 0, "a page\n", rolled);
  EXPECT_EQ(text(),
            "{\"task\":\"wikitext\",\"doc_id\":0,\"text\":\"a page\\n\",\"loglikelihood\":-1234.0625001,\"tokens\":300,\"words\":200,"
            "\"bytes\":1000}\n");
  const Rolled back = std::get<Rolled>(open().next("wikitext", 0, "a page\n").value().what);
  EXPECT_EQ(back.sum, rolled.sum);
  EXPECT_EQ(back.tokens, 300);
  EXPECT_EQ(back.words, 200);
  EXPECT_EQ(back.bytes, 1000);
  EXPECT_NE(refusal([&] { open().next("wikitext", 0, "a page"); }).find("another prompt"), std::string::npos);
  EXPECT_NE(refusal([&] { open().next_request(); }).find("expected a request, got wikitext document 0"), std::string::npos);

  open(2, true).add_request({-2.5, true, 3});
  EXPECT_EQ(text(), "{\"loglikelihood\":-2.5,\"is_greedy\":true,\"tokens\":3}\n");
  SampleFile requests = open(2);
  const std::optional<Likelihood> likelihood = requests.next_request();
  EXPECT_EQ(likelihood.value().sum, -2.5);
  EXPECT_TRUE(likelihood->greedy);
  EXPECT_EQ(likelihood->tokens, 3);
  EXPECT_FALSE(requests.next_request().has_value());
}

TEST_F(SampleFiles, NothingIsAddedBeforeWhatIsThere) {
  open().add(question(0), kGraded, 42);
  EXPECT_THROW(open().add(question(1), kGraded, 42), Error);
}

TEST_F(SampleFiles, MakesTheFolderAndRefusesWhatIsNoFile) {
  file_ = folder_ / "new" / "out.jsonl";
  open().add(question(0), kGraded, 42);
  EXPECT_TRUE(fs::exists(file_));
  file_ = folder_;
  EXPECT_NE(refusal([&] { open(); }).find("it is a directory"), std::string::npos);
}

TEST(SamplesOfModel, StandBesideEachOther) {
  EXPECT_EQ(samples_of_model("runs/out.jsonl", "A"), "runs/out.A.jsonl");
  EXPECT_EQ(samples_of_model("out", "a/b"), "out.a_b");
}

}  // namespace
}  // namespace bhyt
