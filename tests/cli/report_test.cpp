// bhyt report: what it prints agrees with the page, and a checkpoint stands for its run.
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace bhyt::test {
namespace {

// A run of ten steps, validated on a file unless that is "".
std::string write_run(const fs::path& dir, double loss, const std::string& valid) {
  fs::create_directories(dir / "checkpoint-10");
  std::ofstream metrics(dir / "metrics.jsonl");
  metrics << "{\"step\":10,\"tokens\":640,\"loss\":" << loss << ",\"lr\":0.001973314}\n";
  if (!valid.empty()) metrics << "{\"step\":10,\"valid_loss\":" << loss << ",\"valid_tokens\":64}\n";
  std::ofstream(dir / "resolved.yaml") << "data: {train: [t.tok], valid: [" << valid
                                       << "], tokenizer: bytes}\ntrain: {steps: 10, lr: 0.002}\n";
  return dir.string();
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// One verdict, everywhere: standard output, JSON, page.
void expect_verdict(const std::vector<std::string>& runs, const fs::path& page, const std::string& verdict, const nlohmann::json& best) {
  std::vector<std::string> words = {"report", "--out", page.string()};
  words.insert(words.end(), runs.begin(), runs.end());
  const Outcome plain = bhyt(words);
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_TRUE(contains(plain.out, "\n" + verdict + "\n")) << plain.out;
  EXPECT_EQ(plain.err, "");
  EXPECT_TRUE(contains(read_text(page), ">" + verdict + "<"));
  EXPECT_EQ(contains(read_text(page), "<tr class=\"best\">"), !best.is_null());
  words.emplace_back("--json");
  const nlohmann::json json = nlohmann::json::parse(bhyt(words).out);
  EXPECT_EQ(json["verdict"], verdict);
  EXPECT_EQ(json["best"], best);
}

TEST(ReportCommand, GivesAVerdictOnlyWhereLossesCompare) {
  const TempFolder tmp;
  const fs::path page = tmp.path / "page.html";
  const std::string a = write_run(tmp.path / "a", 3, "v.tok"), b = write_run(tmp.path / "b", 2.5, "v.tok"),
                    c = write_run(tmp.path / "c", 2, "w.tok"), d = write_run(tmp.path / "d", 1, "");
  expect_verdict({a, b, d}, page, "Lowest final validation loss: b, 2.5000; a 0.5000 higher. Not validated: d.", "b");
  EXPECT_TRUE(contains(bhyt({"report", d, "--out", page.string()}).out, "d  step 10  loss 1.0000  not validated\n"));
  expect_verdict({a, c}, page, "No verdict: a and c were validated on different data: v.tok (a), w.tok (c).", nullptr);
  EXPECT_TRUE(contains(read_text(page), "Peak of the schedule: 0.002 in every run."));
}

TEST(ReportCommand, ACheckpointStandsForItsRun) {
  const TempFolder tmp;
  const std::string run = write_run(tmp.path / "a", 3, "v.tok");
  const Outcome of_checkpoint = bhyt({"report", run + "/checkpoint-10"});
  EXPECT_EQ(of_checkpoint.code, 0) << of_checkpoint.err;
  EXPECT_TRUE(contains(of_checkpoint.err, run + "/checkpoint-10 lies in the run " + run)) << of_checkpoint.err;
  EXPECT_TRUE(fs::exists(run + "/report.html"));  // beside the metrics, not in the checkpoint
  EXPECT_TRUE(fs::is_empty(run + "/checkpoint-10"));
  fs::create_directories(tmp.path / "converted");
  const Outcome elsewhere = bhyt({"report", (tmp.path / "converted").string()});
  EXPECT_EQ(elsewhere.code, 2);
  EXPECT_TRUE(contains(elsewhere.err, "converted: no metrics.jsonl there")) << elsewhere.err;
  EXPECT_EQ(bhyt({"report", (tmp.path / "nowhere").string()}).code, 2);
}

// An interrupt saves between two lines of metrics: the report says what info says.
TEST(ReportCommand, ANewerCheckpointIsWhereTheRunStands) {
  const TempFolder tmp;
  const std::string run = write_run(tmp.path / "a", 3, ""), page = (tmp.path / "page.html").string();
  fs::create_directories(run + "/checkpoint-16");
  const auto save = [&](const std::string& progress) {
    std::ofstream(run + "/checkpoint-16/trainer_state.json")
        << R"({"num_input_tokens_seen": 1024, "bhyt": {"progress": )" << progress << "}}";
  };
  save(R"({"step": 16, "loss_sum": 15, "loss_count": 6})");
  const Outcome plain = bhyt({"report", run, "--out", page});
  EXPECT_EQ(plain.out, "a  step 16  loss 2.5000  not validated\na: training loss 2.5000 at step 16.\n" + page + "\n");
  for (const char* part : {">2.5000<", ">16 of 10<", ">1.02K<"}) EXPECT_TRUE(contains(read_text(page), part)) << part;
  const nlohmann::json told = nlohmann::json::parse(bhyt({"report", run, "--out", page, "--json"}).out)["runs"][0],
                       info = nlohmann::json::parse(bhyt({"info", run, "--json"}).out);
  EXPECT_EQ(told["steps"], 16);
  EXPECT_EQ(told["tokens"], 1024);
  EXPECT_EQ(told["loss"], 2.5);
  EXPECT_EQ(info["step"], told["steps"]);
  EXPECT_EQ(info["loss"], told["loss"]);
  save(R"({"step": 16, "loss_sum": 0, "loss_count": 0})");  // just after a line: its loss is the last
  EXPECT_TRUE(contains(bhyt({"report", run, "--out", page}).out, "a  step 16  loss 3.0000"));
  for (const char* odd : {R"({"step": "x"})", R"({"step": 5, "loss_sum": 15, "loss_count": 6})", "7"}) {
    save(odd);
    EXPECT_TRUE(contains(bhyt({"report", run, "--out", page}).out, "a  step 10  loss 3.0000")) << odd;
  }
}

TEST(ReportCommand, ReplacesReportsAndNothingElse) {
  const TempFolder tmp;
  const std::string run = write_run(tmp.path / "a", 3, ""), mine = (tmp.path / "mine.html").string();
  std::ofstream(mine) << "<!doctype html>\n<title>mine</title>";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(bhyt({"report", run}).code, 0);
  const Outcome refused = bhyt({"report", run, "--out", mine});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.err, "error: " + mine + " already exists; --force replaces it, another --out keeps it\n");
  EXPECT_TRUE(contains(read_text(mine), "mine</title>"));
  EXPECT_EQ(bhyt({"report", run, "--out", mine, "--force"}).code, 0);
  EXPECT_EQ(bhyt({"report", run, "--out", mine}).code, 0);
}

}  // namespace
}  // namespace bhyt::test
